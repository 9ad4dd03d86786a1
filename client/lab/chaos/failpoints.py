"""Failpoints: faults at a chosen moment of a run (``moments``).

They are set in ``LAB_FAILPOINTS`` when a process starts, or in ``@FILE``, a file of them that is
read again whenever it changes, so that they can be set while the node runs. A failpoint is
``phase@step[/stage]=action[:seconds]``, several are joined by ``;`` or stand on lines of their own,
and ``*`` stands for any step: ``forward@12=kill;averaging@*/1=stop:4``. Each acts once in a
process. The node meets all but ``nospace``, which the writer of the file meets.

Before it acts, a line of JSON goes to the file that ``LAB_FAILPOINTS_LOG`` names, with the moment
by the wall clock and by the monotonic one. ``stop`` stops this process. The setter of the failpoint
continues it; the seconds are only a note for the setter.

State: the armed failpoints of this process.
"""

import errno
import json
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from client.errors import ConfigError

VARIABLE: Final = "LAB_FAILPOINTS"
LOG_VARIABLE: Final = "LAB_FAILPOINTS_LOG"
MAX_TEXT_BYTES: Final = 64 * 1024

Phase = Literal[
    "forward",
    "backward",
    "before-optimizer",
    "after-optimizer",
    "averaging",
    "recovery",
    "checkpoint",
]
"""Moments of a step at one replica.

forward: its forward is computed and goes out (last stage: is about to be computed).
backward: its gradient is counted and goes out (stage 0: is about to be computed).
averaging: its contribution is out, those to its shard are here, nothing is summed yet.
before-optimizer: it knows the commit and has applied nothing.
after-optimizer: it has applied and told nobody.
recovery: it re-routes a microbatch, or is about to download a stage's state.
checkpoint: it is about to write its state.
"""
Action = Literal["kill", "kill-worker", "stop", "corrupt", "nospace"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
_HITS: Final = frozenset[Action]({"kill", "kill-worker", "stop"})

_FAILPOINT: Final = re.compile(
    r"(?P<phase>[a-z-]{1,32})@(?P<step>\*|\d{1,9})(/(?P<stage>\d{1,4}))?"
    r"=(?P<action>[a-z-]{1,32})(:(?P<seconds>\d{1,4}(\.\d{1,3})?))?"
)
_SAVED: Final = re.compile(r"-(?P<stage>\d{1,4})-v(?P<version>\d{1,9})\.")
_FLIP: Final = 0x40
_FLIPPED_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One fault at one moment; None stands for any step or stage."""

    phase: Phase
    step: int | None
    stage: int | None
    action: Action
    seconds: float = 0.0

    def __str__(self) -> str:
        step = "*" if self.step is None else str(self.step)
        stage = "" if self.stage is None else f"/{self.stage}"
        seconds = f":{self.seconds:g}" if self.seconds else ""
        return f"{self.phase}@{step}{stage}={self.action}{seconds}"

    def matches(self, phase: Phase, step: int, stage: int) -> bool:
        """Whether it acts at this moment."""
        return self.phase == phase and self.step in (None, step) and self.stage in (None, stage)


def parse_failpoints(text: str) -> tuple[Failpoint, ...]:
    """Parse failpoints.

    Raises:
        ConfigError: a part of the text is no failpoint; names it and the valid ones.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise ConfigError(f"{VARIABLE} is too long", f"at most {MAX_TEXT_BYTES} characters")
    parts = (part.strip() for part in re.split(r"[;\n]", text))
    return tuple(_parse(part) for part in parts if part)


def _parse(text: str) -> Failpoint:
    found = _FAILPOINT.fullmatch(text)
    if found is None:
        problem = f"not a failpoint: {text[:60]!r}"
        raise ConfigError(problem, "write phase@step[/stage]=action[:seconds]")
    phase = next((known for known in PHASES if known == found["phase"]), None)
    action = next((known for known in ACTIONS if known == found["action"]), None)
    if phase is None:
        raise ConfigError(f"no phase {found['phase']!r}", f"there are {', '.join(PHASES)}")
    if action is None:
        raise ConfigError(f"no action {found['action']!r}", f"there are {', '.join(ACTIONS)}")
    step = None if found["step"] == "*" else int(found["step"])
    stage = None if found["stage"] is None else int(found["stage"])
    return Failpoint(phase, step, stage, action, float(found["seconds"] or 0.0))


class Failpoints:
    """The failpoints armed in this process.

    Args:
        text: the value of ``LAB_FAILPOINTS``.
        log: file for the failpoints reached; None: not written.
    """

    def __init__(self, text: str, log: Path | None) -> None:
        self._file = Path(text[1:]) if text.startswith("@") else None
        self._log = log
        self._read = (0, 0)
        self._armed = [] if self._file else list(parse_failpoints(text))

    def reach(self, phase: Phase, step: int, stage: int, worker: int) -> None:
        """Pass a moment: a failpoint set for it hits this process, or the worker with that process
        id."""
        if (action := self._take(phase, step, stage, _HITS)) is None:
            return
        victim = worker if action == "kill-worker" else os.getpid()
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    def sent(self, payload: bytes, phase: Phase, step: int, stage: int) -> bytes:
        """Return a payload that goes out, damaged if a failpoint says so: bits of its last bytes
        are flipped, and its length stays."""
        if not self._spoils("corrupt", phase, step, stage):
            return payload
        size = min(_FLIPPED_BYTES, len(payload))
        tail = bytes(byte ^ _FLIP for byte in payload[len(payload) - size :])
        return payload[: len(payload) - size] + tail

    def write(self, name: str) -> None:
        """Raise ``OSError`` as on a full disk if a failpoint is set for this file of a state."""
        if (found := _SAVED.search(name)) is None:
            return
        if self._spoils("nospace", "checkpoint", int(found["version"]), int(found["stage"])):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _spoils(self, action: Action, phase: Phase, step: int, stage: int) -> bool:
        return self._take(phase, step, stage, frozenset({action})) is not None

    def _take(
        self, phase: Phase, step: int, stage: int, actions: frozenset[Action]
    ) -> Action | None:
        for failpoint in self._current():
            if failpoint.action in actions and failpoint.matches(phase, step, stage):
                self._armed.remove(failpoint)
                self._note(failpoint, step, stage)
                return failpoint.action
        return None

    def _current(self) -> tuple[Failpoint, ...]:
        if self._file is not None:
            with suppress(OSError, ConfigError, UnicodeDecodeError):
                self._read_again(self._file)
        return tuple(self._armed)

    def _read_again(self, file: Path) -> None:
        """Read the file again; a half-written one is read when it is complete."""
        status = file.stat()
        version = (status.st_mtime_ns, status.st_ino)
        if version != self._read and status.st_size <= MAX_TEXT_BYTES:
            self._armed = list(parse_failpoints(file.read_text()))
            self._read = version

    def _note(self, failpoint: Failpoint, step: int, stage: int) -> None:
        if self._log is None:
            return
        record = {
            "time": time.time(),
            "monotonic": time.monotonic(),
            "pid": os.getpid(),
            "failpoint": str(failpoint),
            "phase": failpoint.phase,
            "action": failpoint.action,
            "seconds": failpoint.seconds,
            "step": step,
            "stage": stage,
        }
        with suppress(OSError), self._log.open("a") as file:
            file.write(json.dumps(record) + "\n")
