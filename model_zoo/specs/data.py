"""The training text of a run: where it comes from, how it becomes tokens, and what is held out."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from model_zoo.specs import tokens

TRAINING_SHARE = 0.9
"""The first part of the text trains, the rest is held out."""

Source = Literal["stdlib", "text", "jsonl"]


class DataSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The training text; any peer whose bytes have the digest can serve it.

    Fields:
        source: Python's own source, a file as it is, or the `text` fields of JSON lines.
        name: of the file, for people.
        size_bytes, digest: of the text; the digest is BLAKE2b-256, in hex.
        tokenizer: name of a tokenizer of the zoo; left out for bytes.

    Raises:
        ValueError: the tokenizer is unknown.
    """

    source: Source
    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=2, le=2**40)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tokenizer: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.tokenizer == tokens.DEFAULT:  # one run, one spelling
            raise ValueError(f"tokenizer {tokens.DEFAULT} is the one without a name: leave it out")
        if self.tokenizer_name not in tokens.TOKENIZERS:
            known = ", ".join(tokens.TOKENIZERS)
            name = self.tokenizer_name[:40]
            raise ValueError(f"tokenizer {name!r} is unknown; known are {known}")

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in the zoo."""
        return tokens.DEFAULT if self.tokenizer is msgspec.UNSET else self.tokenizer


def training_size(size: int) -> int:
    """Return how many of so many tokens train; the others are held out."""
    return int(TRAINING_SHARE * size)


def holds_samples(size: int, context: int) -> bool:
    """Whether both parts of a text of so many tokens hold a sample: a context and its target."""
    training = training_size(size)
    return min(training, size - training) > context
