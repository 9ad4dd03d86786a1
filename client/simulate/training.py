"""A seeded discrete-event world that trains with the real seat machines and exact arithmetic.

Gradients are multisets of microbatch ids, parameters a hash chain over them, so the invariants can
be checked without a single floating point number: every applied step must contain each id exactly
once (I1), replicas at one version must have one hash (I2), and two hashes for one (stage, version)
never exist (I5). Messages take random time, per lane in order, as on a TCP stream; a killed peer is
noticed by the others some time later, each in its own moment.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.effects import Explain, Penalise, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import (
    ApplyLocalTask,
    ApplyTask,
    BackwardTask,
    Committed,
    Compute,
    ContributeTask,
    DropStep,
    Fault,
    ForwardTask,
    Keep,
    LossTask,
    Outcome,
    PayloadKey,
    ReduceTask,
    SendPayload,
    SubtractTask,
    Task,
)
from protocol.pipeline.pipeline import Place
from protocol.seat.effects import SeatEffect, Serving, Snapshot
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, JoinStage, Message, SeatStatus, lane

Payload = tuple[tuple[int, int], ...]
"""A multiset of microbatch ids: sorted pairs of id and count."""
GRADIENT_SIZE = 1024


class InvariantViolation(AssertionError):
    """The run broke an invariant; the message names the seed."""


@dataclass(frozen=True)
class WorldConfig:
    """What a simulated run looks like; times in seconds."""

    stages: int = 2
    replicas: int = 2
    per_step: int = 8
    steps: int = 6
    seed: int = 0
    delay_s: tuple[float, float] = (0.001, 0.02)
    compute_s: tuple[float, float] = (0.01, 0.05)
    detect_s: tuple[float, float] = (0.01, 0.3)


@dataclass
class SimPeer:
    """A volunteer: one seat, one serial worker, and what it believes of the others."""

    peer: PeerId
    stage: int
    seat: Seat | None = None
    alive: bool = True
    accumulator: Counter[int] = field(default_factory=Counter)
    parameters: str = "initial"
    payloads: dict[PayloadKey, Payload] = field(default_factory=dict)
    worker_free_at: float = 0.0
    statuses: dict[PeerId, SeatStatus] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    donor: PeerId | None = None
    epoch: int = 0
    """Rises when the seat is replaced, so that outcomes of the old one are void."""


class TrainingWorld:
    """Runs a swarm to its last step; ``run`` raises ``InvariantViolation`` or returns."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.now = 0.0
        self.random = random.Random(config.seed)
        self.peers: dict[PeerId, SimPeer] = {}
        self.hashes: dict[tuple[int, int], str] = {}
        self.log: list[str] = []
        self.messages = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._lane_free_at: dict[tuple[PeerId, PeerId, str], float] = {}
        for stage in range(config.stages):
            for index in range(config.replicas):
                self.add_peer(stage, f"{stage}/{index}")
        for peer in self.peers.values():
            self._open_seat(peer, step=0, serving=True)

    # --- building --------------------------------------------------------------------------

    def add_peer(self, stage: int, name: str) -> SimPeer:
        """Create a volunteer for a stage; it has no seat yet."""
        key = hashlib.blake2b(f"{self.config.seed}/{name}".encode(), digest_size=32).digest()
        peer = SimPeer(peer_id_from_key(key), stage)
        self.peers[peer.peer] = peer
        return peer

    def join(self, stage: int, name: str) -> SimPeer:
        """A newcomer asks every replica of a stage to be let in, until somebody admits it."""
        peer = self.add_peer(stage, name)
        self._ask_to_join(peer)
        return peer

    def kill(self, peer: SimPeer) -> None:
        """The peer vanishes; each other one notices in its own time."""
        peer.alive = False
        self.log.append(f"{self.now:.3f} kill {peer.peer[-6:]} stage {peer.stage}")
        for other in self.peers.values():
            self._after(self._uniform(self.config.detect_s), lambda o=other: self._lose(o, peer))

    # --- running ---------------------------------------------------------------------------

    def run(self, limit_s: float = 120.0) -> None:
        """Run until every live serving replica has committed the last step."""
        for peer in list(self.peers.values()):
            self._announce(peer)
        while not self.finished():
            if not self._events or self.now > limit_s:
                raise InvariantViolation(self._stuck())
            self.now, _, action = heapq.heappop(self._events)
            action()

    def run_until(self, condition: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Run until a condition holds (or the run is over)."""
        while not condition() and not self.finished():
            if not self._events or self.now > limit_s:
                raise InvariantViolation(self._stuck())
            self.now, _, action = heapq.heappop(self._events)
            action()

    def finished(self) -> bool:
        """Whether every live replica with a serving seat is at the last version."""
        seats = [p.seat for p in self.peers.values() if p.alive and p.seat and p.seat.serving]
        joining = any(
            p.alive and (p.seat is None or not p.seat.serving) for p in self.peers.values()
        )
        return bool(seats) and not joining and all(seat.finished for seat in seats)

    def _stuck(self) -> str:
        lines = [f"seed {self.config.seed}: no progress at {self.now:.2f} s"]
        for peer in self.peers.values():
            if peer.alive and peer.seat:
                seat = peer.seat
                lines.append(
                    f"  {peer.peer[-6:]} step {seat.step} done {sorted(seat.pipeline.done())} "
                    f"in flight {sorted(seat.pipeline.in_flight())} {seat.why()}"
                )
        return "\n".join([*lines, *self.log[-20:]])

    # --- seats -----------------------------------------------------------------------------

    def _open_seat(self, peer: SimPeer, step: int, serving: bool) -> None:
        config = self.config
        place = Place(peer.peer, peer.stage, config.stages, config.per_step)
        peer.epoch += 1
        peer.accumulator, peer.payloads = Counter(), {}
        peer.seat = Seat(
            place,
            size=GRADIENT_SIZE,
            steps=config.steps,
            tokens_per_step=1,
            step=step,
            serving=serving,
        )
        self._perform(peer, peer.seat.allow_training(self.now), None)

    def _view(self, peer: SimPeer) -> SwarmView:
        stages: list[list[Replica]] = [[] for _ in range(self.config.stages)]
        for other, status in peer.statuses.items():
            stages[status.stage].append(
                Replica(
                    other,
                    status.version,
                    status.state == "serving",
                    status.attempt,
                    status.digest,
                    status.rate,
                )
            )
        return SwarmView.of(stages)

    def _announce(self, peer: SimPeer) -> None:
        """Heartbeat to everybody, as membership does when a seat's state changes."""
        if peer.seat is None or not peer.alive:
            return
        status = peer.seat.status(rate=1.0)
        self._hear(peer, peer.peer, status)
        for other in list(self.peers.values()):
            if other is not peer:
                self._transmit(
                    peer.peer, other, "control", lambda o=other: self._hear(o, peer.peer, status)
                )

    def _hear(self, peer: SimPeer, of: PeerId, status: SeatStatus) -> None:
        if not self.peers[of].alive and self.now > 0 and of not in peer.statuses:
            return  # it was declared dead before this heartbeat arrived
        peer.statuses[of] = status
        self._update_view(peer)

    def _lose(self, peer: SimPeer, lost: SimPeer) -> None:
        peer.statuses.pop(lost.peer, None)
        self._update_view(peer)

    def _update_view(self, peer: SimPeer) -> None:
        if peer.seat is not None and peer.alive:
            self._perform(peer, peer.seat.update_view(self._view(peer), self.now), None)

    # --- joining ---------------------------------------------------------------------------

    def _ask_to_join(self, peer: SimPeer) -> None:
        if not peer.alive or peer.seat is not None:
            return
        for other in list(self.peers.values()):
            if other.stage == peer.stage and other.seat is not None and other.alive:
                self._send(peer, other.peer, JoinStage(peer.stage), None)
        self._after(1.0, lambda: self._ask_to_join(peer))

    def _admitted(self, peer: SimPeer, admit: Admit) -> None:
        known = [s.version for s in peer.statuses.values() if s.stage == peer.stage]
        if peer.seat is not None or admit.version < max(known, default=0) - 1:
            return  # admitted by a replica that has itself fallen behind
        self._open_seat(peer, step=admit.version, serving=False)
        peer.donor = PeerId(admit.donors[0])
        self._announce(peer)
        epoch = peer.epoch
        self._after(
            self._uniform((0.05, 2.0)), lambda: self._downloaded(peer, admit.version, epoch)
        )

    def _downloaded(self, peer: SimPeer, version: int, epoch: int) -> None:
        donor = self.peers[peer.donor] if peer.donor else None
        if not peer.alive or peer.epoch != epoch or peer.seat is None or donor is None:
            return
        if not donor.alive or version not in donor.snapshots:
            self._rejoin(peer, "the donor is gone")
            return
        peer.parameters = donor.snapshots[version]
        self._perform(peer, peer.seat.state_loaded(self.now), None)

    def _rejoin(self, peer: SimPeer, why: str) -> None:
        self.log.append(f"{self.now:.3f} {peer.peer[-6:]} rejoins: {why}")
        peer.seat, peer.epoch = None, peer.epoch + 1
        for other in self.peers.values():
            self._after(self._uniform(self.config.detect_s), lambda o=other: self._lose(o, peer))
        self._after(1.0, lambda: self._ask_to_join(peer))

    # --- effects ---------------------------------------------------------------------------

    def _perform(
        self, peer: SimPeer, effects: list[SeatEffect], payload: tuple[Payload, ...] | None
    ) -> None:
        for effect in effects:
            match effect:
                case Keep(keys):
                    for key, part in zip(keys, payload or (), strict=True):
                        peer.payloads[key] = part
                case Send(to, message):
                    self._send(peer, to, message, None)
                case SendPayload(to, message, keys):
                    parts = tuple(peer.payloads.get(key, ()) for key in keys)
                    self._send(peer, to, message, parts)
                case DropStep(step):
                    peer.payloads = {k: v for k, v in peer.payloads.items() if k.step != step}
                case Compute(task):
                    self._submit(peer, task)
                case Committed(stage, version, digest):
                    self._check_commit(peer, stage, version, digest)
                case Serving():
                    self._announce(peer)
                case Snapshot(version):
                    peer.snapshots[version] = peer.parameters
                case Fault(kind, words):
                    if kind != "behind":
                        raise InvariantViolation(f"seed {self.config.seed}: {words}")
                    self._rejoin(peer, words)
                    return
                case Explain(_, words):
                    self.log.append(f"{self.now:.3f} {peer.peer[-6:]} {words}")
                case Penalise(culprit, reason):
                    self.log.append(
                        f"{self.now:.3f} {peer.peer[-6:]} blames {culprit[-6:]} {reason}"
                    )
                case _:
                    pass

    def _check_commit(self, peer: SimPeer, stage: int, version: int, digest: str) -> None:
        known = self.hashes.setdefault((stage, version), digest)
        if known != digest:
            raise InvariantViolation(
                f"seed {self.config.seed}: two lineages for stage {stage} version {version}"
            )
        self._announce(peer)

    def _send(
        self, peer: SimPeer, to: PeerId, message: Message, payload: tuple[Payload, ...] | None
    ) -> None:
        other = self.peers.get(to)
        if other is None:
            return
        self.messages += 1
        self._transmit(
            peer.peer,
            other,
            lane(message),
            lambda: self._arrive(peer.peer, other, message, payload),
        )

    def _transmit(self, src: PeerId, dst: SimPeer, which: str, action: Callable[[], None]) -> None:
        """Deliver in order per lane; nothing is delivered to or from the dead."""
        key = (src, dst.peer, which)
        at = max(self.now + self._uniform(self.config.delay_s), self._lane_free_at.get(key, 0.0))
        self._lane_free_at[key] = at

        def deliver() -> None:
            if dst.alive and self.peers[src].alive:
                action()

        self._at(at, deliver)

    def _arrive(
        self, sender: PeerId, peer: SimPeer, message: Message, payload: tuple[Payload, ...] | None
    ) -> None:
        if isinstance(message, Admit) and message.joiner == peer.peer:
            self._admitted(peer, message)
        elif peer.seat is not None:
            digest = _digest(payload[0]) if payload else b""
            effects = peer.seat.receive(sender, message, self.now, digest)
            self._perform(peer, effects, payload)

    # --- the worker ------------------------------------------------------------------------

    def _submit(self, peer: SimPeer, task: Task) -> None:
        start = max(self.now, peer.worker_free_at)
        peer.worker_free_at = start + self._uniform(self.config.compute_s)
        epoch = peer.epoch
        self._at(peer.worker_free_at, lambda: self._compute(peer, task, epoch))

    def _compute(self, peer: SimPeer, task: Task, epoch: int) -> None:
        if not peer.alive or peer.epoch != epoch or peer.seat is None:
            return
        outcome = self._run_task(peer, task)
        self._perform(peer, peer.seat.computed(task, outcome, self.now), None)

    def _run_task(self, peer: SimPeer, task: Task) -> Outcome:
        match task:
            case ForwardTask(step, m):
                peer.payloads[PayloadKey(step, "tokens", m)] = ()
                peer.payloads[PayloadKey(step, "output", m)] = ((m, 1),)
            case LossTask(step, m) | BackwardTask(step, m):
                if isinstance(task, BackwardTask):
                    self._expect(peer.payloads[PayloadKey(step, "grad_in", m)] == ((m, 1),), "grad")
                peer.accumulator[m] += 1
                peer.payloads[PayloadKey(step, "grad_out", m)] = ((m, 1),)
                return Outcome(loss_sum=1.0)
            case SubtractTask(_, m):
                peer.accumulator[m] -= 1
            case ContributeTask(step, attempt, bounds):
                whole = _payload(peer.accumulator)
                for i in range(len(bounds) - 1):
                    peer.payloads[PayloadKey(step, "shard", i, attempt, peer.peer)] = whole
            case ReduceTask(step, attempt, shard, parts):
                total: Counter[int] = Counter()
                for key in parts:
                    total.update(dict(peer.payloads[key]))
                reduced = _payload(total)
                peer.payloads[PayloadKey(step, "reduced", shard, attempt)] = reduced
                return Outcome(digests=(_digest(reduced),))
            case ApplyTask(step, _, _, keys):
                return self._apply(peer, step, [peer.payloads[key] for key in keys if key])
            case ApplyLocalTask(step):
                return self._apply(peer, step, [_payload(peer.accumulator)])
        return Outcome()

    def _apply(self, peer: SimPeer, step: int, shards: list[Payload]) -> Outcome:
        first = step * self.config.per_step
        exact = tuple((m, 1) for m in range(first, first + self.config.per_step))
        self._expect(all(shard == exact for shard in shards), f"I1 at step {step}: {shards}")
        peer.parameters = hashlib.blake2b(
            f"{peer.parameters}|{exact}".encode(), digest_size=16
        ).hexdigest()
        peer.accumulator = Counter()
        return Outcome(hash=peer.parameters)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise InvariantViolation(f"seed {self.config.seed}: {what}\n" + "\n".join(self.log))

    # --- time ------------------------------------------------------------------------------

    def start_clock(self, tick_s: float = 0.25) -> None:
        """Tick every seat's deadlines now and then."""

        def tick() -> None:
            for peer in list(self.peers.values()):
                deadline = peer.seat.next_deadline() if peer.seat and peer.alive else None
                if peer.seat and deadline is not None and deadline <= self.now:
                    self._perform(peer, peer.seat.tick(self.now), None)
            self._after(tick_s, tick)

        def heartbeat() -> None:
            for peer in list(self.peers.values()):
                self._announce(peer)
            self._after(1.0, heartbeat)

        tick()
        heartbeat()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule something (a kill, a join)."""
        self._after(delay_s, action)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._at(self.now + delay_s, action)

    def _at(self, at: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, action))

    def _uniform(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)


def _payload(counter: Counter[int]) -> Payload:
    return tuple(sorted((m, n) for m, n in counter.items() if n))


def _digest(payload: Payload) -> bytes:
    return hashlib.blake2b(repr(payload).encode(), digest_size=32).digest()
