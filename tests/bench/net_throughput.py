"""How fast a link is: two processes on loopback, one bulk lane.

    python tests/bench/net_throughput.py [seconds per case]

Prints MB/s for payloads of 512 KiB and 4 MiB, the round trip of a small message on an idle link,
the time from dialling to a usable link, and the resident memory of the receiving process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import psutil
import trio

from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from protocol.ids import PeerId
from protocol.wire.messages import Backward, Goodbye, Message

LOOPBACK = [("127.0.0.1", 0)]
MORE = Backward(stage=0, step=0, microbatch=0, attempt=0)
LAST = Backward(stage=0, step=0, microbatch=1, attempt=0)


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


async def serve() -> None:
    """Receive everything, echo what asks for it, and say how much memory that takes."""
    async with open_network(os.urandom(32), LOOPBACK) as network:
        print(network.addresses[0], resident_mb(), flush=True)
        async for event in network.events:
            if isinstance(event, Inbound) and event.message in (Goodbye("?"), LAST):
                await network.send(event.peer, Goodbye(f"{resident_mb():.0f}"))


async def ask(network: Libp2pNetwork, peer: PeerId, what: Message) -> str:
    """Send a message that is echoed, and wait for the echo: the receiver's memory in MB."""
    await network.send(peer, what)
    async for event in network.events:
        if isinstance(event, Inbound) and isinstance(event.message, Goodbye):
            return event.message.reason
    raise RuntimeError("the other process ended")


async def throughput(network: Libp2pNetwork, peer: PeerId, size: int, seconds: float) -> float:
    payload, sent, start = os.urandom(size), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        await network.send(peer, Backward(stage=0, step=0, microbatch=0, attempt=0), payload)
        sent += 1  # what is queued at the end is at most 64 MiB and is waited for below
    await network._links[peer].queues["bulk"].wait_empty()
    return sent * size / 1e6 / (time.perf_counter() - start)


async def measure(address: str, seconds: float) -> None:
    async with open_network(os.urandom(32), LOOPBACK) as network:
        start = time.perf_counter()
        peer = await network.connect(address)
        print(f"link up after {1e3 * (time.perf_counter() - start):.1f} ms")
        rtts = []
        for _ in range(500):
            start = time.perf_counter()
            await ask(network, peer, Goodbye("?"))
            rtts.append(1e3 * (time.perf_counter() - start))
        tail = statistics.quantiles(rtts, n=100)
        print(f"small message there and back: median {tail[49]:.2f} ms, p99 {tail[98]:.2f} ms")
        for size in (64 * 1024, 512 * 1024, 4 * 1024 * 1024):
            rate = await throughput(network, peer, size, seconds)
            print(f"{size // 1024:5} KiB payloads: {rate:6.0f} MB/s")
        receiver_mb = await ask(network, peer, Goodbye("?"))
        print(f"resident: sender {resident_mb():.0f} MB, receiver {receiver_mb} MB")


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        trio.run(serve)
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, idle_mb = server.stdout.readline().split()
        print(f"resident after opening: {float(idle_mb):.0f} MB")
        try:
            trio.run(measure, address, seconds)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
