"""Text from a whole model, one byte after the other."""

import codecs
from collections.abc import Iterator

import torch
from torch import Tensor

from model_zoo.stages import Stage

_BYTES = 256


def generate(
    model: Stage,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Continue `prompt` by `length` bytes; the continuation alone, undecodable bytes replaced.

    Arguments and errors are those of `stream`.
    """
    pieces = stream(model, prompt, length, temperature=temperature, top_k=top_k, seed=seed)
    return "".join(pieces)


def stream(
    model: Stage,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Return an iterator over the continuation of `prompt`, a character at a time as it is drawn.

    Args:
        model: a whole model over bytes, on the CPU.
        temperature: 0 takes the likeliest byte each time; higher is more daring.
        top_k: draw from the k likeliest bytes only; None from all.
        seed: same seed, same text on the same machine.

    Raises:
        ValueError: an empty prompt or a setting out of range.
    """
    if not prompt or length < 0 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError("needs a prompt, length >= 0, temperature >= 0 and top_k >= 1")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([list(prompt.encode())])  # (1, T)
    if model.spec.vocab < _BYTES and int(tokens.max()) >= model.spec.vocab:
        raise ValueError(f"the prompt has bytes beyond the vocabulary of {model.spec.vocab}")
    return _drawn(model, tokens, length, temperature, top_k, generator)


def _drawn(
    model: Stage,
    tokens: Tensor,
    length: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for _ in range(length):
        with torch.no_grad():
            logits = model(tokens[:, -model.spec.context :])[0, -1, :_BYTES]  # (V,)
            token = _draw(logits, temperature, top_k, generator)
        tokens = torch.cat((tokens, token.view(1, 1)), dim=1)
        if text := decoder.decode(bytes([int(token)])):
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
