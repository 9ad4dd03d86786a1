"""The two ends of the transport benchmark, each a process of its own.

    python -m tests.bench.transport_peer serve HOST
    python -m tests.bench.transport_peer ask ADDRESS PAYLOAD_BYTES WARM_S SECONDS PROBE_S

The one that serves says its address, takes everything, and answers each question with its clock and
the payload bytes it has been handed so far. The one that asks keeps the bulk lane full (0 bytes:
leaves it alone), asks every PROBE_S seconds, and says what came of it as one JSON line. So a rate
is counted and timed where the payload arrives, and the round trip is that of a control message.

    python -m tests.bench.transport_peer plain-serve HOST
    python -m tests.bench.transport_peer plain-ask HOST:PORT BUFFER_BYTES WARM_S SECONDS STREAMS

The same over plain TCP without encryption: what the machine and its sockets can do. BUFFER_BYTES:
what the sockets are told to hold (SO_SNDBUF, SO_RCVBUF; -1: forced past the system's limits); 0:
what the kernel finds.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress

import psutil
import trio

from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from protocol.ids import PeerId
from protocol.wire.messages import Backward, Goodbye

BULK = Backward(stage=0, step=0, microbatch=0, attempt=0)
FORCED_BYTES = 64 * 1024 * 1024
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def _resident_mb() -> float:
    return round(float(psutil.Process().memory_info().rss) / 1e6, 1)


async def serve(host: str) -> None:
    """Take payloads and answer questions until killed."""
    async with open_network(os.urandom(32), [(host, 0)]) as network:
        print(network.addresses[0], flush=True)
        taken = 0
        async for event in network.events:
            if not isinstance(event, Inbound):
                continue
            taken += len(event.payload)
            if isinstance(event.message, Goodbye):
                answer = f"{time.perf_counter()} {taken} {_resident_mb()} {time.process_time()}"
                network.send_nowait(event.peer, Goodbye(answer))


async def ask(address: str, size: int, warm_s: float, seconds: float, probe_s: float) -> None:
    """Load the link, ask, and print what came of it."""
    async with open_network(os.urandom(32), []) as network, trio.open_nursery() as nursery:
        start = time.perf_counter()
        peer = await network.connect(address)
        up_ms = 1e3 * (time.perf_counter() - start)
        if size:
            nursery.start_soon(_fill, network, peer, os.urandom(size))
            await trio.sleep(warm_s)
        answers, trips, spent = [await _question(network, peer)], [], time.process_time()
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            await trio.sleep(min(probe_s, end - now))
            asked = time.perf_counter()
            answers.append(await _question(network, peer))
            trips.append(round(1e3 * (time.perf_counter() - asked), 3))
        (began, before, _, idle), (ended, after, receiver_mb, busy) = answers[0], answers[-1]
        found = {
            "rate_mb_per_s": (after - before) / 1e6 / (ended - began),
            "trips_ms": trips,
            "up_ms": up_ms,
            "sender_mb": _resident_mb(),
            "receiver_mb": receiver_mb,
            "sender_cpu_s": time.process_time() - spent,
            "receiver_cpu_s": busy - idle,
            "payload_mb": (after - before) / 1e6,
        }
        print(json.dumps(found), flush=True)
        nursery.cancel_scope.cancel()


async def _fill(network: Libp2pNetwork, peer: PeerId, payload: bytes) -> None:
    while True:
        await network.send(peer, BULK, payload)


async def _question(network: Libp2pNetwork, peer: PeerId) -> tuple[float, int, float, float]:
    network.send_nowait(peer, Goodbye("?"))
    async for event in network.events:
        if isinstance(event, Inbound) and isinstance(event.message, Goodbye):
            clock, taken, resident, spent = event.message.reason.split()
            return float(clock), int(taken), float(resident), float(spent)
    raise RuntimeError("the other process ended")


def plain_serve(host: str) -> None:
    """Count what plain connections bring; the first bytes of each say how to set its socket."""
    taken = [0]
    with socket.create_server((host, 0)) as listener:
        print("{}:{}".format(*listener.getsockname()), flush=True)
        while True:
            connection = listener.accept()[0]
            threading.Thread(target=_drain, args=(connection, taken), daemon=True).start()


def _drain(connection: socket.socket, taken: list[int]) -> None:
    buffer = bytearray(256 * 1024)
    kind = connection.recv(1)
    with suppress(OSError):
        while kind == b"?":
            connection.sendall(f"{time.perf_counter()} {taken[0]}\n".encode())
            kind = connection.recv(1)
        while count := connection.recv_into(buffer):
            taken[0] += count


def plain_ask(place: str, buffer: int, warm_s: float, seconds: float, streams: int) -> None:
    """Fill plain connections and print the rate at which their bytes arrive."""
    host, port = place.rsplit(":", 1)
    target = (host, int(port))
    for _ in range(streams):
        sender = _socket(buffer)
        sender.connect(target)
        threading.Thread(target=_send, args=(sender,), daemon=True).start()
    with socket.create_connection(target) as asker:
        time.sleep(warm_s)
        began, before = _plain_question(asker)
        time.sleep(seconds)
        ended, after = _plain_question(asker)
    rate = (after - before) / 1e6 / (ended - began)
    print(json.dumps({"rate_mb_per_s": rate}), flush=True)
    os._exit(0)  # the senders are threads that wait inside the kernel


def _socket(buffer: int) -> socket.socket:
    made = socket.socket()
    if buffer > 0:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    elif buffer < 0:
        made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, FORCED_BYTES)
    return made


def _send(sender: socket.socket) -> None:
    data = b"!" + os.urandom(256 * 1024)
    while True:
        sender.sendall(data)


def _plain_question(asker: socket.socket) -> tuple[float, int]:
    asker.sendall(b"?")
    clock, taken = asker.recv(100).split()
    return float(clock), int(taken)


def main() -> None:
    """See the module's docstring."""
    match sys.argv[1:]:
        case ["serve", host]:
            trio.run(serve, host)
        case ["ask", address, size, *numbers]:
            trio.run(ask, address, int(size), *map(float, numbers))
        case ["plain-serve", host]:
            plain_serve(host)
        case ["plain-ask", place, buffer, warm_s, seconds, streams]:
            plain_ask(place, int(buffer), float(warm_s), float(seconds), int(streams))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
