"""One of several replicas of a stage that average, each in a process of its own.

    python -m tests.bench.rivals.averaging_peer MANIFEST CORPUS INDEX full|bare

Network, worker, seat, rounds, codec and queues are the client's own. In place of engine and
membership stand a list of peers and heartbeats among them; in place of much computing, one sequence
of 16 tokens a microbatch. Prints its address, reads everybody's, and prints a line of JSON per
version: when its plan came, when it began to apply and when that was done (monotonic seconds), the
state's hash, and the seconds that its worker took by task. Ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from client.compute.launch import WORKER_COMMAND
from client.compute.process import Worker, open_worker
from client.config import Settings
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound, NetEvent
from client.store.boundaries import BoundaryStore
from client.train.alarm import Alarm
from client.train.opening import open_stage_request
from client.train.outbox import Outbox
from client.train.payloads import Payloads
from client.train.seat_driver import SeatDriver, SeatHooks
from client.train.turnstile import Turnstile
from client.train.worker_tasks import Call
from protocol.effects import Effect, Penalise, Send
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.pipeline.effects import ApplyTask, Committed, Compute, ContributeTask, Task
from protocol.pipeline.pipeline import Place
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Heartbeat, Message
from protocol.wire.parts import SeatStatus

BARE_WORKER = (sys.executable, "-m", "tests.bench.rivals.bare_worker")
HEARTBEAT_S = 1.0


@dataclass
class Moments:
    """One round at this peer."""

    plan: float = 0.0
    apply: float = 0.0
    tasks: dict[str, float] = field(default_factory=dict)


class TimedDriver(SeatDriver):
    """Notes when a round's tasks begin and what they cost the worker."""

    moments = Moments()
    _busy_before = 0.0

    def _perform_one(self, effect: SeatEffect, parts: tuple[bytes, ...]) -> None:
        if isinstance(effect, Compute) and isinstance(effect.task, ContributeTask):
            self.moments = Moments(plan=time.monotonic())
        elif isinstance(effect, Compute) and isinstance(effect.task, ApplyTask):
            self.moments.apply = time.monotonic()
        super()._perform_one(effect, parts)

    def _store(self, task: Task, call: Call, payloads: list[bytes]) -> None:
        self.moments.tasks[type(task).__name__] = self.busy_s - self._busy_before
        self._busy_before = self.busy_s
        super()._store(task, call, payloads)


class Peer:
    """The hub of one seat."""

    def __init__(self, network: Libp2pNetwork, manifest: Manifest, nursery: trio.Nursery) -> None:
        self._network, self._manifest = network, manifest
        self._outbox = Outbox(network, nursery)
        self._statuses: dict[PeerId, SeatStatus] = {}
        self._beats = 0
        self._driver: TimedDriver | None = None
        self.expected = 0

    def now(self) -> float:
        """Monotonic seconds."""
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        """Queue a message."""
        self._outbox.put(peer, message, payload)

    def perform(self, effect: Effect) -> None:
        """Send; who breaks a rule ends the measurement."""
        if isinstance(effect, Send):
            self.send(effect.peer, effect.message)
        elif isinstance(effect, Penalise) and effect.points > 1:
            raise SystemExit(f"{effect.peer} is penalised: {effect.reason}")

    def sit(self, driver: TimedDriver) -> None:
        """Take the seat and say so."""
        self._driver = driver
        self.changed()

    def changed(self) -> None:
        """Tell everybody what the seat is now."""
        if self._driver is None:
            return
        self._beats += 1
        status = self._driver.seat.status(self._driver.rate())
        for peer in self._network.statistics().peers:
            self.send(peer, Heartbeat(self._beats, [status]))
        self._heard(self._network.peer_id, status)

    async def beat(self) -> None:
        """Repeat it every second."""
        while True:
            self.changed()
            await trio.sleep(HEARTBEAT_S)

    async def listen(self) -> None:
        """Hand the seat what comes."""
        async for event in self._network.events:
            self._take(event)

    def _take(self, event: NetEvent) -> None:
        match event:
            case Inbound(peer, Heartbeat() as heartbeat, _):
                self._heard(peer, heartbeat.seats[0])
            case Inbound(peer, message, payload) if self._driver is not None:
                self._driver.receive(peer, message, payload)

    def _heard(self, peer: PeerId, status: SeatStatus) -> None:
        known = self._statuses.get(peer)
        self._statuses[peer] = status
        new = known is None or known.version != status.version
        if not new or self._driver is None or len(self._statuses) < self.expected:
            return
        replicas = [
            Replica(peer, s.version, True, s.attempt, s.digest, s.rate)
            for peer, s in self._statuses.items()
        ]
        self._driver.update_view(SwarmView.of([replicas]))
        self._driver.allow_training()

    def tell(self, committed: Committed) -> None:
        """Print what a round took."""
        assert self._driver is not None
        moments = self._driver.moments
        said = {
            "version": committed.version,
            "hash": committed.hash,
            "plan": moments.plan,
            "apply": moments.apply,
            "done": time.monotonic(),
            "tasks": moments.tasks,
        }
        print(json.dumps(said), flush=True)


async def run(manifest: Manifest, corpus: str, index: int, command: tuple[str, ...]) -> None:
    """Average until standard input ends."""
    async with (
        open_network(bytes([index + 1]) * 32, [("127.0.0.1", 0)]) as network,
        open_worker(command=command) as worker,
        trio.open_nursery() as nursery,
    ):
        opened, _ = await worker.call(
            open_stage_request(manifest, "ab" * 32, 0, Settings(threads=1), 1, corpus)
        )
        peer = Peer(network, manifest, nursery)
        print(network.addresses[0], flush=True)
        addresses = (await trio.to_thread.run_sync(sys.stdin.readline)).split()
        peer.expected = len(addresses)
        for address in addresses[:index]:
            await network.connect(address)
        while len(network.statistics().peers) < len(addresses) - 1:
            await trio.sleep(0.01)
        driver = _driver(peer, manifest, worker, opened.parameters, nursery)
        nursery.start_soon(peer.listen)
        peer.sit(driver)
        nursery.start_soon(peer.beat)
        nursery.start_soon(Alarm(lambda: [driver.seat.next_deadline()], driver.tick).run)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


def _driver(
    peer: Peer, manifest: Manifest, worker: Worker, size: int, nursery: trio.Nursery
) -> TimedDriver:
    place = Place(peer._network.peer_id, 0, 1, manifest.microbatches_per_step)
    tokens = manifest.tokens_per_microbatch * manifest.microbatches_per_step
    seat = Seat(
        place, size=size, steps=manifest.steps, tokens_per_step=tokens, step=0, serving=True
    )

    def fail(problem: Any) -> None:
        raise SystemExit(f"the seat cannot go on: {problem}")

    def ignore(effect: Any) -> None:
        """Nothing to do."""

    hooks = SeatHooks(
        changed=peer.changed,
        committed=peer.tell,
        rerouted=ignore,
        accepted=ignore,
        snapshot=ignore,
        fault=fail,
        worker_died=fail,
        left=lambda: None,
    )
    settings = Settings()
    store = BoundaryStore(settings.boundary_memory_bytes, settings.boundary_disk_bytes)
    return TimedDriver(seat, manifest, worker, Payloads(store), peer, hooks, nursery, Turnstile())


def main() -> None:
    """Run."""
    manifest_path, corpus, index, kind = sys.argv[1:]
    manifest = msgspec.json.decode(Path(manifest_path).read_bytes(), type=Manifest)
    trio.run(run, manifest, corpus, int(index), BARE_WORKER if kind == "bare" else WORKER_COMMAND)


if __name__ == "__main__":
    main()
