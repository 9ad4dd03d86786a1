"""Text from a whole model, one token after the other."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_zoo.specs.tokens import DEFAULT, TOKENIZERS
from model_zoo.stages import Stage
from model_zoo.tokenizers.bpe import Bpe
from model_zoo.tokenizers.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen.

    Fields:
        temperature: 0 takes the likeliest token each time; higher values draw more randomly.
        top_k: draw from the k likeliest tokens only; None: from all.
        top_p: draw from the likeliest tokens that together have this probability; None: from all.

    Raises:
        ValueError: one is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf") or (self.top_k is not None and self.top_k < 1):
            raise ValueError("needs a temperature >= 0 and a top_k >= 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError("needs a top_p above 0 and at most 1")


def generate(
    model: Stage,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    tokenizer: str | Bpe = DEFAULT,
) -> str:
    """Return the continuation of `prompt`, without the prompt; undecodable bytes are replaced.

    `model`, `prompt`, `length`, `temperature`, `top_k`, `seed`, `tokenizer` and errors are those of
    `stream`.
    """
    pieces = stream(
        model, prompt, length, temperature=temperature, top_k=top_k, seed=seed, tokenizer=tokenizer
    )
    return "".join(pieces)


def stream(
    model: Stage,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    tokenizer: str | Bpe = DEFAULT,
) -> Iterator[str]:
    """Return an iterator over the continuation of `prompt`, a character at a time as it is drawn.

    Args:
        model: a whole model, on the CPU.
        prompt: the text to continue, not empty.
        length: tokens to draw.
        temperature, top_k: see `Sampling`.
        seed: the same seed gives the same text on the same machine.
        tokenizer: the model's tokenizer, or its name in the zoo.

    Raises:
        ValueError: an empty prompt or a setting out of range.
    """
    if not prompt or length < 0:
        raise ValueError("needs a prompt and a length >= 0")
    sampling = Sampling(temperature, top_k)
    generator = torch.Generator().manual_seed(seed)
    words = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    found = encoded(words, prompt)
    if max(found) >= model.spec.vocab:
        raise ValueError(f"the prompt has tokens beyond the vocabulary of {model.spec.vocab}")
    drawn = draw(model, found, length, sampling, generator, known_tokens(tokenizer))
    return texts(words, drawn)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text; words for special tokens in it are plain text."""
    found: list[int] = tokenizer.encode(np.frombuffer(text.encode(), dtype=np.uint8)).tolist()
    return found


def known_tokens(tokenizer: str | Bpe) -> int:
    """Return how many tokens stand for something; the model may have more."""
    return TOKENIZERS[tokenizer] if isinstance(tokenizer, str) else tokenizer.vocab


def draw(
    model: Stage,
    tokens: list[int],
    length: int,
    sampling: Sampling,
    generator: torch.Generator,
    known: int,
) -> Iterator[int]:
    """Yield the tokens that follow, each as it is drawn.

    Args:
        model: a whole model, on the CPU.
        tokens: those to continue; of more than the model's context the last ones count.
        length: how many to draw.
        sampling: how each is chosen.
        generator: of the random numbers.
        known: only tokens below it are drawn.
    """
    seen = torch.tensor([tokens])  # (1, T)
    for _ in range(length):
        with torch.no_grad():
            logits = model(seen[:, -model.spec.context :])[0, -1, :known]  # (V,)
            token = _draw(logits, sampling, generator)
        seen = torch.cat((seen, token.view(1, 1)), dim=1)
        yield int(token)


def texts(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens as far as its characters are complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if text := decoder.decode(tokenizer.decode(token)):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    if sampling.temperature == 0:
        return logits.argmax()
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.numel():
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if sampling.top_p is not None:
        logits = logits.masked_fill(_unlikely(logits, sampling.top_p), float("-inf"))
    return torch.multinomial(logits.softmax(dim=0), 1, generator=generator)


def _unlikely(logits: Tensor, top_p: float) -> Tensor:
    """Which tokens are not needed to have the probability: those after the one that reaches it."""
    likely, order = logits.softmax(dim=0).sort(descending=True)  # (V,) each
    spare = likely.cumsum(dim=0) - likely >= top_p
    return torch.zeros_like(spare).scatter(0, order, spare)
