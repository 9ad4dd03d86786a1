"""Tokens: what makes them, and the integers that they are sent and kept as."""

from typing import Annotated, Any

from msgspec import Meta

from model_zoo.specs.description import Description

BYTES = "bytes"
"""How people name what needs no tokenizer: every byte is a token."""
BYTE_VOCAB = 256

MAX_VOCAB = 1 << 20
NOT_LEARNED = 1 << 31
"""Bit of a token of masked data (`specs.data.Answers`): no loss is counted where it is the target.
It travels with the token. Such tokens are kept and sent in four bytes."""
BEGINS = 1 << 30
"""Bit of a token of masked data: a conversation begins with it. Only one that is not learned has
it, so that nothing is predicted across a border."""
MAX_TOKENIZER_BYTES = 64 << 20
MAX_TEMPLATE_CHARS = 16 * 1024
"""It travels in the manifest."""
_TWO_BYTES = 1 << 16


class ChatFormat(Description, frozen=True):
    """How a tokenizer's model is talked to: as in its `tokenizer_config.json`.

    Fields:
        template: Jinja that makes text of messages.
        bos, eos: words for the beginning and the end of a text, which the template may use; empty
            where there is none.
    """

    template: Annotated[str, Meta(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
    bos: Annotated[str, Meta(max_length=256)] = ""
    eos: Annotated[str, Meta(max_length=256)] = ""


class TokenizerSpec(Description, frozen=True):
    """A tokenizer that travels with the data: a `tokenizer.json` of the `tokenizers` library.

    Fields:
        digest, size_bytes: of the file; the digest is its hash (`state_hash.py`), in hex.
        vocab: number of tokens: one more than the largest.
        library: version of the library that made the tokens; another may cut text differently.
        chat: for people who export the model; None: the tokenizer has none.
    """

    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size_bytes: Annotated[int, Meta(ge=2, le=MAX_TOKENIZER_BYTES)]
    vocab: Annotated[int, Meta(ge=2, le=MAX_VOCAB)]
    library: Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,6}){1,3}\Z")]
    chat: ChatFormat | None = None


def token_bytes(vocab: int, *, masked: bool = False) -> int:
    """Return the bytes of one token of a vocabulary of so many, ``masked`` if it has the bit."""
    return 2 if vocab <= _TWO_BYTES and not masked else 4


def token_values(tokens: Any, *, masked: bool = False) -> Any:
    """Return tokens from outside without the bits that they may have: one with another bit is
    beyond any vocabulary.

    Args:
        tokens: an integer, or an array of `token_dtype`.
        masked: whether they say if they are learned, and those that are not, if a conversation
            begins with them.
    """
    if not masked:
        return tokens
    begins_and_learned = tokens & ~(tokens >> 1) & BEGINS  # one bit is right below the other
    return tokens & (BEGINS - 1) | begins_and_learned


def token_dtype(vocab: int, *, masked: bool = False) -> str:
    """Return the same as NumPy names it: unsigned, little-endian."""
    return f"<u{token_bytes(vocab, masked=masked)}"
