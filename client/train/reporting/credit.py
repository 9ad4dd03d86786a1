"""This volunteer's work for a swarm, summed over all its sessions and saved on disk.

It is measured by the volunteer itself, for its owner; other members do not rely on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from client.control.snapshot import CreditView
from client.store.persisted import Persisted
from client.train.reporting.counters import Counters


class Credit:
    """See the module's docstring.

    Args:
        path: the file; an unreadable one counts as empty.
        counters: the counters of this session.
        tokens: tokens per microbatch.
        sent_bytes: returns the bytes sent in this session.
    """

    def __init__(
        self, path: Path, counters: Counters, tokens: int, sent_bytes: Callable[[], int]
    ) -> None:
        self._file, self._counters, self._tokens = Persisted(path, CreditView), counters, tokens
        self._sent_bytes = sent_bytes
        self._before = self._file.peek() or CreditView(since=time.time())

    def view(self) -> CreditView:
        """Return the sum up to now."""
        before, counted = self._before, self._counters.counted
        return CreditView(
            microbatches=before.microbatches + counted,
            tokens=before.tokens + counted * self._tokens,
            sent_bytes=before.sent_bytes + self._sent_bytes(),
            since=before.since,
        )

    def save(self) -> None:
        """Write the file."""
        self._file.keep(self.view())
