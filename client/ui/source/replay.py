"""Plays a recorded run at its own pace or faster."""

from __future__ import annotations

import threading
from pathlib import Path

from client.control.updates import Update
from client.ui.source.mailbox import Answer, Link, LinkState, Mailbox
from client.ui.source.recording import read_header, read_updates

MAX_GAP_S = 5.0
"""Longest silence that is played; longer ones are cut to it."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
SLICE_S = 0.05


class ReplaySource:
    """A recording.

    Args:
        path: the JSONL file.
        speed: times real time.

    Raises:
        UserError: not a recording.
    """

    live = False

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self._path = path
        self.header = read_header(path)
        self.speed = speed
        self._held = threading.Event()
        self._step = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._mailbox = Mailbox()

    @property
    def name(self) -> str:
        """The file's name."""
        return self._path.name

    def start(self, mailbox: Mailbox) -> None:
        """Begin to play."""
        self._mailbox = mailbox
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop playing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def command(self, method: str, **params: object) -> None:
        """``hold``, ``next``, ``faster``, ``slower``; a recording has no node for other
        commands."""
        match method:
            case "hold":
                (self._held.clear if self._held.is_set() else self._held.set)()
            case "next":
                self._held.set()
                self._step.set()
            case "faster":
                self.speed = min((s for s in SPEEDS if s > self.speed), default=SPEEDS[-1])
            case "slower":
                self.speed = max((s for s in SPEEDS if s < self.speed), default=SPEEDS[0])
            case _:
                self._mailbox.put_answer(Answer(method, False, "this is a recording"))
        if not self._ended.is_set() and self._mailbox.link.state != "over":
            self._say()

    def _play(self) -> None:
        self._say()
        before: Update | None = None
        try:
            for update in read_updates(self._path):
                if before is not None and not self._wait(update.time - before.time):
                    return
                self._mailbox.put(update)
                before = update
        except OSError as error:
            self._mailbox.put_link(Link("over", f"cannot read {self.name}: {error.strerror}"))
            return
        self._mailbox.put_link(Link("over", "the recording ends here"))

    def _wait(self, gap_s: float) -> bool:
        """Wait as long as the recorder did, at the present speed; False: stopped."""
        left = min(max(gap_s, 0.0), MAX_GAP_S)
        while left > 0 or self._held.is_set():
            if self._step.is_set():
                self._step.clear()
                break
            if self._ended.wait(min(SLICE_S, max(left / self.speed, 0.005))):
                return False
            if not self._held.is_set():
                left -= min(SLICE_S, left / self.speed) * self.speed
        return not self._ended.is_set()

    def _say(self) -> None:
        state: LinkState = "held" if self._held.is_set() else "playing"
        self._mailbox.put_link(Link(state, f"x{self.speed:g}"))
