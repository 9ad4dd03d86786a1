"""Hosts one seat in a benchmark, with the client's network, worker and queues, without matching.

In place of engine and membership stand a list of addresses and heartbeats among those who are
linked. A broken rule or a fault ends the measurement.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from client.compute.process import WORKER_COMMAND, open_worker
from client.config import Settings
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound, NetEvent
from client.store.boundaries import BoundaryStore
from client.train.machine.time_spent import TimeSpent
from client.train.messaging.deadline_timer import DeadlineTimer
from client.train.messaging.outbox import Outbox
from client.train.stage.payloads import Payloads
from client.train.stage.seat_driver import SeatDriver, SeatHooks
from client.train.workers.opening import Fit, open_stage_request
from client.train.workers.task_scheduler import TaskScheduler
from protocol.effects import Effect, Penalise, Send
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.pipeline.effects import Committed
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Heartbeat, Message
from protocol.wire.parts import SeatStatus
from tests.bench.rivals.hosts import LOOPBACK

HEARTBEAT_S = 1.0
GRAPHS_KEPT = 8


class SeatHost:
    """The hub of one seat: sends, listens, and shows it everybody's seats.

    Args:
        seats: seats there are in all; nothing is begun before all of them have been heard of.
        lines: uplink and downlink in bytes/s of those whose are known.
    """

    def __init__(
        self,
        network: Libp2pNetwork,
        stages: int,
        seats: int,
        lines: Mapping[PeerId, tuple[float, float]],
        nursery: trio.Nursery,
    ) -> None:
        self._network, self._stages, self._seats = network, stages, seats
        self._lines = lines
        self._outbox = Outbox(network, nursery)
        self._statuses: dict[tuple[PeerId, int], SeatStatus] = {}
        self._beats = 0
        self._driver: SeatDriver | None = None

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

    async def run(self, driver: SeatDriver) -> None:
        """Carry the seat until cancelled."""
        self._driver = driver
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                DeadlineTimer(lambda: [driver.seat.next_deadline()], driver.tick).run
            )
            nursery.start_soon(self._beat)
            async for event in self._network.events:
                self._take(event)

    def changed(self) -> None:
        """Tell everybody what the seat is now."""
        if self._driver is None:
            return
        self._beats += 1
        status = self._driver.seat.status(self._driver.rate())
        for peer in self._network.statistics().peers:
            self.send(peer, Heartbeat(self._beats, [status]))
        self._heard(self._network.peer_id, [status])

    async def _beat(self) -> None:
        while True:
            self.changed()
            await trio.sleep(HEARTBEAT_S)

    def _take(self, event: NetEvent) -> None:
        match event:
            case Inbound(peer, Heartbeat() as heartbeat, _):
                self._heard(peer, heartbeat.seats)
            case Inbound(peer, message, payload) if self._driver is not None:
                self._driver.receive(peer, message, payload)

    def _heard(self, peer: PeerId, seats: Sequence[SeatStatus]) -> None:
        before = self._view()
        self._statuses |= {(peer, seat.stage): seat for seat in seats}
        if self._driver is None or len(self._statuses) < self._seats or self._view() == before:
            return
        self._driver.update_view(self._view())
        self._driver.allow_training()

    def _view(self) -> SwarmView:
        replicas: list[list[Replica]] = [[] for _ in range(self._stages)]
        for (peer, stage), s in self._statuses.items():
            up, down = self._lines.get(peer, (0.0, 0.0))
            made = Replica(
                *(peer, s.version, True, s.attempt, s.digest, s.rate),
                uplink_bytes_per_s=up,
                downlink_bytes_per_s=down,
            )
            replicas[stage].append(made)
        return SwarmView.of(replicas)


@asynccontextmanager
async def seated(
    manifest: Manifest,
    stage: int,
    index: int,
    *,
    seats: int,
    host: str = LOOPBACK,
    corpus: str = "",
    command: Sequence[str] = WORKER_COMMAND,
    lines: Sequence[tuple[float, float]] = (),
    driver_type: type[SeatDriver] = SeatDriver,
    committed: Callable[[Committed], None] = lambda committed: None,
) -> AsyncIterator[SeatDriver]:
    """Open network, worker and stage, link with the others and carry the seat within the block.

    Prints our address and reads a line with everybody's; ours is at ``index``. ``lines``, where
    given, are in their order.
    """
    async with (
        open_network(bytes([index + 1]) * 32, [(host, 0)]) as network,
        open_worker(command=command) as worker,
        trio.open_nursery() as nursery,
    ):
        settings = Settings(threads=1)
        fit = Fit(GRAPHS_KEPT, 0)
        request = open_stage_request(manifest, "ab" * 32, stage, settings, fit, corpus, 1)
        opened, _ = await worker.call(request)
        addresses = await meet(network, index)
        peers = [PeerId(address.rpartition("/")[2]) for address in addresses]
        known = dict(zip(peers, lines, strict=False))
        hub = SeatHost(network, manifest.stage_count, seats, known, nursery)
        seat = _seat(manifest, network.peer_id, stage, opened.parameters)
        driver = driver_type(
            seat,
            manifest,
            worker,
            Payloads(BoundaryStore(settings.boundary_memory_bytes, settings.boundary_disk_bytes)),
            hub,
            _hooks(hub, committed),
            nursery,
            TaskScheduler(),
            TimeSpent(),
        )
        nursery.start_soon(hub.run, driver)
        yield driver
        nursery.cancel_scope.cancel()


async def meet(network: Libp2pNetwork, index: int) -> list[str]:
    """Print our address, read everybody's, and link with all of them."""
    print(network.addresses[0], flush=True)
    addresses = (await trio.to_thread.run_sync(sys.stdin.readline)).split()
    for address in addresses[:index]:
        await network.connect(address)
    while len(network.statistics().peers) < len(addresses) - 1:
        await trio.sleep(0.01)
    return addresses


async def input_ended() -> None:
    """Wait until nobody has anything more to say to us."""
    await trio.to_thread.run_sync(sys.stdin.read)


def _seat(manifest: Manifest, me: PeerId, stage: int, size: int) -> Seat:
    return Seat(
        Place(me, stage, manifest.stage_count, manifest.microbatches_per_step),
        size=size,
        steps=manifest.steps,
        tokens_per_step=manifest.tokens_per_microbatch * manifest.microbatches_per_step,
        step=0,
        serving=True,
    )


def _hooks(host: SeatHost, committed: Callable[[Committed], None]) -> SeatHooks:
    def fail(problem: Any) -> None:
        raise SystemExit(f"the seat cannot go on: {problem}")

    def ignore(effect: Any) -> None:
        """Nothing to do."""

    return SeatHooks(
        changed=host.changed,
        committed=committed,
        rerouted=ignore,
        accepted=ignore,
        snapshot=ignore,
        fault=fail,
        convicted=ignore,
        audited=ignore,
        evaluated=ignore,
        agreed=ignore,
        met=ignore,
        worker_died=fail,
        drained=lambda: None,
    )
