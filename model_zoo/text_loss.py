"""The loss of a model on a text: perplexity, and bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from model_zoo.data import DataError
from model_zoo.datasets.build import tokens_of
from model_zoo.stages import summed_loss
from model_zoo.tokenizers.bpe import Bpe

WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class TextLoss:
    """What a model loses on a text.

    Fields:
        nats: summed over all predicted tokens.
        tokens: that were predicted: all but the first.
        size_bytes: of text that these stand for.
    """

    nats: float
    tokens: int
    size_bytes: int

    @property
    def loss(self) -> float:
        """Mean per token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per byte of text, which tokenizers do not change."""
        return self.nats / (math.log(2) * max(1, self.size_bytes))


def text_loss(model: nn.Module, path: Path, tokenizer: Bpe | None, context: int) -> TextLoss:
    """Return the loss of a model on a file.

    The tokens are those that `data build` makes. They are cut into windows of the context, and
    every token but the first is predicted once, from those before it in its window.

    Args:
        model: tokens (B, T) to logits (B, T, V).
        path: text, JSON lines or parquet with a field `text`, compressed or not.
        tokenizer: the model's; None: tokens are bytes.
        context: T.

    Raises:
        DataError: the file cannot be read, or has fewer than two tokens.
    """
    tokens = tokens_of(path, tokenizer)
    if tokens.size < 2:
        raise DataError(f"{path} has {tokens.size} tokens: there is nothing to predict")
    counted = tokenizer.byte_counts[tokens[1:]].sum() if tokenizer else tokens.size - 1
    whole = (tokens.size - 1) // context
    nats = 0.0
    with torch.no_grad():
        for first in range(0, whole, WINDOWS_AT_ONCE):
            starts = range(first, min(first + WINDOWS_AT_ONCE, whole))
            rows = [tokens[at * context : (at + 1) * context + 1] for at in starts]
            nats += _nats(model, np.stack(rows))
        if (rest := tokens[whole * context :]).size > 1:
            nats += _nats(model, rest[None])
    return TextLoss(nats, tokens.size - 1, int(counted))


def _nats(model: nn.Module, windows: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> float:
    """Return the summed loss of windows (B, T + 1), computed where the model is."""
    samples = torch.from_numpy(windows.astype(np.int64)).to(next(model.parameters()).device)
    return summed_loss(model(samples[:, :-1]), samples[:, 1:]).item()
