"""The `gguf` package of llama.cpp's authors, which is not installed with this one."""

from importlib import import_module
from typing import Any


class NoGguf(Exception):
    """The `gguf` package is not installed."""


def load_gguf() -> Any:
    """Return the `gguf` module.

    Raises:
        NoGguf: it is not installed.
    """
    try:
        return import_module("gguf")
    except ImportError as error:
        raise NoGguf("the gguf package is missing") from error
