"""Which part of a mixture a sample is from: weighted shares, exact to within one sample.

Token data may be of several parts, one behind the other in one space of leaves. Windows are cut in
each part from its first token, so none has tokens of two; a leaf may have the end of one part and
the beginning of the next. A part's windows are held out and ordered by its own digest, as they are
where it is trained on alone: what was held out there is held out here.

Weights are shares of the samples, and so of the tokens seen. The parts take turns in a cycle of as
many samples as the weights' sum, of which each part has as many as its weight. After any number n
of samples a part of the share p has had more than n p - 1 and less than n p + 1. Such a cycle
always exists (R. Tijdeman, "The chairman assignment problem", 1980). It is found by giving each
place to the part whose next sample is due first: sample j of weight w, in a cycle of W, must not
come before place floor(j W / w) and not after ceil((j + 1) W / w) - 1.

The cycle is worked out once. Then a sample's part, and its number within the part, follow from its
number with one division, for any number.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import Annotated

from msgspec import Meta

from model_zoo.specs.description import Description
from model_zoo.specs.windows import Windows

MOST_PARTS = 64
MOST_SHARES = 1 << 16
"""Sum of the weights: the length of a cycle."""


class Part(Description, frozen=True):
    """A part of the tokens.

    Fields:
        name: for people.
        size_bytes, digest: of the part alone; the digest is its root, in hex.
        weight: its share, by the sum of all weights.
        learned: as in `specs.data.Answers`, of this part; None: all tokens are learned.
    """

    name: Annotated[str, Meta(max_length=40)]
    size_bytes: Annotated[int, Meta(ge=2, le=2**44)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    weight: Annotated[int, Meta(ge=1, lt=MOST_SHARES)]
    learned: Annotated[int, Meta(ge=1, le=2**40)] | None = None


class Schedule:
    """See the module's docstring.

    Args:
        weights: of the parts, positive, at most `MOST_SHARES` together.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = tuple(weights)
        self._parts, self._earlier = _cycle(self._weights)

    def __call__(self, sample: int) -> tuple[int, int]:
        """Return the part of a sample and the sample's number within it; all count from 0."""
        cycle, place = divmod(sample, len(self._parts))
        part = self._parts[place]
        return part, cycle * self._weights[part] + self._earlier[place]


class Mixture:
    """The windows of a mixture for one length of context; has the methods of `Windows`.

    Args:
        parts: one behind the other.
        token_bytes: bytes of a token.
        context: T.

    Raises:
        ValueError: a part has fewer than two windows.
    """

    def __init__(self, parts: Sequence[Part], token_bytes: int, context: int) -> None:
        sizes = [part.size_bytes // token_bytes for part in parts]
        self._starts = list(accumulate(sizes, initial=0))
        self._windows = [
            Windows(size, context, part.digest) for size, part in zip(sizes, parts, strict=True)
        ]
        self._schedule = Schedule([part.weight for part in parts])

    def training_start(self, sample: int, seed: int) -> int:
        part, number = self._schedule(sample)
        return self._starts[part] + self._windows[part].training_start(number, seed)

    def held_out_start(self, sample: int) -> int:
        """See `Windows`; the parts take turns as in training."""
        part, number = self._schedule(sample)
        return self._starts[part] + self._windows[part].held_out_start(number)


@lru_cache(maxsize=8)
def _cycle(weights: tuple[int, ...]) -> tuple[array[int], array[int]]:
    """Return, for each place of a cycle, its part and how often that part came before."""
    total = sum(weights)
    if not 1 <= len(weights) <= MOST_PARTS or min(weights) < 1 or total > MOST_SHARES:
        raise ValueError(f"no cycle of {total} samples for {len(weights)} parts")
    parts, earlier = array("B"), array("H")
    counts = [0] * len(weights)
    early = [(0, part) for part in range(len(weights))]  # the first place of its next sample
    due: list[tuple[int, int]] = []  # what may come now: the end of its places
    for place in range(total):
        while early and early[0][0] <= place:
            _, part = heappop(early)
            heappush(due, (-(-(counts[part] + 1) * total // weights[part]), part))
        _, part = heappop(due)
        parts.append(part)
        earlier.append(counts[part])
        counts[part] += 1
        if counts[part] < weights[part]:
            heappush(early, (counts[part] * total // weights[part], part))
    return parts, earlier
