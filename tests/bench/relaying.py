"""What relaying costs the volunteer that relays: its own steps, while others fill what it lends.

    python -m tests.bench.relaying [--mbit 20] [--rtt-ms 20] [--lent 5Mbit/s] [--microbatches 32]
                                   [--sequences 48] [--turns 6] [--steps 4] [--record]

Two volunteers of one thread, a stage each, train over lines of one rate; the first one relays. Two
more members send and receive through it as much as it lets them, in turns with silence, all in
namespaces (takes root). A turn is so many steps, of which the first does not count. The loss is
that of the mean step with relaying against without; beside it stands the share of what was lent
that went through.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import OptimizerChoices, RunChoices
from client.errors import UserError
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.net.relay.exchange import ask
from client.net.transport import ByteStream
from client.quantities import parse_rate
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from protocol.ids import PeerId
from protocol.invite import parse_swarm_file
from protocol.relay.messages import Connect, Status
from tests.bench import figures, relay
from tests.bench.relay import talk
from tests.bench.wan import MODEL
from tests.hostile.stranger import Stranger, open_stranger
from tests.netlab.internet import Internet, Place

HOSTS, PORT = ("a", "b", "c", "d"), 4001
PIECE = bytes(64 * 1024)
START_S, STEP_S, POLL_S = 180.0, 60.0, 0.2
KEPT_S = 20.0
"""A circuit on which nothing moves for a minute would end."""


# --- the two that are relayed ----------------------------------------------------------------


async def sink(swarm: Path) -> None:
    """Be reached through the relay, and count what comes."""
    file = parse_swarm_file(swarm.read_text())
    at = str(file.peers[0])
    got = 0
    async with open_stranger(file, [at]) as member, trio.open_nursery() as nursery:

        async def count(stream: ByteStream) -> None:
            nonlocal got
            while data := await stream.receive_some(1 << 16):
                got += len(data)

        def serve(stream: ByteStream, relay: PeerId, asker: PeerId) -> None:
            nursery.start_soon(count, stream)

        member.network.serve_circuit = serve  # type: ignore[method-assign]
        await _join(member)
        member.network.reaching.update({file.peers[0].peer: [at]}, needed=True)
        while not member.network.reaching.addresses:
            await trio.sleep(0.1)
        await talk(member.me, lambda: {"bytes": got})
        nursery.cancel_scope.cancel()


async def source(swarm: Path, target: str) -> None:
    """Send without end through the relay, and pause at every second line of stdin."""
    file = parse_swarm_file(swarm.read_text())
    async with open_stranger(file, [str(file.peers[0])]) as member, trio.open_nursery() as nursery:
        await _join(member)
        sends, goes = False, trio.Event()

        async def send() -> None:
            connection = member.network.direct(PeerId(str(file.peers[0].peer)))
            assert connection is not None
            stream, answer = await ask(connection, Connect(target))
            assert answer == Status("ok", answer.host if isinstance(answer, Status) else "")
            while True:
                with trio.move_on_after(KEPT_S):
                    await goes.wait()
                await stream.send_all([PIECE if sends else b"."])

        def turn() -> dict[str, object]:
            nonlocal sends, goes
            sends = not sends
            if sends:
                goes.set()
            else:
                goes = trio.Event()
            return {"sends": sends}

        nursery.start_soon(send)
        await talk("linked", turn)
        nursery.cancel_scope.cancel()


async def _join(member: Stranger) -> None:
    member.pulse()
    await member.introduce()
    await trio.sleep(1.0)


class Peer(relay.Peer):
    """A process of one of them."""

    module = "tests.bench.relaying"


# --- the two that train ----------------------------------------------------------------------


@dataclass
class Watch:
    """The steps of the run as the first volunteer sees them."""

    swarm: LocalSwarm
    moments: dict[int, float] = field(default_factory=dict)

    def wait(self, what: str, until: Callable[[], bool], limit_s: float = START_S) -> None:
        """Wait for a condition; raises UserError if it does not come true."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and all(one.alive for one in self.swarm.members):
            for event in self.swarm.members[0].new_events():
                step = event.data.get("step")
                if event.kind == "StepCommitted" and isinstance(step, int):
                    self.moments.setdefault(step, event.time)
            if until():
                return
            time.sleep(POLL_S)
        tails = "\n".join(f"{one.name}:\n{one.log_tail(8)}" for one in self.swarm.members)
        raise UserError(f"not within {limit_s:.0f} s: {what}\n{tails}")

    def turn(self, steps: int) -> list[float]:
        """Return the seconds of the next steps, without the first."""
        before = len(self.moments)
        self.wait("a turn", lambda: len(self.moments) > before + steps, START_S + steps * STEP_S)
        times = [self.moments[step] for step in sorted(self.moments)][before:]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@dataclass(frozen=True)
class Result:
    """Seconds of steps, and bytes per second that went through."""

    without_s: list[float]
    with_s: list[float]
    relayed_bytes_per_s: float
    used: float
    """Share of the relay's line that its own traffic used without relaying."""

    @property
    def loss(self) -> float:
        """Share of its speed that the relay's own training loses."""
        return 1 - statistics.mean(self.without_s) / statistics.mean(self.with_s)


def measured(asked: argparse.Namespace) -> Result:
    """Train, with and without relaying in turns."""
    line = Place(up_mbit=asked.mbit, down_mbit=asked.mbit)
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        Internet(dict.fromkeys(HOSTS, line), rtt_ms=asked.rtt_ms) as net,
    ):
        homes, file = Path(name), Path(name) / "x.swarm"
        _found(net, homes, asked)
        with LocalSwarm(file, homes, homes / "logs") as swarm:
            flags = ("--threads", "1", "--listen-port", str(PORT), "--relay", asked.lent)
            members = [swarm.start(host, flags, within=net.command(host)) for host in HOSTS[:2]]
            watch = Watch(swarm)
            watch.wait("trains and relays", lambda: _relays(members[0]) and len(watch.moments) > 3)
            to = Peer("sink", "d", str(file), within=net.command("d"))
            by = Peer("source", "c", str(file), to.first, within=net.command("c"))
            try:
                return _in_turns(watch, members[0], to, by, asked)
            finally:
                by.end()
                to.end()


def _in_turns(
    watch: Watch, relaying: Member, to: Peer, by: Peer, asked: argparse.Namespace
) -> Result:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    relayed, shares = [], []
    for number in range(2 * asked.turns):
        sends = number % 2 == 1
        began, before, sent = time.monotonic(), to.ask()["bytes"], _sent(relaying)
        times = watch.turn(asked.steps)
        took = time.monotonic() - began
        if sends:
            relayed.append((to.ask()["bytes"] - before) / took)
        else:
            shares.append((_sent(relaying) - sent) * 8 / 1e6 / asked.mbit / took)
        seconds[sends] += times
        by.ask()
        said = f"{statistics.mean(times):.2f} s a step {'with' if sends else 'without'} relaying"
        print(f"  {said}; takes its line for {_line_mbit(relaying):.1f} Mb/s", flush=True)
    return Result(seconds[False], seconds[True], statistics.mean(relayed), statistics.mean(shares))


def _relays(member: Member) -> bool:
    now = member.snapshot()
    return now is not None and now.relay.rate_bytes_per_s > 0


def _line_mbit(member: Member) -> float:
    now = member.snapshot()
    return 0.0 if now is None else now.relay.line_bytes_per_s * 8 / 1e6


def _sent(member: Member) -> int:
    now = member.snapshot()
    return 0 if now is None else now.network.sent_bytes


def _found(net: Internet, homes: Path, asked: argparse.Namespace) -> None:
    run = RunChoices(
        name="relaying",
        stages=2,
        steps=1_000_000,
        sequences=asked.sequences,
        microbatches=asked.microbatches,
        redundancy=1,
        dual_homing=False,
        checkpoint_every=100_000,
        measure=False,
    )
    founder = ensure_identity(make_private(home_folders(homes / HOSTS[0]).data))
    manifest = found_swarm(founder.peer, run, MODEL, OptimizerChoices()).manifest
    address = Address("ip4", net.public(HOSTS[0]), PORT, founder.peer)
    write_swarm_file(homes / "x.swarm", sign(manifest, founder, (address,)))


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    if arguments[:1] == ["--peer"]:
        role, _, file, *more = arguments[1:]
        trio.run({"sink": sink, "source": source}[role], Path(file), *more)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mbit", type=float, default=20.0)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--lent", default="5Mbit/s")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=48)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4)
    figures.add_record_flag(parser)
    asked = parser.parse_args(arguments)
    found = measured(asked)
    share = found.relayed_bytes_per_s / parse_rate(asked.lent)
    said = (
        f"{statistics.mean(found.with_s):.2f} s a step against "
        f"{statistics.mean(found.without_s):.2f} s without; {share:.0%} of what it lends was used; "
        f"its own traffic alone used {found.used:.0%} of its line; {len(found.with_s)} steps each, "
        f"load {os.getloadavg()[0]:.0f}"
    )
    print(f"loses {found.loss:.1%}: {said}", flush=True)
    if asked.record:
        row = figures.figure(
            "relays",
            f"a volunteer that relays {asked.lent} for others on a line of {asked.mbit:g} Mb/s, "
            f"{asked.rtt_ms:g} ms: what its own training loses",
            f"**{found.loss:.1%}**",
            said,
            "python -m tests.bench.relaying",
            ["client/net", "protocol/relay"],
        )
        figures.record([row])


if __name__ == "__main__":
    with terminate_as_interrupt():
        main(sys.argv[1:])
