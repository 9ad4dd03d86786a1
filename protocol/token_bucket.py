"""Token buckets: so many at once, and then so many a second. Pure; the clock is passed in.

What strangers may cost us is bounded so: letters that are verified, hosts that are dialled, bytes
that are taken. Each kind has its own rate. A table of buckets is bounded, as peer ids are free.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rate:
    """So many tokens a second (or per unit of the clock that is passed in), and so many at once."""

    per_s: float
    burst: float


class TokenBucket:
    """Tokens that were not taken yet; it starts full. ``now`` is monotonic seconds.

    What is taken, or reserved and waited for, never exceeds ``burst + per_s * time``.
    """

    __slots__ = ("_burst", "_counted", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._counted = burst, now

    def take(self, count: float, now: float) -> bool:
        """Take tokens; False, and none taken, if there are fewer."""
        if not self.has(count, now):
            return False
        self._tokens -= count
        return True

    def has(self, count: float, now: float) -> bool:
        """Whether ``take`` would take so many."""
        self._refill(now)
        return self._tokens >= count

    def reserve(self, count: float, now: float) -> float:
        """Take tokens, perhaps on credit; return the seconds to wait for them."""
        self._refill(now)
        self._tokens -= count
        return max(0.0, -self._tokens / self._per_s)

    def wait_s(self, count: float, now: float) -> float:
        """Return the seconds that ``reserve`` would return, and reserve nothing."""
        self._refill(now)
        return max(0.0, (count - self._tokens) / self._per_s)

    def _refill(self, now: float) -> None:
        earned = self._per_s * max(0.0, now - self._counted)
        self._counted = max(now, self._counted)
        self._tokens = min(self._burst, self._tokens + earned)


class TokenBuckets(Generic[Key]):
    """A bucket for each key; of more than ``most`` the one unused for longest is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buckets: OrderedDict[Key, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, rates: Mapping[Key, Rate], now: float, count: float = 1) -> bool:
        """Take tokens for each of some keys, or for none if one of them has fewer."""
        buckets = [self._bucket(key, rate, now) for key, rate in rates.items()]
        if not all(bucket.has(count, now) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.take(count, now)
        return True

    def has(self, key: Key, rate: Rate, now: float) -> bool:
        """Whether ``take`` would take a token for a key."""
        return self._bucket(key, rate, now).has(1, now)

    def wait_s(self, key: Key, now: float) -> float:
        """Return the seconds that ``reserve`` would return; a key without a bucket gets none."""
        return self._buckets[key].wait_s(1, now) if key in self._buckets else 0.0

    def reserve(self, key: Key, rate: Rate, now: float) -> float:
        """Take a token for a key, perhaps on credit; return the seconds to wait for it."""
        return self._bucket(key, rate, now).reserve(1, now)

    def _bucket(self, key: Key, rate: Rate, now: float) -> TokenBucket:
        if key not in self._buckets:
            self._buckets[key] = TokenBucket(rate.per_s, rate.burst, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return self._buckets[key]
