"""Tokens: which tokenizers there are, and the integers that tokens are sent and kept as."""

DEFAULT = "bytes"
TOKENIZERS: dict[str, int] = {
    DEFAULT: 256,
}
"""How many tokens each tokenizer has. A new one is a line here and the file of its name in
`model_zoo.tokenizers`."""

_TWO_BYTES = 1 << 16


def token_bytes(vocab: int) -> int:
    """Return the bytes of one token of a vocabulary of so many."""
    return 2 if vocab <= _TWO_BYTES else 4


def token_dtype(vocab: int) -> str:
    """Return the same as NumPy names it: unsigned, little-endian."""
    return f"<u{token_bytes(vocab)}"
