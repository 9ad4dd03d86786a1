"""Performs the effects of simulated seats: the part common to all worlds of seats.

State: the agenda, the log and the serial worker of each peer. The worlds built on it (``training``,
``chaos``) define the network, the beliefs and the acquisition of a stage.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from client.lab.simulate.agenda import Agenda, Range
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.worker import payload_digest
from protocol.effects import Explain, Penalise, Send
from protocol.held_stage.machine import Do
from protocol.ids import PeerId, short
from protocol.pipeline.effects import (
    Committed,
    Compute,
    DropStep,
    Fault,
    HashTask,
    Keep,
    Outcome,
    SendPayload,
    Task,
)
from protocol.seat.effects import SeatEffect, Snapshot, StatusChanged
from protocol.wire.messages import (
    AuditReply,
    Backward,
    Commit,
    Forward,
    Message,
    Propose,
    Reduced,
    Segment,
)

Parts = tuple[bytes, ...]
"""A message's payload, as the pieces that were sent."""
SomePeer = TypeVar("SomePeer", bound=SimPeer)


class SeatWorld(ABC, Generic[SomePeer]):
    """Performs the effects of seats; a world defines how."""

    def __init__(self, seed: int, compute_s: Range) -> None:
        self.agenda = Agenda(seed)
        self.random = self.agenda.random
        self.log: list[str] = []
        self._compute_s = compute_s

    # --- defined by a world -----------------------------------------------------------

    @abstractmethod
    def now_of(self, peer: SomePeer) -> float:
        """Return the peer's monotonic seconds."""

    @abstractmethod
    def send(self, peer: SomePeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        """Send a message."""

    @abstractmethod
    def announce(self, peer: SomePeer, *, near: bool = False) -> None:
        """A seat's state changed: tell all peers now; ``near``: those of its stage and beside."""

    @abstractmethod
    def committed(self, peer: SomePeer, committed: Committed) -> None:
        """A seat has made a version."""

    @abstractmethod
    def faulted(self, peer: SomePeer, fault: Fault) -> None:
        """A seat cannot continue."""

    @abstractmethod
    def retake(self, peer: SomePeer) -> None:
        """Close a seat, if one is open, and acquire the stage again."""

    # --- effects ---------------------------------------------------------------------------

    def carry(self, peer: SomePeer, wanted: Sequence[Do]) -> None:
        """Perform the effects of a held stage; there is no matching here, and nobody drains."""
        for do in wanted:
            if do is Do.RETAKE:
                self.retake(peer)

    def perform(self, peer: SomePeer, effects: Sequence[SeatEffect], parts: Parts = ()) -> None:
        """Perform effects in order, while their seat is open."""
        epoch = peer.epoch
        for effect in effects:
            if peer.epoch == epoch:
                self._perform_one(peer, effect, parts)

    def _perform_one(self, peer: SomePeer, effect: SeatEffect, parts: Parts) -> None:
        match effect:
            case Keep(keys):
                peer.payloads.update(zip(keys, parts, strict=True))
            case Send(to, message):
                self.send(peer, to, message)
            case SendPayload(_, AuditReply(), keys) if any(k not in peer.payloads for k in keys):
                pass  # its step is over
            case SendPayload(to, message, keys):
                self.send(peer, to, message, tuple(peer.payloads.get(key, b"") for key in keys))
            case DropStep(step):
                peer.payloads = {k: v for k, v in peer.payloads.items() if k.step != step}
            case Compute(task):
                self._submit(peer, task)
            case Committed():
                self.committed(peer, effect)
            case StatusChanged():
                if peer.seat is not None and peer.seat.serving:
                    self.carry(peer, peer.held.serves(self.now_of(peer)))
                self.announce(peer, near=True)
            case Snapshot(version) if peer.worker is not None:
                peer.snapshots[version] = peer.worker.save(version)
            case Fault():
                self.faulted(peer, effect)
            case Explain(_, words):
                self.note(peer, words)
            case Penalise(culprit, reason):
                self.note(peer, f"blames {short(culprit)}: {reason}")
            case _:
                pass

    def note(self, peer: SomePeer, words: str) -> None:
        """Write a line of the log."""
        self.log.append(f"{self.agenda.now:.3f} {short(peer.peer)} {words}")

    def take(self, sender: PeerId, peer: SomePeer, message: Message, parts: Parts) -> None:
        """Hand a message that has arrived to the elector or to the seat, if there is one."""
        if isinstance(message, Propose):
            answer = peer.elector.answer(sender, message)
            if isinstance(answer, Penalise):
                self.perform(peer, [answer])
            elif answer is not None:
                self.send(peer, sender, answer)
            return
        if isinstance(message, Commit) and (peer.seat is None or message.stage != peer.stage):
            peer.elector.take(message)
            return
        if peer.seat is not None:
            named = isinstance(message, Forward | Backward | Reduced | Segment | AuditReply)
            digest = b"".join(map(payload_digest, parts)) if named else b""
            if isinstance(message, AuditReply) and message.name == "list":
                digest = parts[0]
            effects = peer.seat.receive(sender, message, self.now_of(peer), digest)
            self.perform(peer, effects, parts)

    # --- the worker ------------------------------------------------------------------------

    def _submit(self, peer: SomePeer, task: Task) -> None:
        if isinstance(task, HashTask):  # beside the others
            run = partial(self.compute, peer, task, peer.epoch)
            self.agenda.sometime(self._compute_s, run)
            return
        start = max(self.agenda.now, peer.worker_free_at)
        peer.worker_free_at = start + self.random.uniform(*self._compute_s)
        self.agenda.at(peer.worker_free_at, partial(self.compute, peer, task, peer.epoch))

    def compute(self, peer: SomePeer, task: Task, epoch: int) -> None:
        """The worker starts a task of the seat that was open at ``epoch``."""
        if not peer.alive or peer.epoch != epoch or peer.seat is None or peer.worker is None:
            return
        self.computed(peer, task, peer.worker.run(task, peer.payloads))

    def computed(self, peer: SomePeer, task: Task, outcome: Outcome) -> None:
        """Tell the seat a task's outcome."""
        if peer.seat is not None:
            self.perform(peer, peer.seat.computed(task, outcome, self.now_of(peer)))
