"""One volunteer of the chaos world: its process, its clock, its links, its disk.

A volunteer is *down* (no process), *paused* (a process without processor time) or *running*.
Messages that arrive while it is paused wait in its backlog, as in the buffers of its sockets and of
its worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from client.lab.simulate.agenda import Action
from client.lab.simulate.peer import SimPeer, view_of
from protocol.audit.terms import AuditTerms
from protocol.evidence.word import OwnWord
from protocol.ids import PeerId
from protocol.membership.contacts import Contacts
from protocol.recovery.choice import SEED
from protocol.recovery.evidence import Kept
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.verdicts import Verdicts
from protocol.view import SwarmView
from protocol.wire.envelope import Signer
from protocol.wire.parts import SeatStatus

KEEP = 3
"""Checkpoints kept of one stage."""


class Clock:
    """A monotonic clock with a start and a speed of its own.

    Maps virtual seconds of the world to the seconds that one machine reads, and back.

    State: a point at which both are known, and the rate since then. It never runs backwards.
    """

    def __init__(self, offset_s: float, rate: float) -> None:
        self._world, self._read, self._rate = 0.0, offset_s, rate

    def read(self, world_s: float) -> float:
        """Return the machine's reading at a moment of the world."""
        return self._read + (world_s - self._world) * self._rate

    def when(self, read_s: float) -> float:
        """Return the moment of the world at which the machine reads ``read_s``."""
        return self._world + (read_s - self._read) / self._rate

    def set_rate(self, rate: float, world_s: float) -> None:
        """Run at another speed from now on."""
        self._read, self._world, self._rate = self.read(world_s), world_s, rate


@dataclass
class Disk:
    """A volunteer's disk, which survives the process unless a fault takes it, too.

    It holds the lineage last followed, and checkpoints by stage and version.

    A checkpoint is the result of ``SimWorker.save``: the exact arithmetic's name of a version,
    which is its hash.
    """

    lineage: Lineage = SEED
    checkpoints: dict[tuple[int, int], str] = field(default_factory=dict)
    evidence: Kept = field(default_factory=Kept)
    """The evidence of the run."""

    def write(
        self, stage: int, version: int, saved: str, protected: Collection[tuple[int, int]]
    ) -> None:
        """Keep a checkpoint, the newest few of its stage, and those that others rely on."""
        self.checkpoints[stage, version] = saved
        for key in sorted(k for k in self.checkpoints if k[0] == stage)[:-KEEP]:
            if key not in protected:
                del self.checkpoints[key]

    def begin(self, lineage: Lineage, fetched: Sequence[Copy] = ()) -> None:
        """Another lineage begins: newer checkpoints belong to the one that ended; if copies of the
        new one were fetched, all others do."""
        self.lineage = lineage
        kept = {k: v for k, v in self.checkpoints.items() if k[1] <= lineage.version}
        copies = {(copy.stage, copy.version): copy.hash.hex() for copy in fetched}
        self.checkpoints = copies or kept

    def copies(self) -> list[Copy]:
        """Return the checkpoints in the form of the stored record."""
        return [Copy(s, v, bytes.fromhex(saved)) for (s, v), saved in self.checkpoints.items()]

    def lose(self) -> None:
        """Lose everything."""
        self.lineage, self.checkpoints, self.evidence = SEED, {}, Kept()


@dataclass(eq=False, slots=True)
class Link:
    """One connection; a new one between the same two is another link."""

    one: PeerId
    two: PeerId
    held: list[tuple[Volunteer, Action]] = field(default_factory=list)
    """Messages held back by a split."""


@dataclass(eq=False)
class Volunteer(SimPeer):
    """State of one volunteer; the parts of the world change it."""

    name: str = ""
    lies: bool = False
    """Whether it is the liar: no invariant covers it, and nobody may rely on it."""
    clock: Clock = field(default_factory=lambda: Clock(0.0, 1.0))
    disk: Disk = field(default_factory=Disk)
    paused: bool = False
    incarnation: int = 0
    """Rises with every start of its process."""
    retired: bool = False
    """Whether it never comes back."""
    replaced: bool = False
    backlog: list[Action] = field(default_factory=list)
    missed_pulse: bool = False
    links: dict[PeerId, Link] = field(default_factory=dict)
    contacts: Contacts = field(default_factory=Contacts)
    silent: set[PeerId] = field(default_factory=set)
    """Linked, but held for dead."""
    recovery: Recovery = field(init=False)
    records: dict[PeerId, tuple[int, Stored]] = field(default_factory=dict)
    """The stored records of disks by author: sequence number and body."""
    pulses: int = 0
    heartbeats: int = 0
    heard: dict[PeerId, int] = field(default_factory=dict)
    """Newest heartbeat of each link."""
    echoes: dict[PeerId, int] = field(default_factory=dict)
    """The same, without peers that the seat sets aside."""
    shown: object = None
    """The heartbeats of the seat's last view."""
    believed: tuple[tuple[int, dict[PeerId, SeatStatus]], SwarmView] | None = None
    """The last result of ``believes``, and its inputs."""
    returning: SeatStatus | None = None
    """The record of a seat that will be opened again in a new lineage."""
    promise: tuple[int, int] = (0, 0)
    """The state of its last seat in this lineage."""
    word: OwnWord = field(default_factory=OwnWord)
    """What it has signed: with its key on the disk, which no fault takes."""
    signer: Signer | None = None
    """None: the run has no audits, and nothing needs a signature."""
    audits: AuditTerms | None = None
    verdicts: Verdicts = field(default_factory=Verdicts)
    """On its disk: the members that it has seen expelled, with the charges."""
    corrupt: int = 0
    """Number of its next tasks that get a malformed tensor."""

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self.alive and not self.paused

    @property
    def holds_state(self) -> bool:
        """Whether it serves its stage and can be asked now."""
        return self.running and self.serving

    def cuts_off(self, peer: PeerId) -> bool:
        """Whether it links with a peer no more: a majority has expelled that one."""
        return peer in self.verdicts and not self.lies

    def seen_live(self) -> frozenset[PeerId]:
        """Return the peers it holds for alive, itself included."""
        return frozenset(self.links.keys() - self.silent | {self.peer})

    def believes(self, stages: int) -> SwarmView:
        """Return the view of its own lineage; nobody of another one is there."""
        of = (self.recovery.lineage.era, dict(self.statuses))
        if self.believed is None or self.believed[0] != of:
            ours = {peer: said for peer, said in self.statuses.items() if said.era == of[0]}
            self.believed = of, view_of(stages, ours)
        return self.believed[1]

    def take_in(self, action: Action) -> None:
        """Run an action now, or on waking up; an ended process never does."""
        if not self.alive:
            return
        if self.paused:
            self.backlog.append(action)
        else:
            action()

    def forget_process(self) -> None:
        """Lose everything but the disk."""
        self.epoch += 1
        self.incarnation += 1
        self.seat = self.worker = None
        self.payloads, self.statuses, self.shown = {}, {}, None
        self.silent, self.records = set(), {}
        self.backlog, self.links, self.heard, self.echoes = [], {}, {}, {}
        self.contacts = Contacts()
        self.paused = self.missed_pulse = False
        self.corrupt, self.returning, self.promise = 0, None, (0, 0)
        self.hold()
