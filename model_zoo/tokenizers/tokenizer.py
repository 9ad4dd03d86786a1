"""The interface of all tokenizers of the zoo: text to tokens and back."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_zoo.specs.tokens import TOKENIZERS

Bytes = NDArray[np.uint8]
Tokens = NDArray[np.unsignedinteger[Any]]


class Tokenizer(ABC):
    """Text as UTF-8 to tokens and back; the same on every machine, and without state.

    Every token stands for one byte of text at least, except special ones, which stand for none. It
    is below what `specs.tokens` says.
    """

    @abstractmethod
    def encode(self, text: Bytes) -> Tokens:
        """Return the tokens of a text; it may be as long as a corpus, and mapped from disk."""

    @abstractmethod
    def decode(self, token: int) -> bytes:
        """Return the bytes that a token stands for; they may end within a character."""


def load_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer by its name. Only what is registered is imported.

    Raises:
        ValueError: no tokenizer has this name.
    """
    if name not in TOKENIZERS:
        raise ValueError(f"tokenizer {name!r} is unknown; known are {', '.join(TOKENIZERS)}")
    found: Tokenizer = import_module(f"model_zoo.tokenizers.{name}").TOKENIZER
    return found
