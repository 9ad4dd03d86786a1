"""Text from a whole model, one token after the other."""

import codecs
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from model_zoo.specs.tokens import DEFAULT, TOKENIZERS
from model_zoo.stages import Stage
from model_zoo.tokenizers.bpe import Bpe
from model_zoo.tokenizers.tokenizer import Tokenizer, load_tokenizer


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
        temperature: 0 takes the likeliest token each time; higher values draw more randomly.
        top_k: draw from the k likeliest tokens only; None: from all.
        seed: the same seed gives the same text on the same machine.
        tokenizer: the model's tokenizer, or its name in the zoo.

    Raises:
        ValueError: an empty prompt or a setting out of range.
    """
    if not prompt or length < 0 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError("needs a prompt, length >= 0, temperature >= 0 and top_k >= 1")
    generator = torch.Generator().manual_seed(seed)
    words = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    known = TOKENIZERS[tokenizer] if isinstance(tokenizer, str) else tokenizer.vocab
    encoded = words.encode(np.frombuffer(prompt.encode(), dtype=np.uint8))
    found = torch.from_numpy(encoded.astype(np.int64))[None]  # (1, T)
    if int(found.max()) >= model.spec.vocab:
        raise ValueError(f"the prompt has tokens beyond the vocabulary of {model.spec.vocab}")
    return _drawn(model, found, length, temperature, top_k, generator, (words, known))


def _drawn(
    model: Stage,
    tokens: Tensor,
    length: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
    tokenizer: tuple[Tokenizer, int],
) -> Iterator[str]:
    words, known = tokenizer
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for _ in range(length):
        with torch.no_grad():
            logits = model(tokens[:, -model.spec.context :])[0, -1, :known]  # (V,)
            token = _draw(logits, temperature, top_k, generator)
        tokens = torch.cat((tokens, token.view(1, 1)), dim=1)
        if text := decoder.decode(words.decode(int(token))):
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
