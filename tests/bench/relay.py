"""What a relay costs: rate through it, memory of many circuits, fairness among its clients.

    python -m tests.bench.relay [--parts rate,memory,fairness,first,linked] [--runs 3] [--seconds 5]
                                [--mbit 100] [--rtt-ms 20] [--turns 50] [--record]

rate: one sender and one receiver, each and the relay on a line of its own (``tests.netlab``, takes
root), in turn through the relay and directly; a share of 1 is every byte of TCP payload that the
line can carry; then the relay's CPU time per MB, and the most KiB that waited there. memory:
resident memory of a relay's process with 200 circuits whose windows are full in both directions,
less that before. fairness: eight senders behind a limited relay, one of them with ten circuits;
Jain's index of the bytes of each. Medians of the runs. first, linked: seconds from the dial of a
member behind a router, at its own address and through a relay at once, until its answer to the
first request is here; the dialler is behind another router (``tests.netlab`` with conntrack, takes
root), and new each time, or linked with the relay already; p50 and p95.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import Any

import psutil
import trio

from client.lab.local_swarm import terminate_as_interrupt
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from client.net.relay.circuit import CircuitStream
from client.net.relay.exchange import ask
from protocol.ids import PeerId
from protocol.relay.messages import Connect, Status
from protocol.wire.messages import Backward
from tests.bench import figures
from tests.netlab.internet import Internet, Place
from tests.netlab.lab import Lab, uniform
from tests.netlab.routers import Router

PAYLOAD_BYTES = 256 * 1024
PORT, REQUEST_BYTES = 4001, 1024
WARM_S, SAMPLE_S = 3.0, 0.1
CIRCUITS, TARGETS = 200, 10
FAIR_RATE, GREEDY = 4_000_000, 10
HEADERS = 1448 / 1514
"""Payload of TCP in a full frame with time stamps, of what the line counts."""


# --- processes -------------------------------------------------------------------------------


async def relay(network: Libp2pNetwork, rate: float) -> None:
    """Relay, and tell of ourselves whenever asked."""
    network.passing.offer(relays=True, rate_bytes_per_s=rate)

    def now() -> dict[str, Any]:
        process = psutil.Process()
        return {
            "rss": process.memory_info().rss,
            "cpu_s": sum(process.cpu_times()[:2]),
            "circuits": network.passing.machine.circuits,
            "buffered": sum(
                link.connection.session.buffered_bytes
                for link in network._links.values()
                if link.connection is not None
            ),
        }

    await talk(network.addresses[0], now)


async def sinks(host: str, number: int, relay_address: str) -> None:
    """Be reached through a relay, or directly, as several peers; count what comes to each."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        networks = [await _opened(stack, host) for _ in range(number)]
        got = dict.fromkeys(range(number), 0)

        async def count(which: int) -> None:
            async for event in networks[which].events:
                if isinstance(event, Inbound):
                    got[which] += len(event.payload)

        addresses = []
        for which, network in enumerate(networks):
            nursery.start_soon(count, which)
            addresses.append(network.addresses[0])
            if relay_address:
                await reserved(network, relay_address)
                addresses[-1] = network.reaching.addresses[0]
        await talk(" ".join(addresses), lambda: {"bytes": list(got.values())})
        nursery.cancel_scope.cancel()


async def sources(host: str, targets: Sequence[str]) -> None:
    """Send without end, as one peer for each argument, to the addresses in it."""

    async def send(network: Libp2pNetwork, peer: PeerId) -> None:
        while True:
            await network.send(peer, Backward(0, 1, 0, 0), bytes(PAYLOAD_BYTES))

    async def drop(network: Libp2pNetwork) -> None:
        async for _ in network.events:
            pass

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for addresses in targets:
            network = await _opened(stack, host)
            nursery.start_soon(drop, network)
            for address in addresses.split():
                nursery.start_soon(send, network, await network.connect(address))
        await talk("sending", dict)
        nursery.cancel_scope.cancel()


async def echo(host: str, relay_address: str, direct: str) -> None:
    """Be reached through a relay, and send back what comes."""

    async def answer(network: Libp2pNetwork) -> None:
        async for event in network.events:
            if isinstance(event, Inbound):
                network.send_nowait(event.peer, event.message, event.payload)

    async with (
        open_network(os.urandom(32), [(host, PORT)]) as network,
        trio.open_nursery() as tasks,
    ):
        tasks.start_soon(answer, network)
        await reserved(network, relay_address)
        own = f"{direct}/p2p/{network.peer_id}"
        await talk(f"{own} {network.reaching.addresses[0]}", dict)
        tasks.cancel_scope.cancel()


async def dials(host: str, addresses: Sequence[str], relay_address: str) -> None:
    """For each line of stdin, dial a peer and say how long its first answer took."""
    print("ready", flush=True)
    async for _ in trio.wrap_file(sys.stdin):
        async with open_network(os.urandom(32), [(host, 0)]) as network:
            if relay_address:
                await network.connect(relay_address)
            began = trio.current_time()
            peer = await network.connect(*addresses)
            await network.send(peer, Backward(0, 1, 0, 0), bytes(REQUEST_BYTES))
            async for event in network.events:
                if isinstance(event, Inbound):
                    break
            took_s = trio.current_time() - began
            assert peer in network.statistics().relays
        print(json.dumps({"s": took_s}), flush=True)


async def _opened(stack: AsyncExitStack, host: str) -> Libp2pNetwork:
    return await stack.enter_async_context(open_network(os.urandom(32), [(host, 0)]))


async def reserved(network: Libp2pNetwork, relay_address: str) -> None:
    """Let a network be reached through a relay."""
    name = await network.connect(relay_address)
    network.reaching.update({name: [relay_address]}, needed=True)
    while not network.reaching.addresses:
        await trio.sleep(0.01)


async def flood(relay_address: str) -> None:
    """Open all circuits and fill their windows; nobody reads."""
    circuits: list[CircuitStream] = []

    def keep(stream: CircuitStream, relay: PeerId, asker: PeerId) -> None:
        circuits.append(stream)

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        targets = [await _opened(stack, "127.0.0.1") for _ in range(TARGETS)]
        for target in targets:
            target.serve_circuit = keep  # type: ignore[method-assign,assignment]
            await reserved(target, relay_address)
        askers = [await _opened(stack, "127.0.0.1") for _ in range(TARGETS)]
        for number in range(CIRCUITS):
            asker, target = askers[number % TARGETS], targets[number // TARGETS % TARGETS]
            connection = asker.direct(await asker.connect(relay_address))
            assert connection is not None
            stream, answer = await ask(connection, Connect(target.peer_id))
            assert isinstance(answer, Status), answer
            assert answer.code == "ok", answer
            nursery.start_soon(_fill, partial(stream.send_all, [bytes(65536)]))
        for circuit in circuits:
            nursery.start_soon(_fill, partial(circuit.send_all, bytes(65536)))
        await talk("full soon", dict)
        nursery.cancel_scope.cancel()


async def _fill(send: Callable[[], Any]) -> None:
    while True:
        await send()


async def talk(first: str, tell: Callable[[], dict[str, Any]]) -> None:
    """Say a line, then answer every line of stdin until its end."""
    print(first, flush=True)
    async for line in trio.wrap_file(sys.stdin):
        if not line.strip():
            continue
        print(json.dumps(tell()), flush=True)


async def _peer(role: str, host: str, arguments: Sequence[str]) -> None:
    match role:
        case "relay":
            async with open_network(os.urandom(32), [(host, 0)]) as network:
                await relay(network, float(arguments[0]))
        case "sinks":
            await sinks(host, int(arguments[0]), arguments[1])
        case "echo":
            await echo(host, *arguments)
        case "dials":
            await dials(host, arguments[1:], arguments[0])
        case "sources":
            await sources(host, arguments)
        case _:
            await flood(arguments[0])


class Peer:
    """One of these processes."""

    module = "tests.bench.relay"

    def __init__(self, role: str, host: str, *arguments: str, within: Sequence[str] = ()) -> None:
        program = (sys.executable, "-m", self.module, "--peer", role, host, *arguments)
        self.process = subprocess.Popen(
            [*within, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = self._line()

    def ask(self) -> dict[str, Any]:
        """Let it tell of itself."""
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended")
        return line


@contextmanager
def peers() -> Iterator[Callable[..., Peer]]:
    """Start processes that end with the block."""
    with ExitStack() as stack:

        def start(role: str, host: str, *arguments: str, within: Sequence[str] = ()) -> Peer:
            peer = Peer(role, host, *arguments, within=within)
            stack.callback(peer.end)
            return peer

        yield start


# --- parts -----------------------------------------------------------------------------------


def rate(seconds: float, mbit: float, rtt_ms: float) -> tuple[float, float, float, float]:
    """Return the shares of the line through a relay and directly, the relay's CPU ms/MB, and the
    most KiB that waited there."""
    with Lab(uniform(["a", "r", "b"], mbit), rtt_ms) as lab:
        shares = []
        cpu_ms = most_kib = 0.0
        for relayed in (True, False):
            with peers() as start:

                def on(
                    role: str,
                    name: str,
                    *arguments: str,
                    begin: Callable[..., Peer] = start,
                ) -> Peer:
                    return begin(role, lab.address(name), *arguments, within=lab.command(name))

                by = on("relay", "r", "0")
                to = on("sinks", "b", "1", by.first if relayed else "")
                on("sources", "a", to.first)
                time.sleep(WARM_S)
                began, before, cpu = time.monotonic(), to.ask()["bytes"][0], by.ask()["cpu_s"]
                while relayed and time.monotonic() < began + seconds:
                    most_kib = max(most_kib, by.ask()["buffered"] / 1024)
                    time.sleep(SAMPLE_S)
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                took, got = time.monotonic() - began, to.ask()["bytes"][0] - before
                shares.append(got * 8 / took / 1e6 / (mbit * HEADERS))
                if relayed:
                    cpu_ms = (by.ask()["cpu_s"] - cpu) * 1e3 / (got / 1e6)
        return shares[0], shares[1], cpu_ms, most_kib


def first(turns: int, rtt_ms: float, *, linked: bool) -> list[float]:
    """Return the seconds from a dial to the first answer through a relay, of each turn."""
    homes = {name: Place(Router.PORT_RESTRICTED) for name in ("a", "b")}
    with Internet({"r": Place(), **homes}, rtt_ms) as net, peers() as start:
        by = start("relay", net.address("r"), "0", within=net.command("r"))
        direct = f"/ip4/{net.public('b')}/tcp/{PORT}"
        to = start("echo", net.address("b"), by.first, direct, within=net.command("b"))
        arguments = (by.first if linked else "", *to.first.split())
        dialler = start("dials", net.address("a"), *arguments, within=net.command("a"))
        return [dialler.ask()["s"] for _ in range(turns)]


def memory() -> tuple[int, float, float]:
    """Return the circuits, the MB that they add to the relay, and the MB that it buffers."""
    with peers() as start:
        by = start("relay", "127.0.0.1", "0")
        before = by.ask()["rss"]
        start("flood", "127.0.0.1", by.first)
        most = by.ask()
        for _ in range(20):
            time.sleep(0.5)
            most = max(most, by.ask(), key=lambda told: int(told["rss"]))
        return most["circuits"], (most["rss"] - before) / 1e6, most["buffered"] / 1e6


def fairness(seconds: float) -> tuple[float, float]:
    """Return Jain's index over eight senders, one of them greedy, and the share of the rate."""
    with peers() as start:
        by = start("relay", "127.0.0.1", str(FAIR_RATE))
        to = start("sinks", "127.0.0.1", str(7 + GREEDY), by.first)
        addresses = to.first.split()
        start("sources", "127.0.0.1", *addresses[:7], " ".join(addresses[7:]))
        time.sleep(WARM_S)
        before = to.ask()["bytes"]
        time.sleep(seconds)
        got = [now - was for now, was in zip(to.ask()["bytes"], before, strict=True)]
        each = [*got[:7], sum(got[7:])]
        index = sum(each) ** 2 / (8 * sum(one**2 for one in each))
        return index, sum(each) / seconds / FAIR_RATE


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--peer"]:
        trio.run(_peer, sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="rate,memory,fairness")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=50)
    figures.add_record_flag(parser)
    asked = parser.parse_args()
    for part in asked.parts.split(","):
        if part in ("first", "linked"):
            _tell_first(part, asked)
            continue
        runs: list[tuple[float, ...]] = []
        for _ in range(asked.runs):
            match part:
                case "rate":
                    runs.append(rate(asked.seconds, asked.mbit, asked.rtt_ms))
                case "memory":
                    runs.append(memory())
                case "fairness":
                    runs.append(fairness(2 * asked.seconds))
        medians = [round(statistics.median(column), 3) for column in zip(*runs, strict=True)]
        said = [[round(value, 3) for value in run] for run in runs]
        print(f"{part}: medians {medians} of {said}; load {os.getloadavg()[0]:.1f}", flush=True)
        if part == "rate" and asked.record:
            _record_rate(medians, asked)


def _record_rate(medians: Sequence[float], asked: argparse.Namespace) -> None:
    relayed, direct, cpu_ms, kib = medians
    row = figures.figure(
        "relays",
        f"one sender through a relay, lines of {asked.mbit:g} Mb/s, {asked.rtt_ms:g} ms between "
        "any two: share of the line",
        f"**{relayed:.2f}**, directly {direct:.2f}",
        f"at most {kib:.0f} KiB waited at the relay, {cpu_ms:.0f} ms of CPU per MB; median of "
        f"{asked.runs} runs of {asked.seconds:g} s, load {os.getloadavg()[0]:.0f}",
        f"python -m tests.bench.relay --parts rate --mbit {asked.mbit:g} --rtt-ms {asked.rtt_ms:g}",
    )
    figures.record([row])


def _tell_first(part: str, asked: argparse.Namespace) -> None:
    took = first(asked.turns, asked.rtt_ms, linked=part == "linked")
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    words = f"p50 {p50:.2f} s, p95 {p95:.2f} s of {asked.turns} turns"
    print(f"{part}: {words}, most {max(took):.2f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    if asked.record:
        who = "linked with the relay already" if part == "linked" else "new to the relay as well"
        row = figures.figure(
            "relays",
            f"dial of a member behind a router until its first answer through a relay, {who}, "
            f"{asked.rtt_ms:.0f} ms between any two",
            f"**{p95:.2f} s** (p95)",
            words,
            f"python -m tests.bench.relay --parts {part} --rtt-ms {asked.rtt_ms:.0f}",
        )
        figures.record([row])


if __name__ == "__main__":
    with terminate_as_interrupt():
        main()
