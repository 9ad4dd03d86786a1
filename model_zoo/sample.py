"""Text from a whole model, one token after the other."""

import codecs
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from model_zoo.specs.tokens import BYTE_VOCAB
from model_zoo.stages import Stage
from model_zoo.threads import limited_threads
from model_zoo.tokenizers.bpe import Bpe

ONE_THREAD = 4_000_000
"""Parameters up to which one thread draws. More are hardly faster, and wait for each other beside a
program that computes on all cores: 19 s instead of 8 for 40 tokens of a model of 870,000."""


def stream(
    model: Stage,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    tokenizer: Bpe | None = None,
) -> Iterator[str]:
    """Return an iterator over the continuation of `prompt`, a character at a time as it is drawn.

    Args:
        model: a whole model, on the CPU.
        prompt: the text to continue, not empty.
        length: tokens to draw.
        temperature: 0 takes the likeliest token each time; higher values draw more randomly.
        top_k: draw from the k likeliest tokens only; None: from all.
        seed: the same seed gives the same text on the same machine.
        tokenizer: the model's; None: tokens are bytes.

    Raises:
        ValueError: an empty prompt or a setting out of range.
    """
    if not prompt or length < 0:
        raise ValueError("needs a prompt and a length >= 0")
    if not 0 <= temperature < float("inf") or (top_k is not None and top_k < 1):
        raise ValueError("needs a temperature >= 0 and a top_k >= 1")
    text = np.frombuffer(prompt.encode(), dtype=np.uint8)
    tokens = (tokenizer.encode(text) if tokenizer else text).tolist()
    if max(tokens) >= model.spec.vocab:
        raise ValueError(f"the prompt has tokens beyond the vocabulary of {model.spec.vocab}")
    known = tokenizer.vocab if tokenizer else BYTE_VOCAB
    generator = torch.Generator().manual_seed(seed)
    threads = 1 if model.spec.parameter_count <= ONE_THREAD else None

    def drawn() -> Iterator[int]:
        seen = torch.tensor([tokens])  # (1, T)
        for _ in range(length):
            with torch.no_grad(), limited_threads(threads):
                # the model may have more tokens than stand for something
                logits = model(seen[:, -model.spec.context :])[0, -1, :known]  # (V,)
                token = _draw(logits, temperature, top_k, generator)
            seen = torch.cat((seen, token.view(1, 1)), dim=1)
            yield int(token)

    return _texts(tokenizer, drawn())


def _texts(tokenizer: Bpe | None, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens as far as its characters are complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if text := decoder.decode(tokenizer.decode(token) if tokenizer else bytes([token])):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    logits = logits / temperature
    if top_k is not None and top_k < logits.numel():
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial(logits.softmax(dim=0), 1, generator=generator)
