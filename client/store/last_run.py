"""The start and end of a node's newest run: one small file beside the identity.

It is written when a node gets the identity's lock and again when the node ends, also on a full
disk, so until the next start it explains why no node answers. A node that was killed cannot write
its end: the reader finds a run without an end, and nobody who holds the lock. A damaged file counts
as missing.
"""

import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from client.quantities import clock
from client.store.atomic import write_atomic
from client.store.lock import ANOTHER, lock_holder
from client.store.paths import Entry
from client.store.persisted import Persisted

FILE_NAME: Final = Entry.LAST_RUN
RESERVED_BYTES: Final = 8 * 1024
"""Of the file, from the beginning on: the end of a node on a full disk has room in it."""
MAX_CHARS: Final = 1000
BEGAN: Final = time.time()
"""When this process began, or nearly."""
SIGNS_OF_LIFE: Final = (f"{Entry.LOGS}/volunteer.log", Entry.LINE)
"""Files that a living node writes about once a minute."""

Words = Annotated[str, Meta(max_length=4 * MAX_CHARS)]


class LastRun(Struct, frozen=True, kw_only=True):
    """One run of a node."""

    pid: int
    began: float
    """Unix seconds; distinguishes the process from a later one with the same id."""
    swarm: Words = ""
    """The swarm's id; empty if it was not known yet."""
    swarm_name: Words = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Where it listened, or a run before it; 0: that is not known."""
    ended: float | None = None
    """Unix seconds; None: it still runs, or it was killed."""
    reason: Words = ""
    """Why it ended."""
    next_step: Words = ""
    """Advice to the owner."""
    exit_code: int | None = 0
    """None: it was killed, or the machine went down."""

    @property
    def again(self) -> str:
        """The command that starts it again, in words."""
        named = self.swarm_name and self.swarm_name.isprintable()
        swarm = shlex.quote(self.swarm_name) if named else "X"
        return f"start it again: volunteer join --swarm {swarm}"

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.exit_code != 0

    @property
    def when(self) -> str:
        """When it ended, and the exit code if it is not 0: ``at 09:30 (exit code 78)``."""
        known = f" (exit code {self.exit_code})" if self.exit_code else ""
        code = " or later" if self.exit_code is None else known
        return f"at {clock(self.ended or self.began)}{code}"


class RunRecord:
    """The file in a node's data folder; failures to write it are ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / FILE_NAME

    def begin(self, swarm: str = "", swarm_name: str = "", port: int = 0) -> None:
        """Note that this process is the node; call it again when the swarm and the port become
        known."""
        self._write(_own_run(swarm, swarm_name[:MAX_CHARS], port or self._port))

    def end(self, reason: str, next_step: str, exit_code: int) -> None:
        """Note the end of this process's run, or that it could not begin."""
        run = self.load()
        if run is None or (run.pid, run.began) != (os.getpid(), BEGAN):
            run = _own_run(port=self._port)
        self._write(
            msgspec.structs.replace(
                run,
                ended=time.time(),
                reason=reason[:MAX_CHARS],
                next_step=next_step[:MAX_CHARS],
                exit_code=exit_code,
            )
        )

    def load(self) -> LastRun | None:
        """Return the newest run, None if none is known."""
        return Persisted(self._path, LastRun).peek()

    @property
    def running(self) -> LastRun | None:
        """The newest run if it goes on: its process holds the lock until its end is noted."""
        run, process = self.load(), lock_holder(self._folder)
        goes_on = run is not None and run.ended is None and process in (str(run.pid), ANOTHER)
        return run if goes_on else None

    @property
    def _port(self) -> int:
        known = self.load()
        return 0 if known is None else known.port

    def ending(self, pid: int | None = None) -> LastRun | None:
        """Return the newest run with its end, and with how to start it again as advice, if it is
        that of process ``pid`` (None: of any). One that was killed ended with its last sign of
        life.

        Returns None if there was no run, it still runs, or it was another process's.
        """
        runs = self.running is not None
        run = self.load()  # only now: an end is noted before the lock is given back
        if run is None or runs or pid not in (None, run.pid):
            return None
        if run.ended is None:
            run = self._without_a_word(run)
        next_step = "; ".join(filter(None, (run.next_step, run.again)))
        return msgspec.structs.replace(run, next_step=next_step)

    def _without_a_word(self, run: LastRun) -> LastRun:
        import psutil

        last = max([run.began, *self._signs()])
        log = self._folder / Entry.LOGS / "volunteer.log"
        how = "without a word: it was killed, or ran out of memory"
        if last < psutil.boot_time():
            how = "without a word: this machine was switched off or restarted"
        reason = f"{how}; the log is {log}"
        return msgspec.structs.replace(run, ended=last, reason=reason, exit_code=None)

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


def _own_run(swarm: str = "", swarm_name: str = "", port: int = 0) -> LastRun:
    return LastRun(pid=os.getpid(), began=BEGAN, swarm=swarm, swarm_name=swarm_name, port=port)
