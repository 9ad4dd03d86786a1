"""Lengths of this volunteer's sessions, and the expected rest of the present one.

One small file beside the identity: lengths of past sessions, and of the present one so far. The
latter is written about once a minute, so that a session that ends with a power cut also counts,
except its last minute. A damaged file counts as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from client.store.paths import Entry

FILE_NAME: Final = Entry.SESSIONS
MAX_SESSIONS: Final = 64
MAX_FILE_BYTES: Final = 16 * 1024
SHORTEST_S: Final = 10
"""Shorter sessions are ignored as attempts to start."""
PRIOR_S: Final = 1800.0
"""Expected session of an unknown volunteer; it counts as one past session."""

Seconds = Annotated[int, Meta(ge=0, le=10**9)]


class _File(Struct, frozen=True):
    past: Annotated[tuple[Seconds, ...], Meta(max_length=MAX_SESSIONS)] = ()
    """Oldest first."""
    running: Seconds = 0


class SessionHistory:
    """The history of one identity; at most one process has it open (the identity's lock)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        known = _load(self._path)
        ended = (known.running,) if known.running >= SHORTEST_S else ()
        self.past = (*known.past, *ended)[-MAX_SESSIONS:]
        """Lengths of the sessions before this one, seconds, oldest first."""

    def beat(self, length_s: float) -> None:
        """Save the length of the present session.

        Raises:
            OSError: the disk is full or the folder cannot be written; the old file stays.
        """
        write_atomic(self._path, msgspec.json.encode(_File(self.past, max(0, int(length_s)))))

    def expected_rest_s(self, length_s: float, limit_s: float | None = None) -> float:
        """Return the seconds that the present session may still last; see ``expected_rest_s``."""
        return expected_rest_s(self.past, length_s, limit_s)


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


def _load(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_File)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _File()
