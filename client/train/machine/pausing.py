"""Decides whether the node may hold stages now: the owner's pause and the holds of limits.

The owner's pause is kept on disk and ends on command or at its time. A hold (of the limits: idle
only, on battery, quota; or without room on the disk) ends with its cause. ``Training`` acts on the
result.
"""

import time
from collections.abc import Callable
from pathlib import Path

import trio

from client.control.snapshot import PauseView
from client.store.paths import Entry
from client.store.persisted import Persisted
from protocol.effects import Explain

LOOK_S = 1.0
"""The wall clock is looked at, not slept for: machines are suspended."""
BY_OWNER = "you paused it"


class Pauses:
    """See the module's docstring; ``folder`` keeps the owner's pause, ``wall`` returns Unix
    seconds."""

    def __init__(
        self,
        folder: Path,
        explain: Callable[[Explain], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._explain, self._wall = explain, wall
        self._folder, self._file = folder, Persisted(folder / Entry.PAUSED, PauseView)
        self._own = self._file.peek()
        self._holds: dict[str, tuple[PauseView, Callable[[], bool]]] = {}
        """By cause; whether it is over by itself."""
        self._changed = trio.lowlevel.ParkingLot()
        self._end_if_due()

    @property
    def now(self) -> PauseView | None:
        """The pause in force, the owner's first; None: stages may be held."""
        return self._own or next((pause for pause, _ in self._holds.values()), None)

    def pause(self, until: float | None, reason: str) -> PauseView:
        """Begin the owner's pause, until a time (Unix seconds) or until ``resume``."""
        pause = PauseView(reason=reason or BY_OWNER, since=self._wall(), until=until)
        self._set_own(pause)
        self._say(f"paused: {pause.reason}")
        self._end_if_due()
        return pause

    def resume(self) -> bool:
        """End the owner's pause; False: there was none."""
        if self._own is None:
            return False
        self._set_own(None)
        held = self.now
        self._say(f"still paused: {held.reason}" if held else "resumed")
        return True

    def hold(
        self,
        cause: str,
        reason: str,
        until: float | None = None,
        ends: Callable[[], bool] = bool,
    ) -> None:
        """Hold no stage because of a limit, until ``release``; the owner's pause is separate.

        Args:
            cause: identifies the limit.
            until: expected end, Unix seconds, shown to the owner.
            ends: says that the cause is over, which is released then.
        """
        before = self._holds[cause][0] if cause in self._holds else None
        since = self._wall() if before is None else before.since
        pause = PauseView(reason=reason, since=since, until=until, by_owner=False)
        self._holds[cause] = pause, ends
        if before is None or before.reason != reason:
            self._say(f"paused: {reason}")
        if before is None:
            self._changed.unpark_all()

    def release(self, cause: str) -> None:
        """The cause no longer applies."""
        if self._holds.pop(cause, None) is not None:
            self._say("resumed" if self.now is None else "one reason to pause has ended")
            self._changed.unpark_all()

    async def wait_paused(self) -> None:
        """Wait until no stage may be held."""
        while self.now is None:
            await self._changed.park()

    async def wait_clear(self) -> None:
        """Wait until stages may be held."""
        while self.now is not None:
            await self._changed.park()

    async def run(self) -> None:
        """End pauses when their time or their cause is over, until cancelled."""
        while True:
            self._end_if_due()
            for cause in [cause for cause, (_, ended) in self._holds.items() if ended()]:
                self.release(cause)
            await trio.sleep(LOOK_S)

    def _end_if_due(self) -> None:
        own = self._own
        if own is not None and own.until is not None and own.until <= self._wall():
            self.resume()

    def _set_own(self, pause: PauseView | None) -> None:
        self._own = pause
        try:
            if pause is None:
                self._file.remove()
            else:
                self._file.save(pause)
        except OSError as error:
            words = (
                f"the pause cannot be saved and ends with this run: {error.strerror}; "
                f"make room, or make {self._folder} writable"
            )
            self._explain(Explain("swarm", words, "error"))
        self._changed.unpark_all()

    def _say(self, words: str) -> None:
        self._explain(Explain("swarm", words))
