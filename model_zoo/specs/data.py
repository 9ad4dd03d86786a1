"""The training data of a run: tokens, what made them, and which of them are learned."""

from fractions import Fraction
from math import gcd
from typing import Annotated

from msgspec import Meta

from model_zoo.specs.description import Description
from model_zoo.specs.mixture import MOST_PARTS, MOST_SHARES, Mixture, Part, Schedule
from model_zoo.specs.tokens import BYTE_VOCAB, TokenizerSpec, token_bytes
from model_zoo.specs.windows import Windows, training_windows, window_count

MOST_BYTES = 2**44
"""17.6 TB."""


class Answers(Description, frozen=True):
    """Says that tokens are conversations of which only the answers are learned.

    Fields:
        context: tokens of a window; each has as many conversations as fit, whose first tokens say
            so, and is padded at its end.
        learned: tokens of the whole data that are learned; of each window at least one.
    """

    context: Annotated[int, Meta(ge=2, le=2**17)]
    learned: Annotated[int, Meta(ge=1, le=2**40)]


class DataSpec(Description, frozen=True):
    """The tokens of a run; any peer that has some can serve them.

    Fields:
        name: of what they were made of, for people.
        size_bytes, digest: of the tokens; the digest is the root of `specs.merkle`, in hex.
        tokenizer: what made the tokens, and travels with them; None: they are bytes of text.
        answers: None: all tokens are learned.
        parts: of a mixture, in the order in which they lie; empty: it is none.

    Raises:
        ValueError: tokens, their bytes and their parts do not go together.
    """

    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=2, le=MOST_BYTES)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tokenizer: TokenizerSpec | None = None
    answers: Answers | None = None
    parts: Annotated[tuple[Part, ...], Meta(min_length=2, max_length=MOST_PARTS)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size_bytes % self.token_bytes:
            raise ValueError(f"{self.size_bytes} bytes end within a token")
        if self.parts:
            self._check_parts(self.parts)
        elif self.answers is not None:
            _check_answers(self.tokens, self.answers.learned, self.answers.context)

    def _check_parts(self, parts: tuple[Part, ...]) -> None:
        if sum(part.size_bytes for part in parts) != self.size_bytes:
            raise ValueError("the parts do not add up to the data")
        if any(part.size_bytes % self.token_bytes for part in parts):
            raise ValueError("a part ends within a token")
        if len({part.digest for part in parts}) != len(parts):
            raise ValueError("two parts are the same")
        weights = [part.weight for part in parts]
        if sum(weights) > MOST_SHARES:
            raise ValueError(f"the weights add up to more than {MOST_SHARES}")
        if gcd(*weights) != 1:  # one mixture, one spelling
            raise ValueError("the weights have a common divisor")
        learned = [part.learned for part in parts if part.learned is not None]
        if len(learned) != (len(parts) if self.masked else 0):
            raise ValueError("of some parts only answers are learned, of others everything")
        if self.answers is not None:
            for part, answers in zip(parts, learned, strict=True):
                _check_answers(self.part_tokens(part), answers, self.answers.context)
            if sum(learned) != self.answers.learned:
                raise ValueError("the answers of the parts do not add up")

    @property
    def vocab(self) -> int:
        """Number of tokens of the tokenizer."""
        return self.tokenizer.vocab if self.tokenizer else BYTE_VOCAB

    @property
    def masked(self) -> bool:
        """Whether only answers are learned."""
        return self.answers is not None

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return token_bytes(self.vocab, masked=self.masked)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.size_bytes // self.token_bytes

    @property
    def loss_weight(self) -> float:
        """What the loss of a learned token is multiplied with: targets by learned targets.

        So a step's gradient, divided by all its targets, is that of the mean over what is learned,
        however answers fall among microbatches, and nobody has to be told how many there were. Of a
        mixture it is the mean over what is learned of the samples, in which each part has the share
        of its weight.
        """
        if self.parts:
            return self._mixed_loss_weight(self.parts)
        return (self.tokens - 1) / self.answers.learned if self.answers else 1

    def _mixed_loss_weight(self, parts: tuple[Part, ...]) -> float:
        if not self.masked:
            return 1
        learned = Fraction()  # exact, so that it is the same everywhere
        for part in parts:
            learned += Fraction(part.weight * (part.learned or 0), self.part_tokens(part) - 1)
        return float(sum(part.weight for part in parts) / learned)

    @property
    def kept_bytes(self) -> int:
        """Size of all that volunteers copy: tokens and their tokenizer."""
        return self.size_bytes + (self.tokenizer.size_bytes if self.tokenizer else 0)

    def windows(self, context: int) -> Windows | Mixture:
        """Return which tokens the samples have.

        Raises:
            ValueError: there are too few for two windows, of a mixture in one of its parts.
        """
        if self.parts:
            return Mixture(self.parts, self.token_bytes, context)
        return Windows(self.tokens, context, self.digest)

    def part_of(self, sample: int) -> Part | None:
        """Return the part of a mixture that a sample is from, of a run or held out."""
        if not self.parts:
            return None
        number, _ = Schedule([part.weight for part in self.parts])(sample)
        return self.parts[number]

    def epochs(self, samples: float, context: int) -> list[float]:
        """Return how many times so many samples read each part of a mixture."""
        total = sum(part.weight for part in self.parts)
        return [
            samples * part.weight / total / training_windows(self.part_tokens(part), context)
            for part in self.parts
        ]

    def part_tokens(self, part: Part) -> int:
        """Return the number of tokens of a part."""
        return part.size_bytes // self.token_bytes

    def holds_samples(self, context: int) -> bool:
        """Whether training and held-out data have a sample of that context, of a mixture in each
        part, as far as the sizes tell."""
        if self.parts:
            return all(window_count(self.part_tokens(part), context) > 1 for part in self.parts)
        return window_count(self.tokens, context) > 1


def _check_answers(tokens: int, learned: int, context: int) -> None:
    windows = window_count(tokens, context)
    if tokens != windows * context + 1:
        raise ValueError(f"{tokens} tokens end within a window of conversations")
    if not windows <= learned < tokens:
        raise ValueError(f"{learned} of {tokens} tokens are no answers")
