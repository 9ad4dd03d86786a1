"""Stages 0 and 2 of three, without their computing: sends boundaries to stage 1 and gets them back.

    python -m tests.bench.rivals.chain_client MANIFEST SECONDS IN_FLIGHT[,IN_FLIGHT...]

For every microbatch: encode the activation, send it as stage 0; decode what arrives as stage 2,
encode a gradient, send that back; decode the gradient that comes back as stage 0. Prints its
address, reads both, and prints a line of JSON per number in flight: samples per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import torch
import trio

from client.compute.wire import Wire
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.messages import Backward, Forward, Heartbeat, Receipt
from protocol.wire.parts import SeatStatus
from tests.bench.rivals.chain_stage import STAGE
from tests.bench.rivals.seat_host import HEARTBEAT_S, meet

WARM_UP = 4
"""Microbatches before the clock starts."""
PATIENCE_S = 120.0


class Ends:
    """Both ends of the chain."""

    def __init__(self, network: Libp2pNetwork, peer: PeerId, manifest: Manifest) -> None:
        self._network, self._peer = network, peer
        model, rows = manifest.model, manifest.sequences_per_microbatch
        codec = manifest.boundary_codec
        device = torch.device("cpu")
        shape = (rows, model.context, model.width, model.vocab)
        self._wire = Wire(*shape, codec, codec, device)
        generator = torch.Generator().manual_seed(0)
        self._hidden = torch.randn(shape[:3], generator=generator)
        self._gradient = torch.randn(shape[:3], generator=generator)
        self._tokens = bytes(2 * rows * (model.context + 1))
        self._next = 0

    async def beat(self) -> None:
        """Say that we serve stages 0 and 2."""
        seats = [SeatStatus(stage, 0, "serving", 0, 0, 1.0) for stage in (0, STAGE + 1)]
        for number in range(1, 1 << 30):
            await self._network.send(self._peer, Heartbeat(number, seats))
            await trio.sleep(HEARTBEAT_S)

    async def begin(self) -> None:
        """Send the next microbatch into the chain."""
        number, self._next = self._next, self._next + 1
        tensor = self._wire.boundary_out(self._hidden, "forward")
        message = Forward(STAGE, 0, number, 0, len(self._tokens), again=False)
        await self._network.send(self._peer, message, self._tokens + bytes(tensor))

    async def returns(self) -> AsyncIterator[int]:
        """Answer what comes, and yield each microbatch whose gradient has come back."""
        async for event in self._network.events:
            match event:
                case Inbound(_, Forward(stage=stage) as message, payload) if stage == STAGE + 1:
                    await self._turn_round(message, payload)
                case Inbound(_, Backward(stage=0, microbatch=number), payload):
                    self._wire.boundary_in(payload, "backward", 0)
                    yield number
                case Inbound(_, Receipt(verdict="busy" | "stale" | "absent") as refused, _):
                    raise SystemExit(f"the stage refuses: {refused}")

    async def _turn_round(self, message: Forward, payload: bytes) -> None:
        place = (message.step, message.microbatch, message.attempt)
        await self._network.send(self._peer, Receipt(STAGE + 1, *place, "accepted"))
        tensor = memoryview(payload)[message.tokens_bytes :]
        self._wire.boundary_in(tensor, "forward", 0)
        back = self._wire.boundary_out(self._gradient, "backward")
        await self._network.send(self._peer, Backward(STAGE, *place), bytes(back))


async def run(manifest: Manifest, seconds: float, widths: list[int]) -> None:
    """Measure every number in flight."""
    torch.set_num_threads(1)
    async with (
        open_network(bytes([2]) * 32, [("127.0.0.1", 0)]) as network,
        trio.open_nursery() as nursery,
    ):
        await meet(network, index=1)
        [peer] = network.statistics().peers
        ends = Ends(network, peer, manifest)
        nursery.start_soon(ends.beat)
        await trio.sleep(HEARTBEAT_S / 2)  # the stage opens its seat when it has met us
        async with aclosing(ends.returns()) as returns:
            for width in widths:
                with trio.fail_after(seconds + PATIENCE_S):
                    rate = await pace(ends, returns, width, seconds)
                samples = rate * manifest.sequences_per_microbatch
                print(json.dumps({"in_flight": width, "samples_per_s": samples}), flush=True)
        nursery.cancel_scope.cancel()


async def pace(ends: Ends, returns: AsyncIterator[int], width: int, seconds: float) -> float:
    """Return microbatches per second with ``width`` of them in flight."""
    for _ in range(width):
        await ends.begin()
    for _ in range(WARM_UP):
        await anext(returns)
        await ends.begin()
    begin, done = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        await anext(returns)
        done += 1
        await ends.begin()
    rate = done / (time.monotonic() - begin)
    for _ in range(width):
        await anext(returns)
    return rate


def main() -> None:
    """Run."""
    path, seconds, widths = sys.argv[1:]
    manifest = msgspec.json.decode(Path(path).read_bytes(), type=Manifest)
    trio.run(run, manifest, float(seconds), [int(width) for width in widths.split(",")])


if __name__ == "__main__":
    main()
