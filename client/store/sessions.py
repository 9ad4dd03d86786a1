"""Lengths of this volunteer's sessions, and the expected rest of the present one.

One small file beside the identity: lengths of past sessions, and of the present one so far. The
latter is written about once a minute, so that a session that ends with a power cut also counts,
except its last minute. A damaged file counts as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from client.store.paths import Entry
from client.store.persisted import Persisted
from client.store.records import MAX_SESSIONS, KeptSessions

FILE_NAME: Final = Entry.SESSIONS
SHORTEST_S: Final = 10
"""Shorter sessions are ignored as attempts to start."""
PRIOR_S: Final = 1800.0
"""Expected session of an unknown volunteer; it counts as one past session."""


class SessionHistory:
    """The history of one identity; at most one process has it open (the identity's lock)."""

    def __init__(self, folder: Path) -> None:
        self._file = Persisted(folder / FILE_NAME, KeptSessions)
        known = self._file.peek() or KeptSessions()
        ended = (known.running,) if known.running >= SHORTEST_S else ()
        self.past = (*known.past, *ended)[-MAX_SESSIONS:]
        """Lengths of the sessions before this one, seconds, oldest first."""

    def beat(self, length_s: float) -> None:
        """Save the length of the present session, as far as the disk allows it."""
        self._file.keep(KeptSessions(self.past, max(0, int(length_s))))


def expected_rest_s(past: Sequence[int], length_s: float, limit_s: float | None = None) -> float:
    """Return the mean rest of those past sessions that lasted as long as the present one.

    The mean residual life of the empirical distribution, with ``PRIOR_S`` as one more observation.

    Args:
        past: lengths of past sessions, seconds.
        length_s: length of the present session, seconds.
        limit_s: seconds until the owner wants to stop, if known.
    """
    rests = [PRIOR_S, *(lasted - length_s for lasted in past if lasted >= length_s)]
    expected = sum(rests) / len(rests)
    return expected if limit_s is None else max(0.0, min(expected, limit_s))
