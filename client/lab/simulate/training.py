"""A seeded discrete-event world that trains with the real seat machines.

The replicas compute with a ``SimWorker``: by default multisets of ids, which make I1 and I2 exact;
``tensors`` uses the real executor instead. On every commit the world checks that replicas at one
version have one hash (I2) and that two never exist for one (stage, version) (I5). Messages take
random time, per lane in order, as on a TCP stream; the others notice a killed peer some time later,
each at its own moment.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import partial

from client.lab.simulate.agenda import Action, Range
from client.lab.simulate.electing import UnsplitQuorum, sight
from client.lab.simulate.invariants import expect, logged
from client.lab.simulate.multisets import MultisetWorker
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts, SeatWorld
from client.lab.simulate.unamended import Unamended
from client.lab.simulate.worker import OpenWorker
from protocol.decree.decree import electors
from protocol.held_stage.machine import State
from protocol.ids import PeerId, peer_id_from_key, short
from protocol.manifest import Evaluation
from protocol.pace import LOOK_S
from protocol.pipeline.effects import Committed, Fault
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.wire.messages import Admit, JoinStage, Message
from protocol.wire.parts import SeatStatus

JOIN_RETRY_S = 1.0
HEARTBEAT_S = 1.0
DOWNLOAD_S: Range = (0.05, 2.0)
DETECT_S: Range = (0.01, 0.3)
LOG_LINES = 20


@dataclass(frozen=True)
class WorldConfig:
    """The configuration of a simulated run."""

    stages: int = 2
    replicas: int = 2
    per_step: int = 8
    steps: int = 6
    tokens_per_step: int = 1
    seed: int = 0
    delay_s: Range = (0.001, 0.02)
    compute_s: Range = (0.01, 0.05)
    evaluation: Evaluation | None = None
    """How versions are evaluated; None: they are not."""


class TrainingWorld(SeatWorld[SimPeer]):
    """Runs a swarm to its last step; ``run`` raises ``InvariantViolation`` or returns."""

    def __init__(self, config: WorldConfig, open_worker: OpenWorker | None = None) -> None:
        super().__init__(config.seed, config.compute_s)
        self.config = config
        self.peers: dict[PeerId, SimPeer] = {}
        self.hashes: dict[tuple[int, int], str] = {}
        """Of every committed (stage, version)."""
        self.losses: dict[int, float] = {}
        """Mean token loss of every committed step."""
        self.messages = Counter[str]()
        """Messages between seats, by type."""
        self._open_worker = open_worker or MultisetWorker
        for stage in range(config.stages):
            for index in range(config.replicas):
                self.add_peer(stage, f"{stage}/{index}")
        self._electors = tuple(electors(0, self.peers))
        for peer in self.peers.values():
            self._open_seat(peer, step=0, serving=True)

    # --- building and faults ---------------------------------------------------------------

    def add_peer(self, stage: int, name: str) -> SimPeer:
        """Create a volunteer for a stage; it has no seat yet."""
        key = hashlib.blake2b(f"{self.config.seed}/{name}".encode(), digest_size=32).digest()
        peer = SimPeer(peer_id_from_key(key), stage)
        self.peers[peer.peer] = peer
        return peer

    def join(self, stage: int, name: str) -> SimPeer:
        """Let a newcomer ask every replica of a stage for admission, until one admits it. It is a
        member, and has heard of the others."""
        known = list(self.peers.values())
        peer = self.add_peer(stage, name)
        for other in known:
            if other.seat is not None and other.alive:
                said = other.seat.status(self.rate_of(other))
                self._hear(peer, other.peer, said, other.epoch)
        self._ask_to_join(peer)
        return peer

    def kill(self, peer: SimPeer) -> None:
        """Kill the peer; each other one notices at its own time."""
        peer.alive = False
        self.note(peer, f"is killed in stage {peer.stage}")
        self._vanish(peer)

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule something (a kill, a join)."""
        self.agenda.after(delay_s, action)

    def start_clock(self) -> None:
        """Tick every seat and send heartbeats from now on."""
        self.agenda.every(LOOK_S, self._tick)
        self.agenda.every(HEARTBEAT_S, self._announce_all)

    # --- running ---------------------------------------------------------------------------

    def run(self, limit_s: float = 120.0) -> None:
        """Run until every live serving replica has committed the last step.

        Raises:
            InvariantViolation: an invariant is broken, or nothing happens within ``limit_s`` of
                virtual time; the message names the seed and ends with the log.
        """
        with logged(self.config.seed, self.log, LOG_LINES):
            self._announce_all()
            while not self.finished():
                if not self.agenda.advance(limit_s):
                    expect(False, f"no progress\n{self._state()}")

    def finished(self) -> bool:
        """Whether every live replica has a serving seat at the last version."""
        alive = [peer for peer in self.peers.values() if peer.alive]
        return bool(alive) and all(p.serving and p.seat and p.seat.finished for p in alive)

    def _state(self) -> str:
        lines = [f"at {self.agenda.now:.2f} s"]
        for peer in self.peers.values():
            if peer.alive and (seat := peer.seat):
                done, held = sorted(seat.pipeline.done()), sorted(seat.pipeline.in_flight())
                lines.append(
                    f"  {short(peer.peer)} step {seat.step} done {done} in flight {held} "
                    f"{seat.why()}"
                )
        return "\n".join(lines)

    def _tick(self) -> None:
        now = self.agenda.now
        for peer in list(self.peers.values()):
            if peer.alive and peer.seat is not None:
                self.perform(peer, peer.seat.tick(now))

    # --- seats -----------------------------------------------------------------------------

    def _open_seat(self, peer: SimPeer, step: int, serving: bool) -> None:
        config = self.config
        place = Place(peer.peer, peer.stage, config.stages, config.per_step)
        peer.epoch += 1
        peer.payloads = {}
        peer.elector.sees = sight(first=lambda _era, at: () if at else self._electors)
        peer.worker = self._open_worker(place)
        peer.seat = Seat(
            place,
            size=peer.worker.size,
            tokens_per_step=config.tokens_per_step,
            step=step,
            serving=serving,
            promise=(0, 0),
            proves=None,
            audits=None,
            evaluation=config.evaluation,
            amendments=Unamended(config.steps),
            at_once=1,
            number_bytes=0.0,
            quorum=UnsplitQuorum(peer.peer, peer.stage, self._electors),
            elector=peer.elector,
        )
        self.carry(peer, peer.held.opened(self.agenda.now, serving=serving))

    def _announce_all(self) -> None:
        for peer in list(self.peers.values()):
            self.announce(peer)

    def announce(self, peer: SimPeer, *, near: bool = False) -> None:
        """Send a heartbeat to all, as membership does when a seat's state changes."""
        if peer.seat is None or not peer.alive:
            return
        status = peer.seat.status(self.rate_of(peer))
        self._hear(peer, peer.peer, status, peer.epoch)
        for other in list(self.peers.values()):
            if other is not peer:
                hear = partial(self._hear, other, peer.peer, status, peer.epoch)
                self._transmit(peer, other, "control", hear)

    def rate_of(self, peer: SimPeer) -> float:
        """Return the microbatches per second that a peer claims to compute."""
        return 1.0

    def _hear(self, peer: SimPeer, of: PeerId, status: SeatStatus, epoch: int) -> None:
        if epoch != self.peers[of].epoch:
            return  # of a closed seat; its later heartbeats would show that
        if not self.peers[of].alive and self.agenda.now > 0 and of not in peer.statuses:
            return  # it was declared dead before this heartbeat arrived
        if peer.statuses.get(of) != status:
            peer.statuses[of] = status
            self._update_view(peer)

    def _vanish(self, peer: SimPeer) -> None:
        for other in self.peers.values():
            self.agenda.sometime(DETECT_S, partial(self._lose, other, peer))

    def _lose(self, peer: SimPeer, lost: SimPeer) -> None:
        peer.statuses.pop(lost.peer, None)
        self._update_view(peer)

    def _update_view(self, peer: SimPeer) -> None:
        if peer.seat is not None and peer.alive:
            view = peer.believes(self.config.stages)
            self.perform(peer, peer.seat.update_view(view, self.agenda.now))

    # --- joining ---------------------------------------------------------------------------

    def _ask_to_join(self, peer: SimPeer) -> None:
        if not peer.alive or peer.held.state is not State.ACQUIRING:
            return
        for other in list(self.peers.values()):
            if other.stage == peer.stage and other.seat is not None and other.alive:
                self.send(peer, other.peer, JoinStage(peer.stage))
        self.agenda.after(JOIN_RETRY_S, partial(self._ask_to_join, peer))

    def _admitted(self, peer: SimPeer, admit: Admit) -> None:
        known = [s.version for s in peer.statuses.values() if s.stage == peer.stage]
        behind = admit.version < max(known, default=0) - 1
        if peer.held.state is not State.ACQUIRING or behind:
            return  # admitted by a replica that has itself fallen behind
        self._open_seat(peer, step=admit.version, serving=False)
        if peer.seat is not None:
            peer.seat.admitted_by(admit, self.agenda.now)
        peer.donor = PeerId(admit.donors[0])
        self.announce(peer)
        downloaded = partial(self._downloaded, peer, admit.version, peer.epoch)
        self.agenda.sometime(DOWNLOAD_S, downloaded)

    def _downloaded(self, peer: SimPeer, version: int, epoch: int) -> None:
        donor = self.peers[peer.donor] if peer.donor else None
        if not peer.alive or peer.epoch != epoch or not peer.seat or not peer.worker or not donor:
            return
        if not donor.alive or version not in donor.snapshots:
            self._rejoin(peer, "the donor is gone")
            return
        peer.hash = peer.worker.load(version, donor.snapshots[version])
        self._check_hash(peer, version)
        self.perform(peer, peer.seat.state_loaded(self.agenda.now))

    def _rejoin(self, peer: SimPeer, why: str) -> None:
        self.note(peer, f"rejoins: {why}")
        self.carry(peer, peer.held.lose(self.agenda.now))

    def retake(self, peer: SimPeer) -> None:
        """See ``SeatWorld``."""
        peer.seat, peer.epoch = None, peer.epoch + 1
        self._vanish(peer)
        self.agenda.after(JOIN_RETRY_S, partial(self._ask_to_join, peer))

    # --- what the seats want ---------------------------------------------------------------

    def now_of(self, peer: SimPeer) -> float:
        """See ``SeatWorld``: all clocks are one."""
        return self.agenda.now

    def faulted(self, peer: SimPeer, fault: Fault) -> None:
        """See ``SeatWorld``."""
        expect(fault.kind == "behind", fault.words)
        self._rejoin(peer, fault.words)

    def committed(self, peer: SimPeer, committed: Committed) -> None:
        """See ``SeatWorld``."""
        peer.hash = committed.hash
        self._check_hash(peer, committed.version)
        if committed.loss is not None:
            known = self.losses.setdefault(committed.version - 1, committed.loss)
            expect(known == committed.loss, f"two losses for step {committed.version - 1}")

    def _check_hash(self, peer: SimPeer, version: int) -> None:
        known = self.hashes.setdefault((peer.stage, version), peer.hash)
        same = known == peer.hash
        expect(same, f"I2, I5: two lineages for stage {peer.stage} version {version}")

    # --- messages --------------------------------------------------------------------------

    def send(self, peer: SimPeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        """See ``SeatWorld``."""
        other = self.peers.get(to)
        if other is not None:
            self.messages[type(message).__name__] += 1
            arrive = partial(self._arrive, peer.peer, other, message, parts)
            self._transmit(peer, other, message.route.lane, arrive)

    def _transmit(self, src: SimPeer, dst: SimPeer, which: str, action: Action) -> None:
        """Deliver in order per lane; nothing is delivered to or from the dead."""

        def deliver() -> None:
            if dst.alive and src.alive:
                action()

        self.agenda.deliver((src.peer, dst.peer, which), self.config.delay_s, deliver)

    def _arrive(self, sender: PeerId, peer: SimPeer, message: Message, parts: Parts) -> None:
        if isinstance(message, Admit) and message.joiner == peer.peer:
            self._admitted(peer, message)
        else:
            self.take(sender, peer, message, parts)
