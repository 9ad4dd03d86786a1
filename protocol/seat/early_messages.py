"""Messages of rounds to come, kept by a seat that has not got there yet.

A replica that closes a step late, or an observer that still downloads, hears of later rounds first.
Everybody has one plan, one commit, one commitment and one broadcast of each of its segments per
attempt to say; more are not kept, nor what is further ahead than siblings can be.
"""

from protocol.ids import PeerId
from protocol.wire.messages import Reduced, RoundMessage

MAX_STEPS_AHEAD = 64
"""Rounds an observer keeps while it downloads; beyond, it must start over."""
SERVING_STEPS_AHEAD = 4
"""Rounds that siblings can close without one that serves before it has to start over."""
EARLY_ATTEMPTS = 5
"""Attempts of which one sender's messages are kept, of each round."""


_What = tuple[PeerId, type[RoundMessage], int, int]
"""Sender, kind, attempt and segment: what is said once."""


def most_of_sender(segments: int) -> int:
    """Return how many messages of a sender and round are kept where it owns so many segments."""
    return EARLY_ATTEMPTS * (3 + segments)


class EarlyMessages:
    """Keeps messages by step, in the order in which they came.

    Args:
        segments: those that one member owns at most.
    """

    def __init__(self, segments: int) -> None:
        self._most = most_of_sender(segments)
        self._kept: dict[int, dict[_What, tuple[RoundMessage, bytes]]] = {}

    def keep(self, sender: PeerId, message: RoundMessage, digest: bytes) -> bool:
        """Keep ``message`` of ``sender`` with its payload's ``digest``; False if it is a repetition
        or its sender's limit is reached."""
        kept = self._kept.setdefault(message.step, {})
        segment = message.segment if isinstance(message, Reduced) else 0
        what = sender, type(message), message.attempt, segment
        if what in kept or sum(of[0] == sender for of in kept) >= self._most:
            return False
        kept[what] = message, digest
        return True

    def take(self, step: int) -> list[tuple[PeerId, RoundMessage, bytes]]:
        """Return what was kept of a step, and forget it."""
        return [(of[0], *kept) for of, kept in self._kept.pop(step, {}).items()]
