"""Attack a relay, and the members that it relays for.

    python -m tests.hostile.relays [NAME ...] [--seconds 20] [--loopback]

A relay, two honest members that send through it, and one attacker, each a process of its own. They
are at three places of a laboratory's internet (``tests.netlab``, takes root), or with
``--loopback`` on one machine, where nobody is counted by address, which helps the attacker. For the
relay everybody is a member, which helps it, too. Now and then a newcomer asks for a circuit, and
leaves. Every attack is tried on a relay of its own, and prints its row of
``tests/bench/results/hostile_relays.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import psutil
import trio

from client.lab.local_swarm import terminate_as_interrupt
from client.net.errors import NetworkError
from client.net.handshake import request_protocol
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.libp2p_patches import GuardedStream
from client.net.network import Inbound
from client.net.relay.exchange import RELAY_PROTOCOL, ask
from client.net.relay.reaching import Reaching
from client.net.yamux import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.relay.messages import Connect, RelayMessage, Reserve, Status
from protocol.wire.messages import Backward
from tests.bench.machines import commit
from tests.hostile.attack import MIB
from tests.netlab.internet import Internet, Place
from tests.support.arrivals import say
from tests.support.circuits import fill


async def talk(first: str, tell: Callable[[], dict[str, Any]]) -> None:
    """Say a line, then answer every line of stdin until its end."""
    print(first, flush=True)
    async for line in trio.wrap_file(sys.stdin):
        if line.strip():
            print(json.dumps(tell()), flush=True)


async def reserved(network: Libp2pNetwork, relay_address: str) -> None:
    """Let a network be reached through a relay."""
    name = await network.connect(relay_address)
    network.reaching.update({name: [relay_address]}, needed=True)
    while not network.reaching.addresses:
        await trio.sleep(0.01)


class Process:
    """A process of this module in a role, which answers line by line."""

    def __init__(self, role: str, host: str, *arguments: str, within: Sequence[str] = ()) -> None:
        program = (sys.executable, "-m", "tests.hostile.relays", "--peer", role, host, *arguments)
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


HOST: Final = "127.0.0.1"
RATE: Final = 16_000_000
"""Bytes per second that the relay lends."""
KEPT_RATE: Final = 0.8
"""Least share of the honest rate."""
HONEST_RATE: Final = 1_000_000
"""Bytes per second that the honest members send: less than one of ten senders' share."""
PAYLOAD_BYTES: Final = 64 * 1024
NEWCOMER_EVERY_S, NEWCOMER_WAITS_S = 2.0, 5.0
"""So often a prefix may ask for one target."""
BEFORE_S: Final = 6.0
AFTER_S: Final = 4.0
BROKEN = (NetworkError, RemoteProtocolError, trio.TooSlowError)


# --- attacks ---------------------------------------------------------------------------------


@dataclass
class Attacker:
    """What an attack works with.

    Attributes:
        relay, victim: addresses; the victim's is the one through the relay.
        said: answers of the relay and of the victim, by their words, and other things to tell.
    """

    relay: str
    victim: str
    nursery: trio.Nursery
    said: Counter[str] = field(default_factory=Counter)

    @property
    def target(self) -> PeerId:
        """The victim."""
        return PeerId(self.victim.rpartition("/")[2])

    async def identity(self) -> Libp2pNetwork:
        """Return a new identity that is linked with the relay, as soon as it lets one in."""
        network: Libp2pNetwork = await self.nursery.start(_opened)
        while True:
            try:
                await network.connect(self.relay)
            except NetworkError:
                self.said["not let in"] += 1
                await trio.sleep(0.5)
                continue
            self.said["identities"] += 1
            return network

    async def ask(self, network: Libp2pNetwork, message: RelayMessage) -> YamuxStream | None:
        """Ask the relay; return the stream if it agrees. Raises NetworkError without a link."""
        connection = network.direct(self.relay_id)
        if connection is None:
            self.said["cut off"] += 1
            raise NetworkError("cut off")
        stream, answer = await ask(connection, message)
        if isinstance(answer, Status) and answer.code == "ok":
            self.said["granted"] += 1
            return stream
        assert isinstance(answer, Status)
        self.said[answer.code] += 1
        stream.reset()
        return None

    @property
    def relay_id(self) -> PeerId:
        """The relay."""
        return PeerId(self.relay.rpartition("/")[2])


async def _opened(task_status: trio.TaskStatus[Libp2pNetwork]) -> None:
    async with open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
        task_status.started(network)
        await _drop(network)


async def _drop(network: Libp2pNetwork) -> None:
    async for _ in network.events:
        pass


async def reservations(attacker: Attacker) -> None:
    """Reserve as one identity after the other, and keep each place as long as the relay does."""
    limit = trio.CapacityLimiter(400)

    async def one() -> None:
        async with limit, open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
            with suppress(*BROKEN):
                await network.connect(attacker.relay)
                attacker.said["identities"] += 1
                await attacker.ask(network, Reserve())
                while network.direct(attacker.relay_id) is not None:
                    await trio.sleep(0.5)
                attacker.said["cut off"] += 1

    while True:
        attacker.nursery.start_soon(one)
        await trio.sleep(1 / 40)


async def storm(attacker: Attacker) -> None:
    """Ask for a reservation without end, as another identity when one is banned."""
    while True:
        network = await attacker.identity()
        with suppress(*BROKEN):
            while True:
                stream = await attacker.ask(network, Reserve())
                if stream is not None:
                    stream.reset()


async def to_oneself(attacker: Attacker) -> None:
    """Ask for circuits to oneself and to the relay, as another identity when one is banned."""
    while True:
        network = await attacker.identity()
        with suppress(*BROKEN):
            while True:
                await attacker.ask(network, Connect(network.peer_id))
                await attacker.ask(network, Connect(attacker.relay_id))


async def loops(attacker: Attacker) -> None:
    """Reach the victim, which relays too, through the relay, and ask it for places and circuits."""
    while True:
        network = await attacker.identity()
        with suppress(*BROKEN):
            await network.connect(attacker.victim)
            while (link := network._links.get(attacker.target)) is not None:
                if link.connection is None:
                    break
                for message in (Reserve(), Connect(attacker.relay_id)):
                    stream, answer = await ask(link.connection, message)
                    stream.reset()
                    attacker.said[answer.code if isinstance(answer, Status) else "granted"] += 1
            attacker.said["cut off"] += 1
        await trio.sleep(0.1)


async def another_name(attacker: Attacker) -> None:
    """Reserve with the victim's name in the message."""
    named = msgspec.msgpack.encode(["Reserve", attacker.target])
    while True:
        network = await attacker.identity()
        with suppress(*BROKEN):
            while (connection := network.direct(attacker.relay_id)) is not None:
                stream = await connection.session.open_stream()
                await request_protocol(GuardedStream(stream), RELAY_PROTOCOL)
                await stream.send_all([len(named).to_bytes(2, "big") + named])
                attacker.said["answered" if await stream.receive_some(1) else "ended"] += 1
        attacker.said["cut off"] += 1


async def one_target(attacker: Attacker, askers: int) -> None:
    """Take as many circuits to the victim as one can get, as often as one may ask; say nothing."""

    async def asking() -> None:
        network = await attacker.identity()
        while True:
            with suppress(*BROKEN):
                await attacker.ask(network, Connect(attacker.target))
            if network.direct(attacker.relay_id) is None:
                attacker.said["cut off"] += 1
                network = await attacker.identity()
            await trio.sleep(0.5)

    for _ in range(askers):
        attacker.nursery.start_soon(asking)


async def break_off(attacker: Attacker) -> None:
    """Flood the victim through circuits, and break off in the midst of it, again and again."""
    while True:
        async with (
            open_network(os.urandom(32), ("127.0.0.1", 0)) as network,
            trio.open_nursery() as filling,
        ):
            with suppress(*BROKEN):
                await network.connect(attacker.relay)
                attacker.said["identities"] += 1
                for _ in range(4):
                    stream = await attacker.ask(network, Connect(attacker.target))
                    if stream is not None:
                        filling.start_soon(fill, stream)
                await trio.sleep(0.3)
            filling.cancel_scope.cancel()


async def slow_readers(attacker: Attacker) -> None:
    """Fill as many circuits as the relay has with targets that read nothing."""
    targets = []
    for _ in range(8):
        target = await attacker.identity()
        target.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        await reserved(target, attacker.relay)
        targets.append(target)
    for _ in range(8):
        asker = await attacker.identity()
        for target in 4 * targets:
            with suppress(*BROKEN):
                stream = await attacker.ask(asker, Connect(target.peer_id))
                if stream is not None:
                    attacker.nursery.start_soon(fill, stream)


async def never_agrees(attacker: Attacker) -> None:
    """Ask for circuits to targets that do not answer the relay."""
    target = await attacker.identity()
    await reserved(target, attacker.relay)
    target.reaching = _Silent()  # type: ignore[assignment]

    async def asking() -> None:
        while True:
            network = await attacker.identity()
            with suppress(*BROKEN):
                while True:
                    await attacker.ask(network, Connect(target.peer_id))
                    await trio.sleep(0.5)

    for _ in range(64):
        attacker.nursery.start_soon(asking)


class _Silent(Reaching):
    def __init__(self) -> None:
        """Answers nothing."""

    async def serve(self, *_: object) -> None:
        """Wait."""
        await trio.sleep_forever()


async def greedy(attacker: Attacker) -> None:
    """Send through 32 circuits to targets of one's own that take everything."""
    asker = await attacker.identity()
    for _ in range(8):
        target = await attacker.identity()
        take = partial(_take_all, attacker.nursery)
        target.serve_circuit = take  # type: ignore[method-assign,assignment]
        await reserved(target, attacker.relay)
        for _ in range(4):
            stream = await attacker.ask(asker, Connect(target.peer_id))
            if stream is not None:
                attacker.nursery.start_soon(fill, stream)


def _take_all(nursery: trio.Nursery, stream: Any, relay: PeerId, asker: PeerId) -> None:
    async def take() -> None:
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some(2**20):
                pass

    nursery.start_soon(take)


ATTACKS: dict[str, tuple[str, Callable[[Attacker], Awaitable[None]]]] = {
    "reservations": ("40 identities a second reserve, and keep their places.", reservations),
    "storm": ("Asks for a reservation without end; a banned identity is replaced.", storm),
    "to-oneself": ("Asks for circuits to itself and to the relay.", to_oneself),
    "loops": ("Asks over a circuit for reservations and further circuits.", loops),
    "another-name": ("Reserves with another's name in the message.", another_name),
    "one-target": (
        "Takes all circuits to one member that it gets.",
        partial(one_target, askers=1),
    ),
    "one-target-8": ("The same with eight identities.", partial(one_target, askers=8)),
    "break-off": ("Floods a member through circuits and breaks off.", break_off),
    "slow-readers": ("Fills 256 circuits whose targets read nothing.", slow_readers),
    "never-agrees": (
        "64 identities ask for a target that never answers.",
        never_agrees,
    ),
    "greedy": ("Sends through 32 circuits.", greedy),
}
"""What each does, and its actions."""


# --- processes -------------------------------------------------------------------------------


async def _relay(host: str) -> None:
    async with open_network(os.urandom(32), (host, 0)) as network:
        network.passing.offer(relays=True, rate_bytes_per_s=RATE)
        machine = network.passing.machine

        def now() -> dict[str, Any]:
            process = psutil.Process()
            return {
                "rss": process.memory_info().rss,
                "files": process.num_fds(),
                "cpu_s": sum(process.cpu_times()[:2]),
                "reservations": len(machine.reservations),
                "circuits": machine.circuits,
                "refused": dict(machine.refused),
                "blamed": dict(network.statistics().refused),
            }

        await talk(network.addresses[0], now)


async def _honest(host: str, relay: str) -> None:
    """Two members, one of which sends to the other, and newcomers that ask for the other."""
    told: dict[str, Any] = {"bytes": 0, "served": 0, "unserved": 0, "why": "", "links": 0}

    async def take(network: Libp2pNetwork) -> None:
        async for event in network.events:
            if isinstance(event, Inbound):
                told["bytes"] += len(event.payload)

    async def send(network: Libp2pNetwork, peer: PeerId) -> None:
        due = trio.current_time()
        while True:
            with suppress(NetworkError):
                await say(network, peer, Backward(0, 1, 0), bytes(PAYLOAD_BYTES))
            due = max(due + PAYLOAD_BYTES / HONEST_RATE, trio.current_time() - 1.0)
            await trio.sleep_until(due)

    async def newcomers(address: str) -> None:
        while True:
            async with open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
                try:
                    with trio.fail_after(NEWCOMER_WAITS_S):
                        await network.connect(address)
                    told["served"] += 1
                except (NetworkError, trio.TooSlowError) as error:
                    told["unserved"] += 1
                    told["why"] = str(error)[-60:]
            await trio.sleep(NEWCOMER_EVERY_S)

    async with (
        open_network(os.urandom(32), (host, 0)) as a,
        open_network(os.urandom(32), (host, 0)) as b,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(take, b)
        nursery.start_soon(_drop, a)
        await reserved(b, relay)
        b.passing.offer(relays=True)
        address = b.reaching.addresses[0]
        a.want({b.peer_id: [address]})
        while b.peer_id not in a.statistics().peers:
            await trio.sleep(0.01)
        nursery.start_soon(send, a, b.peer_id)
        nursery.start_soon(newcomers, address)

        def now() -> dict[str, Any]:
            reserved_at = len(b.reaching.relays)
            return {**told, "reserved": reserved_at, "blamed": dict(b.statistics().refused)}

        await talk(address, now)
        nursery.cancel_scope.cancel()


async def _attack(name: str, relay: str, victim: str) -> None:
    async with trio.open_nursery() as nursery:
        attacker = Attacker(relay, victim, nursery)
        nursery.start_soon(_going_on, ATTACKS[name][1], attacker)
        await talk("begun", lambda: dict(attacker.said))
        nursery.cancel_scope.cancel()


async def _going_on(attack: Callable[[Attacker], Awaitable[None]], attacker: Attacker) -> None:
    while True:
        try:
            await attack(attacker)
            return
        except BROKEN as error:
            attacker.said[f"failed: {str(error)[-40:]}"] += 1
            await trio.sleep(0.2)


async def _peer(role: str, host: str, arguments: Sequence[str]) -> None:
    match role:
        case "relay":
            await _relay(host)
        case "honest":
            await _honest(host, *arguments)
        case _:
            await _attack(*arguments)


# --- trying an attack ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one attack. Memory in bytes, rates in bytes per second."""

    attack: str
    counted: bool
    """Whether peers were counted by address."""
    rate_before: float
    rate_during: float
    newcomers_before: tuple[int, int]
    """Served, and those that tried."""
    newcomers_during: tuple[int, int]
    memory: tuple[int, int, int]
    """Resident, of the relay: before, the most during, after."""
    files: tuple[int, int, int]
    cpu_share: float
    """Of a core, that the relay took during the attack."""
    reservations: int
    """Most at a time, as the next one."""
    circuits: int
    refused: dict[str, int]
    """By the relay, with what was counted against somebody, by reason, during the attack."""
    victim: dict[str, int]
    """The same of the honest member that everybody wants to reach."""
    attacker: dict[str, int]
    """What it was told."""
    code: str

    def misses(self) -> list[str]:
        """Return the bounds that do not hold, in words."""
        served, tried = self.newcomers_during
        grown = max(self.memory[1:]) - self.memory[0]
        told = {
            f"rate {self.share:.2f} of before": self.share < KEPT_RATE,
            f"{tried - served} of {tried} newcomers not served": served < 0.8 * tried,
            f"memory grew by {grown / MIB:.0f} MiB": grown > 150 * MIB,
            f"{self.files[2] - self.files[0]} descriptors stayed open": self.files[2]
            > self.files[0] + 16,
        }
        return [words for words, so in told.items() if so]

    @property
    def share(self) -> float:
        """Of the honest rate before, what was left."""
        return self.rate_during / max(self.rate_before, 1.0)


def tried(name: str, seconds: float, net: Internet | None) -> Row:
    """Try an attack, in a laboratory or on loopback."""
    started: list[Process] = []

    def start(role: str, *arguments: str, within: Sequence[str] = ()) -> Process:
        host = HOST if net is None else net.address(role)
        around = () if net is None else net.command(role)
        started.append(Process(role, host, *arguments, within=(*around, *within)))
        return started[-1]

    try:
        relay = start("relay")
        honest = start("honest", relay.first)
        before = _watched(relay, honest, BEFORE_S)
        attacker = start("attack", name, relay.first, honest.first, within=("nice", "-n", "10"))
        during = _watched(relay, honest, seconds)
        said = attacker.ask()
        attacker.end()
        after = _watched(relay, honest, AFTER_S)
        return _row(name, before, during, after, said, counted=net is not None)
    finally:
        for process in started:
            process.end()


Looks = list[tuple[float, dict[str, Any], dict[str, Any]]]


def _watched(relay: Process, honest: Process, seconds: float) -> Looks:
    looks = []
    end = time.monotonic() + seconds
    while not looks or time.monotonic() < end:
        looks.append((time.monotonic(), relay.ask(), honest.ask()))
        time.sleep(0.25)
    return [*looks, (time.monotonic(), relay.ask(), honest.ask())]


def _row(
    name: str, before: Looks, during: Looks, after: Looks, said: dict[str, int], *, counted: bool
) -> Row:
    at, relay, honest = (list(column) for column in zip(*during, strict=True))
    took = at[-1] - at[0]
    return Row(
        attack=name,
        counted=counted,
        rate_before=_rate(before),
        rate_during=_rate(during),
        newcomers_before=_served(before),
        newcomers_during=_served(during),
        memory=(before[-1][1]["rss"], max(r["rss"] for r in relay), after[-1][1]["rss"]),
        files=(before[-1][1]["files"], max(r["files"] for r in relay), after[-1][1]["files"]),
        cpu_share=round((relay[-1]["cpu_s"] - relay[0]["cpu_s"]) / took, 2),
        reservations=max(r["reservations"] for r in relay),
        circuits=max(r["circuits"] for r in relay),
        refused=_more(relay, "refused") | _more(relay, "blamed"),
        victim=_more(honest, "blamed"),
        attacker=said,
        code=commit(),
    )


def _rate(looks: Looks) -> float:
    (began, _, first), (ended, _, last) = looks[0], looks[-1]
    return round((last["bytes"] - first["bytes"]) / (ended - began))


def _served(looks: Looks) -> tuple[int, int]:
    first, last = looks[0][2], looks[-1][2]
    served, unserved = (last[key] - first[key] for key in ("served", "unserved"))
    return served, served + unserved


def _more(looks: Sequence[dict[str, Any]], key: str) -> dict[str, int]:
    return dict(Counter(looks[-1][key]) - Counter(looks[0][key]))


# --- the table -------------------------------------------------------------------------------


def line(row: Row) -> str:
    """Return a row of the table, which says what its columns are."""
    cells = (
        row.attack if row.counted else f"{row.attack}, on loopback",
        ATTACKS[row.attack][0],
        f"{row.share:.2f}",
        "; ".join(f"{a} of {b}" for a, b in (row.newcomers_before, row.newcomers_during)),
        ", ".join(f"{size / MIB:.0f}" for size in row.memory),
        ", ".join(map(str, row.files)),
        f"{row.cpu_share:.2f}",
        f"{row.reservations}, {row.circuits}",
        *(_words(told) for told in (row.refused, row.victim, row.attacker)),
        "; ".join(row.misses()) or "held",
        row.code,
    )
    return f"| {' | '.join(cells)} |"


def _words(told: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(told.items()))


def main() -> int:
    """Try what was named and print the rows; 1 if a bound does not hold."""
    if sys.argv[1:2] == ["--peer"]:
        trio.run(_peer, sys.argv[2], sys.argv[3], sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], default=[])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--loopback", action="store_true")
    asked = parser.parse_args()
    missed = 0
    with ExitStack() as stack:
        places = {name: Place() for name in ("relay", "honest", "attack")}
        net = None if asked.loopback else stack.enter_context(Internet(places))
        for name in asked.names or ATTACKS:
            row = tried(name, asked.seconds, net)
            missed += bool(row.misses())
            print(line(row), flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    with terminate_as_interrupt():
        sys.exit(main())
