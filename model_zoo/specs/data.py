"""The training text of a run: where it comes from, how it becomes tokens, and what is held out."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from model_zoo.specs import tokens
from model_zoo.specs.tokens import TokenizerSpec, token_bytes
from model_zoo.specs.windows import window_count

TRAINING_SHARE = 0.9
"""The first part of the text trains, the rest is held out."""

MOST_BYTES = 2**44
"""17.6 TB."""

Source = Literal["stdlib", "text", "jsonl", "tokens"]


class Answers(Struct, frozen=True, forbid_unknown_fields=True):
    """Says that tokens are conversations of which only the answers are learned.

    Fields:
        context: tokens of a window; each has one conversation, padded at its end.
        learned: tokens of the whole data that are learned; of each window at least one.
    """

    context: Annotated[int, Meta(ge=2, le=2**17)]
    learned: Annotated[int, Meta(ge=1, le=2**40)]


class DataSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The training text; any peer whose bytes have the digest can serve it.

    Fields:
        source: Python's own source, a file as it is, the `text` fields of JSON lines, or tokens
            that were made of a text before.
        name: of the file, for people.
        size_bytes, digest: of the text or of the tokens, in hex. A text's digest is its
            BLAKE2b-256, that of tokens the root of `specs.merkle`.
        tokenizer: name of a tokenizer of the zoo, or the one that made the tokens; left out for
            bytes.
        answers: left out where all tokens are learned.

    Raises:
        ValueError: the tokenizer is unknown, or tokens and their bytes do not go together.
    """

    source: Source
    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=2, le=MOST_BYTES)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tokenizer: str | TokenizerSpec | msgspec.UnsetType = msgspec.UNSET
    answers: Answers | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.source == "tokens":
            self._check_tokens()
            return
        if isinstance(self.tokenizer, TokenizerSpec):
            raise ValueError(f"a text of the source {self.source} brings no tokenizer")
        if self.masked:
            raise ValueError(f"a text of the source {self.source} has no answers")
        if self.tokenizer == tokens.DEFAULT:  # one run, one spelling
            raise ValueError(f"tokenizer {tokens.DEFAULT} is the one without a name: leave it out")
        if self.tokenizer_name not in tokens.TOKENIZERS:
            known = ", ".join(tokens.TOKENIZERS)
            name = self.tokenizer_name[:40]
            raise ValueError(f"tokenizer {name!r} is unknown; known are {known}")

    def _check_tokens(self) -> None:
        if isinstance(self.tokenizer, str):
            raise ValueError("tokens bring their tokenizer; it has no name")
        if self.size_bytes % self.token_bytes:
            raise ValueError(f"{self.size_bytes} bytes end within a token")
        if isinstance(self.answers, Answers):
            windows = window_count(self.tokens, self.answers.context)
            if self.tokens != windows * self.answers.context + 1:
                raise ValueError(f"{self.tokens} tokens end within a window of conversations")
            if not windows <= self.answers.learned < self.tokens:
                raise ValueError(f"{self.answers.learned} of {self.tokens} tokens are no answers")

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in the zoo; that of bytes where tokens bring their own."""
        return self.tokenizer if isinstance(self.tokenizer, str) else tokens.DEFAULT

    @property
    def brought(self) -> TokenizerSpec | None:
        """The tokenizer that travels with the tokens; None: bytes, or one of the zoo."""
        return self.tokenizer if isinstance(self.tokenizer, TokenizerSpec) else None

    @property
    def vocab(self) -> int:
        """Number of tokens of the tokenizer."""
        brought = self.brought
        return brought.vocab if brought else tokens.TOKENIZERS[self.tokenizer_name]

    @property
    def masked(self) -> bool:
        """Whether only answers are learned."""
        return self.answers is not msgspec.UNSET

    @property
    def token_bytes(self) -> int:
        """Bytes of a token of token data."""
        return token_bytes(self.vocab, masked=self.masked)

    @property
    def tokens(self) -> int:
        """Number of tokens of token data."""
        return self.size_bytes // self.token_bytes

    @property
    def loss_weight(self) -> float:
        """What the loss of a learned token is multiplied with: targets by learned targets.

        So a step's gradient, divided by all its targets, is that of the mean over what is learned,
        however answers fall among microbatches, and nobody has to be told how many there were.
        """
        return (self.tokens - 1) / self.answers.learned if isinstance(self.answers, Answers) else 1

    @property
    def kept_bytes(self) -> int:
        """Size of the file that volunteers copy: a text, or tokens and their tokenizer."""
        brought = self.brought
        return self.size_bytes + (brought.size_bytes if brought else 0)

    def holds_samples(self, context: int) -> bool:
        """Whether both parts hold a sample of that context, as far as the size tells."""
        if self.source == "tokens":
            return window_count(self.tokens, context) > 1
        return holds_samples(self.size_bytes, context)  # a token is a byte or more


def training_size(size: int) -> int:
    """Return how many of so many tokens train; the others are held out."""
    return int(TRAINING_SHARE * size)


def holds_samples(size: int, context: int) -> bool:
    """Whether both parts of a text of so many tokens hold a sample: a context and its target."""
    training = training_size(size)
    return min(training, size - training) > context
