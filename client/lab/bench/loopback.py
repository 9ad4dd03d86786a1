"""Messages between this process and a child of its own, over the client's real network.

Run as a module it is the child: it opens a network, prints its address, swallows chunks and
answers requests until its stdin ends.
"""

import os
import statistics
import subprocess
import sys
import time

import trio

from client.errors import UserError
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES
from protocol.wire.messages import Chunk, ChunkRequest

CHUNKS = 24
ROUND_TRIPS = 50
TIMEOUT_S = 60.0
ROOT = bytes(32)
_LISTEN = "127.0.0.1", 0


def measure_loopback() -> tuple[float, float, float]:
    """Start the child, measure, end the child; return bytes per second one way, milliseconds for a
    small message and back, and seconds to connect.

    Raises:
        UserError: the child did not start.
        trio.TooSlowError: it did not answer in time.
    """
    command = [sys.executable, "-m", "client.lab.bench.loopback"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            address = child.stdout.readline().decode().strip() if child.stdout else ""
            if not address:
                raise UserError("the second process did not start", "see volunteer doctor")
            return trio.run(_measure, address)
        finally:
            child.kill()


async def _measure(address: str) -> tuple[float, float, float]:
    with trio.fail_after(TIMEOUT_S):
        async with open_network(os.urandom(32), _LISTEN) as network:
            begin = time.perf_counter()
            peer = await network.connect(address)
            connect_s = time.perf_counter() - begin
            await _stream(network, peer, 2)  # opens the flow-control window
            streamed_s = await _stream(network, peer, CHUNKS)
            trips = [await _ask(network, peer) for _ in range(ROUND_TRIPS)]
    return CHUNKS * CHUNK_BYTES / streamed_s, 1000 * statistics.median(trips), connect_s


async def _stream(network: Libp2pNetwork, peer: PeerId, count: int) -> float:
    """Send chunks and wait until the other side has the last; return the seconds."""
    payload = os.urandom(CHUNK_BYTES)
    begin = time.perf_counter()
    for left in reversed(range(count)):
        network.post(peer, Chunk(ROOT, min(left, 1)), payload)
    await _answer(network)
    return time.perf_counter() - begin


async def _ask(network: Libp2pNetwork, peer: PeerId) -> float:
    begin = time.perf_counter()
    network.post(peer, ChunkRequest(ROOT, 0))
    await _answer(network)
    return time.perf_counter() - begin


async def _answer(network: Libp2pNetwork) -> None:
    async for event in network.events:
        if isinstance(event, Inbound) and isinstance(event.message, ChunkRequest):
            return


async def _be_the_child() -> None:
    async with open_network(os.urandom(32), _LISTEN) as network:
        print(network.addresses[0], flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, network)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()


async def _serve(network: Libp2pNetwork) -> None:
    """Answer every request, and the last chunk of a stream (index 0)."""
    async for event in network.events:
        match event:
            case Inbound(message=Chunk(index=0) | ChunkRequest(index=0)):
                network.post(event.peer, ChunkRequest(ROOT, None))


if __name__ == "__main__":
    trio.run(_be_the_child)
