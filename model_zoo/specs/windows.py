"""Which tokens a sample of token data has: every window once an epoch, in a keyed order.

Window w of context T starts at token w T and has T + 1 tokens: inputs and targets. A permutation
that depends on the data alone names the windows that are held out, in every run on the data. The
others come in another order in each epoch of a run, so that no window comes twice before all have
come once. Everything is computed from the numbers: nothing is stored, and anybody can work out any
sample.

An order keeps close together what lies close together, so that a volunteer that has not the whole
data fetches each part of it once an epoch and not once a sample. Blocks of 131,072 tokens are
permuted and taken 256 at a time, and the windows of these 256 are permuted: samples that follow one
another are from 256 random places, and 32 million tokens go by before the next 256.

A permutation is a Feistel network over the smallest power of two that holds all windows; a result
that is no window is permuted again until it is one. It is exact integer arithmetic, the same on
every machine. It spreads; it hides nothing.
"""

from functools import lru_cache
from hashlib import blake2b

from model_zoo.specs.merkle import LEAF_BYTES

HELD_OUT_SHARE = 10
MOST_HELD_OUT = 8192
"""One window in ten is held out, but no more than this."""
BLOCK_TOKENS = 1 << 17
"""As many as a leaf of the data has at two bytes a token."""
GROUP_BLOCKS = 256
_ROUNDS = 8
_WORD = (1 << 64) - 1
_MULTIPLIERS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
"""Odd numbers with well mixed bits: the golden ratio's, and one of Pelle Evensen's."""


class Permutation:
    """A bijection of 0, 1, … size - 1, determined by its size and a key.

    Args:
        size: of its domain, from 1 to 2^62.
        key: any words.
    """

    def __init__(self, size: int, key: str) -> None:
        if not 1 <= size <= 1 << 62:
            raise ValueError(f"a permutation has 1 to 2^62 places, not {size}")
        words = blake2b(key.encode(), digest_size=8 * _ROUNDS, person=b"volunteer order").digest()
        keys = [int.from_bytes(words[at : at + 8], "little") for at in range(0, len(words), 8)]
        bits = max(2, (size - 1).bit_length())
        right = bits // 2
        self._size, self._split = size, right
        self._low = (1 << right) - 1
        halves = (bits - right, right)
        # round by round the halves change in turn: shift so that a word's top bits remain
        self._rounds = [(key, 64 - halves[at % 2]) for at, key in enumerate(keys)]

    def __call__(self, place: int) -> int:
        """Return what stands at a place.

        Raises:
            ValueError: the place is not below the size.
        """
        if not 0 <= place < self._size:
            raise ValueError(f"{place} is not one of {self._size} places")
        first, second = _MULTIPLIERS
        while True:
            changed, other = place >> self._split, place & self._low
            for key, shift in self._rounds:
                word = (other + key) * first & _WORD
                word = (word ^ word >> 32) * second & _WORD
                changed, other = other, changed ^ word >> shift
            place = changed << self._split | other
            if place < self._size:
                return place

    def place_of(self, value: int) -> int:
        """Return the place of one of 0, 1, … size - 1: the inverse."""
        first, second = _MULTIPLIERS
        while True:
            other, changed = value >> self._split, value & self._low
            for key, shift in reversed(self._rounds):
                word = (other + key) * first & _WORD
                word = (word ^ word >> 32) * second & _WORD
                changed, other = other, changed ^ word >> shift
            value = other << self._split | changed
            if value < self._size:
                return value


class EpochOrder:
    """A bijection of 0, 1, … count - 1, the order of an epoch; see the module's docstring.

    Args:
        count: number of windows.
        per_block: windows in a block.
        key: any words.
    """

    def __init__(self, count: int, per_block: int, key: str) -> None:
        self._per_block, self._key = per_block, key
        self._whole = count // per_block
        self._blocks = Permutation(max(1, self._whole), key)
        self._group = GROUP_BLOCKS * per_block
        self._last = max(1, self._whole // GROUP_BLOCKS) - 1
        self._last_size = count - self._last * self._group  # what makes no whole group goes with it
        self._inside = lru_cache(maxsize=4)(self._new_group)

    def __call__(self, place: int) -> int:
        """Return the window at a place."""
        group = min(place // self._group, self._last)
        inside = self._inside(group)(place - group * self._group)
        block, window = divmod(inside, self._per_block)
        block += group * GROUP_BLOCKS
        if block < self._whole:
            block = self._blocks(block)
        return block * self._per_block + window

    def _new_group(self, group: int) -> Permutation:
        size = self._last_size if group == self._last else self._group
        return Permutation(size, f"group {group} of {self._key}")


class Windows:
    """The windows of token data for one length of context.

    Args:
        tokens: number of tokens.
        context: T.
        digest: of the data, in hex.

    Raises:
        ValueError: there are fewer than two windows.

    Attributes:
        held_out, training: number of windows of each kind.
    """

    def __init__(self, tokens: int, context: int, digest: str) -> None:
        count = window_count(tokens, context)
        if count < 2:
            raise ValueError(f"{tokens} tokens have no two windows of {context}")
        self.training = training_windows(tokens, context)
        self.held_out = count - self.training
        self._count, self._context, self._digest = count, context, digest
        self._all = Permutation(count, f"windows {digest} {context}")

    def training_start(self, sample: int, seed: int) -> int:
        """Return the first token of a run's sample of that number, counted from 0."""
        epoch, place = divmod(sample, self.training)
        order = _epoch_order(self._count, self._per_block, self._digest, seed, epoch)
        window = order(place)
        # the last places of the order are free: each stands in for one that is held out
        while (number := self._all.place_of(window)) < self.held_out:
            window = order(self.training + number)
        return self._context * window

    def held_out_start(self, sample: int) -> int:
        """Return the first token of a held-out sample; they repeat after ``held_out``."""
        return self._context * self._all(sample % self.held_out)

    @property
    def _per_block(self) -> int:
        return max(1, BLOCK_TOKENS // self._context)


def window_count(tokens: int, context: int) -> int:
    """Return how many windows so many tokens have: the last one has a target for every input."""
    return max(0, (tokens - 1) // context)


def training_windows(tokens: int, context: int) -> int:
    """Return how many windows so many tokens have that are not held out."""
    count = window_count(tokens, context)
    return count - max(1, min(count // HELD_OUT_SHARE, MOST_HELD_OUT))


def leaves_of(start: int, context: int, token_bytes: int) -> range:
    """Return the leaves of the data that a window lies in.

    Args:
        start: its first token.
        context: T; it has T + 1 tokens.
        token_bytes: bytes of a token.
    """
    last_byte = (start + context + 1) * token_bytes - 1
    return range(start * token_bytes // LEAF_BYTES, last_byte // LEAF_BYTES + 1)


@lru_cache(maxsize=256)  # two epochs of each part of the largest mixture
def _epoch_order(count: int, per_block: int, digest: str, seed: int, epoch: int) -> EpochOrder:
    return EpochOrder(count, per_block, f"epoch {epoch} of {digest} with seed {seed}")
