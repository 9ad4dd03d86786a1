"""The start and end of a node's newest run: one small file beside the identity.

It is written when a node gets the identity's lock and again when the node ends, also on a full
disk, so until the next start it explains why no node answers. A node that was killed cannot write
its end: the reader finds a run without an end whose process is gone. A damaged file counts as
missing.
"""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from client.store.boot import this_boot
from client.store.paths import Entry
from client.store.persisted import Persisted

if TYPE_CHECKING:
    import psutil

FILE_NAME: Final = Entry.LAST_RUN
RESERVED_BYTES: Final = 8 * 1024
"""Of the file, from the beginning on: the end of a node on a full disk has room in it."""
MAX_CHARS: Final = 1000
CLOCK_S: Final = 5.0
"""The system's value of a process's start time varies by at most this."""
SIGNS_OF_LIFE: Final = (f"{Entry.LOGS}/volunteer.log", Entry.LINE)
"""Files that a living node writes about once a minute."""

Words = Annotated[str, Meta(max_length=4 * MAX_CHARS)]


class LastRun(Struct, frozen=True, kw_only=True):
    """One run of a node."""

    pid: int
    process_began: float
    """As ``_began`` says; distinguishes the process from a later one with the same id."""
    boot: str = ""
    """Id of the machine's boot in which it began; empty: the system has none."""
    began: float
    """Unix seconds."""
    swarm: Words = ""
    """The swarm's id; empty if it was not known yet."""
    swarm_name: Words = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Where it listened, or a run before it; 0: that is not known."""
    ended: float | None = None
    """Unix seconds; None: it still runs, or it was killed."""
    reason: Words = ""
    next_step: Words = ""
    exit_code: int = 0

    @property
    def runs(self) -> bool:
        """Whether its process still runs."""
        import psutil  # slow to import, and the screen only wants the types

        if self.ended is not None or self.boot != this_boot():
            return False
        try:
            process = psutil.Process(self.pid)
            began = _began(process)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False  # ended, and nobody has asked how
        except psutil.Error:
            return False
        return abs(began - self.process_began) < CLOCK_S

    @property
    def again(self) -> str:
        """The command that starts it again, in words."""
        named = self.swarm_name and self.swarm_name.isprintable()
        swarm = shlex.quote(self.swarm_name) if named else "X"
        return f"start it again: volunteer join --swarm {swarm}"


class Ending(Struct, frozen=True, kw_only=True):
    """The end of a run, for people and programs."""

    time: float
    """Unix seconds; for a run that was killed, its last sign of life."""
    words: str
    """The reason."""
    next_step: str
    """Advice to the owner, and the command that starts the node again."""
    exit_code: int | None = None
    """None: it was killed, or the machine went down."""
    swarm_name: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.exit_code != 0


class RunRecord:
    """The file in a node's data folder; failures to write it are ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / FILE_NAME

    def begin(self, swarm: str = "", swarm_name: str = "", port: int = 0) -> None:
        """Note that this process is the node; call it again when the swarm and the port become
        known."""
        known = self.load()
        began = known.began if known is not None and _is_ours(known) else time.time()
        self._write(_own_run(began, swarm, swarm_name[:MAX_CHARS], port or _port_of(known)))

    def end(self, reason: str, next_step: str, exit_code: int) -> None:
        """Note the end of this process's run, or that it could not begin.

        Does nothing while another process is the node of this folder.

        Args:
            reason: why, in words.
            next_step: advice to the owner.
            exit_code: of the process.
        """
        known = self.load()
        if known is not None and known.runs and not _is_ours(known):
            return
        now = time.time()
        run = _own_run(now, port=_port_of(known))
        if known is not None and _is_ours(known):
            run = known
        self._write(
            msgspec.structs.replace(
                run,
                ended=now,
                reason=reason[:MAX_CHARS],
                next_step=next_step[:MAX_CHARS],
                exit_code=exit_code,
            )
        )

    def load(self) -> LastRun | None:
        """Return the newest run, None if none is known."""
        return Persisted(self._path, LastRun).peek()

    def ending(self, pid: int | None = None) -> Ending | None:
        """Return the end of the newest run, if it is that of process ``pid`` (None: of any).

        Returns None if there was no run, it still runs, or it was another process's.
        """
        run = self.load()
        if run is None or run.runs or pid not in (None, run.pid):
            return None
        if run.ended is None:
            return self._without_a_word(run)
        return Ending(
            time=run.ended,
            words=run.reason,
            next_step="; ".join(filter(None, (run.next_step, run.again))),
            exit_code=run.exit_code,
            swarm_name=run.swarm_name,
        )

    def _without_a_word(self, run: LastRun) -> Ending:
        import psutil

        last = max([run.began, *self._signs()])
        log = self._folder / Entry.LOGS / "volunteer.log"
        how = "ended without a word: it was killed, or ran out of memory"
        if last < psutil.boot_time():
            how = "ended without a word: this machine was switched off or restarted"
        return Ending(
            time=last,
            words=f"{how}; the log is {log}",
            next_step=run.again,
            swarm_name=run.swarm_name,
        )

    def _signs(self) -> list[float]:
        found = []
        for name in SIGNS_OF_LIFE:
            try:
                found.append((self._folder / name).stat().st_mtime)
            except OSError:
                continue
        return [time_s for time_s in found if time_s <= time.time()]

    def _write(self, run: LastRun) -> None:
        document = msgspec.json.encode(run).ljust(RESERVED_BYTES)
        try:
            write_atomic(self._path, document)
        except OSError:
            self._overwrite(document)

    def _overwrite(self, document: bytes) -> None:
        """Write over the file, which takes no room of a full disk. If that fails, too, the node
        starts or ends all the same."""
        with suppress(OSError), self._path.open("rb+") as file:
            if len(document) <= os.fstat(file.fileno()).st_size:
                file.write(document)


def _port_of(known: LastRun | None) -> int:
    return 0 if known is None else known.port


def _own_run(began: float, swarm: str = "", swarm_name: str = "", port: int = 0) -> LastRun:
    import psutil

    process = psutil.Process()
    return LastRun(
        pid=process.pid,
        process_began=_began(process),
        boot=this_boot(),
        began=began,
        swarm=swarm,
        swarm_name=swarm_name,
        port=port,
    )


def _began(process: psutil.Process) -> float:
    """Return when a process began, so that it stays the same where the clock is set: on Linux in
    seconds after the boot, elsewhere in Unix seconds."""
    import psutil

    boot: float = psutil.boot_time() if psutil.LINUX else 0.0  # moves with the clock
    began: float = process.create_time()  # which psutil reckons from the boot there
    return began - boot


def _is_ours(run: LastRun) -> bool:
    """Whether it is the present run of this process."""
    return run.pid == os.getpid() and run.runs
