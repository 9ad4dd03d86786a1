"""The mailbox between a source and the interface: holds the newest update, never a queue.

Shared by two threads. Bounded: updates that were not read in time are merged into one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from client.control.snapshot import InviteView
from client.control.updates import Curve, Update
from client.store.last_run import Ending

MAX_EVENTS = 2000
MAX_ANSWERS = 16
LinkState = Literal["connecting", "live", "lost", "ended"]


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the source."""

    state: LinkState
    """``live``, ``connecting``, ``lost``: trying again, ``ended``: the node has ended, until it is
    started again."""
    words: str = ""
    ending: Ending | None = None
    """The end of the node, where it is known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command."""

    method: str
    ok: bool
    words: str
    invite: InviteView | None = None
    """The answer to ``invite``."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """All news since the last read."""

    update: Update | None
    link: Link
    curve: Curve | None = None
    answers: Sequence[Answer] = ()


@dataclass
class Mailbox:
    """A slot for the newest update, and room for a few answers."""

    link: Link = Link("connecting")
    _update: Update | None = None
    _curve: Curve | None = None
    _answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=MAX_ANSWERS))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _news: bool = False

    def put(self, update: Update) -> None:
        """Leave an update; one that was not taken yet is merged into it."""
        with self._lock:
            self._update = merge(self._update, update) if self._update else update
            self._news = True

    def put_link(self, link: Link) -> None:
        """Set the state of the source."""
        with self._lock:
            self._news |= link != self.link
            self.link = link

    def put_curve(self, curve: Curve) -> None:
        """Leave the node's history of the run."""
        with self._lock:
            self._curve, self._news = curve, True

    def put_answer(self, answer: Answer) -> None:
        """Leave the result of a command."""
        with self._lock:
            self._answers.append(answer)
            self._news = True

    def take(self) -> Delivery | None:
        """Return the news, None without any."""
        with self._lock:
            if not self._news:
                return None
            found = Delivery(self._update, self.link, self._curve, tuple(self._answers))
            self._update, self._curve, self._news = None, None, False
            self._answers.clear()
            return found


def merge(older: Update, newer: Update) -> Update:
    """Return the newer update with those parts of the older one that it does not repeat."""
    if older.snapshot.peer != newer.snapshot.peer:
        return newer
    if older.snapshot.pid != newer.snapshot.pid:  # restarted: it numbers events anew
        missed = older.missed + newer.missed + len(older.events)
        return msgspec.structs.replace(newer, missed=missed)
    last = older.events[-1].seq if older.events else 0
    events = [*older.events, *(event for event in newer.events if event.seq > last)]
    dropped = max(0, len(events) - MAX_EVENTS)
    return msgspec.structs.replace(
        newer,
        events=events[dropped:],
        missed=older.missed + newer.missed + dropped,
        matches=newer.matches or older.matches,
    )
