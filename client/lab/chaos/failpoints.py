"""The failpoint: a fault at a chosen moment of a run (``moments``).

The file that ``LAB_FAILPOINT`` names holds a phase and an action, such as ``forward kill``. It is
read again whenever it is replaced, so that it can be set while the node runs, and acts once. The
node meets all actions but ``nospace``, which the writer of the state's file meets.

Before it acts, the file says so: ``reached``, Unix seconds and the step. ``stop`` stops this
process. The setter of the failpoint continues it.
"""

import errno
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, get_args

VARIABLE: Final = "LAB_FAILPOINT"

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
REACHED: Final = "reached"

_SAVED: Final = re.compile(r"-\d{1,4}-v(?P<version>\d{1,9})\.")
_FLIP: Final = 0x40
_FLIPPED_BYTES: Final = 64


def reached(file: Path) -> tuple[float, int] | None:
    """Return when a failpoint acted, Unix seconds, and the step; None: it has not since it was
    set."""
    words = file.read_text().split() if file.exists() else []
    return (float(words[1]), int(words[2])) if words[:1] == [REACHED] and len(words) == 3 else None


class Failpoint:
    """The failpoint of this process, as its file says it; without the file none is armed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = (0, 0)
        self._armed = list[str]()

    def reach(self, phase: Phase, step: int, worker: int) -> None:
        """Pass a moment: a failpoint set for it hits this process, or the worker with that process
        id."""
        victims = {"kill": os.getpid(), "stop": os.getpid(), "kill-worker": worker}
        for action, victim in victims.items():
            if self._acts(phase, action, step):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    def sent(self, payload: bytes, phase: Phase, step: int) -> bytes:
        """Return a payload that goes out, damaged if the failpoint says so: bits of its last bytes
        are flipped, and its length stays."""
        if not self._acts(phase, "corrupt", step):
            return payload
        size = min(_FLIPPED_BYTES, len(payload))
        tail = bytes(byte ^ _FLIP for byte in payload[len(payload) - size :])
        return payload[: len(payload) - size] + tail

    def write(self, name: str) -> None:
        """Raise ``OSError`` as on a full disk if the failpoint is set for a file of a state."""
        found = _SAVED.search(name)
        if found is not None and self._acts("checkpoint", "nospace", int(found["version"])):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _acts(self, phase: Phase, action: str, step: int) -> bool:
        """Whether it does this now; then it is noted, and does nothing more."""
        with suppress(OSError):
            status = self._file.stat()
            if (version := (status.st_mtime_ns, status.st_ino)) != self._read:
                self._armed, self._read = self._file.read_text().split(), version
        if self._armed != [phase, action]:
            return False
        self._armed = []
        with suppress(OSError):
            self._file.write_text(f"{REACHED} {time.time()} {step}")
        return True
