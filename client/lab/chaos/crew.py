"""The volunteers of a chaos run: started alike, killed, stopped, started again, always reaped.

Holds each one's home, identity, ports, failpoint file, present process and absences. Every process
is in a group of its own and ends with the block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client.cli.reach.home import free_port
from client.control.snapshot import Snapshot
from client.lab.chaos import armed, failpoints
from client.lab.chaos.record import LogTail, Note
from client.lab.chaos.wires import Wires
from client.lab.local_swarm import LocalSwarm, Member
from client.store.identity import ensure_identity
from client.store.paths import Entry, home_folders, make_private
from protocol.address import Address
from protocol.ids import PeerId

HOST = "127.0.0.1"
FLAGS = ("--listen-host", HOST, "--threads", "1", "--log-format", "json", "--log-level", "debug")


@dataclass
class Volunteer:
    """One volunteer over all its processes."""

    name: str
    home: Path
    peer: PeerId
    listen_port: int
    port: int
    """That of its relay: its address for others."""
    member: Member | None = None
    lives: int = 0
    last: Snapshot | None = None
    """Of the present process, since its last fault."""
    tails: list[LogTail] = field(default_factory=list)
    stopped: bool = False
    away: list[tuple[float, float | None]] = field(default_factory=list)
    """Spans (Unix seconds) in which it did not compute for the swarm."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.member is not None and self.member.alive

    @property
    def stage(self) -> int | None:
        """The stage it serves, as last seen."""
        seats = self.last.seats if self.last else []
        return next((seat.stage for seat in seats if seat.state == "serving"), None)

    @property
    def step(self) -> int | None:
        """The step at which it is, as last seen."""
        return self.last.step if self.last else None

    @property
    def failpoint(self) -> Path:
        """The file that arms it."""
        return self.home / "failpoint"

    def went(self, moment: float) -> None:
        """It is away from now on."""
        if not self.away or self.away[-1][1] is not None:
            self.away.append((moment, None))

    def came(self, moment: float) -> None:
        """It is back."""
        if self.away and self.away[-1][1] is None:
            self.away[-1] = (self.away[-1][0], moment)


class Crew:
    """A context manager; see the module's docstring.

    Args:
        folder: for homes; short, for sockets lie below it.
        logs: the folder for logs.
        flags: further flags of every volunteer.
    """

    def __init__(self, folder: Path, logs: Path, flags: Sequence[str]) -> None:
        self.folder, self._flags = folder, (*FLAGS, *flags)
        self.swarm_file = folder / "x.swarm"
        # Whoever needs their results stops them in order before.
        self.swarm = LocalSwarm(self.swarm_file, folder, logs, orderly=False)
        self.volunteers: dict[str, Volunteer] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.swarm.kill()

    @property
    def alive(self) -> Iterator[Volunteer]:
        """Those whose process runs."""
        return (volunteer for volunteer in self.volunteers.values() if volunteer.alive)

    def processes(self) -> dict[str, int]:
        """Return the process ids of the nodes by name."""
        found = list(self.volunteers.values())
        return {v.name: v.member.process.pid for v in found if v.member is not None and v.alive}

    def enlist(self, name: str, wires: Wires) -> Volunteer:
        """Give a volunteer a home, an identity and ports; nothing is started."""
        home = self.folder / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        signer = ensure_identity(make_private(home_folders(home).data))
        listen_port = free_port(HOST)
        port = wires.add(name, listen_port)
        volunteer = Volunteer(name, home, signer.peer, listen_port, port)
        self.volunteers[name] = volunteer
        return volunteer

    def address(self, volunteer: Volunteer) -> Address:
        """Return a volunteer's address for others."""
        return Address("ip4", HOST, volunteer.port, volunteer.peer)

    def share_capacity(self, source: Volunteer) -> bool:
        """Copy one volunteer's measurement of this machine to all others; False: there is none
        yet."""
        measured = home_folders(source.home).data / Entry.CAPACITY
        if not measured.exists():
            return False
        for volunteer in self.volunteers.values():
            if volunteer is not source:
                kept = home_folders(volunteer.home).data / Entry.CAPACITY
                shutil.copyfile(measured, kept)
        return True

    def start(self, volunteer: Volunteer) -> None:
        """Start it, or start it again with the same home and ports."""
        volunteer.lives += 1
        log_name = f"{volunteer.name}-{volunteer.lives}"
        where = ("--listen-port", str(volunteer.listen_port))
        known = ("--announce", str(self.address(volunteer)))
        volunteer.member = self.swarm.start(
            volunteer.name,
            (*self._flags, *where, *known),
            log_name=log_name,
            variables={failpoints.VARIABLE: str(volunteer.failpoint)},
            program=armed.COMMAND,
        )
        volunteer.tails.append(LogTail(volunteer.member.log, volunteer.name))

    def look(self, volunteer: Volunteer) -> None:
        """Ask it for its status."""
        now = volunteer.member.snapshot() if volunteer.member and not volunteer.stopped else None
        if now is not None:
            volunteer.last = now

    def notes(self) -> Iterator[Note]:
        """Yield the log lines of all since the last call."""
        for volunteer in self.volunteers.values():
            for tail in volunteer.tails:
                yield from tail.new_notes()

    # --- faults ----------------------------------------------------------------

    def arm(self, volunteer: Volunteer, failpoint: str) -> None:
        """Replace its failpoint; an empty text disarms it."""
        new = volunteer.failpoint.with_suffix(".new")
        new.write_text(failpoint)
        new.replace(volunteer.failpoint)

    def kill(self, volunteer: Volunteer) -> float:
        """Send SIGKILL to its node and worker, or reap them if they are dead; return the moment."""
        self.arm(volunteer, "")
        moment = volunteer.member.kill() if volunteer.member else time.time()
        volunteer.last, volunteer.stopped = None, False
        return moment

    def stop(self, volunteer: Volunteer) -> None:
        """Stop the node: not even its sockets are read any more."""
        self._signal(volunteer, signal.SIGSTOP)
        volunteer.stopped = True

    def go_on(self, volunteer: Volunteer) -> None:
        """Continue a stopped node; its last status is out of date."""
        self._signal(volunteer, signal.SIGCONT)
        volunteer.last, volunteer.stopped = None, False

    def _signal(self, volunteer: Volunteer, number: signal.Signals) -> None:
        if volunteer.member is not None and volunteer.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(volunteer.member.process.pid, number)
