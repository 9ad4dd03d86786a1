"""A rival that fails is tried again, and every failure is kept: it belongs to the figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.bench.rivals import environment
from tests.bench.rivals.records import Records
from tests.bench.rivals.swarm_of_peers import PeerFailed

ATTEMPTS = 2
"""hivemind's server sometimes hangs while it starts."""
LAST_WORDS = 300

T = TypeVar("T")
Say = Callable[[str], None]


def attempt(run: Callable[[Path], T], records: Records, part: str, what: str, say: Say) -> T | None:
    """Return what ``run`` measures in a folder of its own; None when it failed every time."""
    for number in range(1, ATTEMPTS + 1):
        try:
            with tempfile.TemporaryDirectory(prefix="vol") as folder:
                return run(Path(folder))
        except environment.Missing as missing:
            if str(missing) not in records.notes(part):
                records.note(part, str(missing))
            say(f"  {missing}")
            return None
        except PeerFailed as failure:
            problem, _, rest = str(failure).partition("\n")
            words = f"{what}, attempt {number}: {problem}; last words: {rest[-LAST_WORDS:]}"
            records.note(part, words)
            say(f"  failed: {failure}")
    return None
