"""What routers cost a swarm: a 2 x 2 swarm behind four kinds of them, beside one with open ports.

    python -m tests.bench.homes [--mbit 20] [--rtt-ms 80] [--microbatches 32] [--sequences 96]
                                [--steps 8] [--runs 1] [--settle-s 45] [--only open,homes]
                                [--no-kill] [--keep FOLDER] [--record]

Two stages of two volunteers, one thread each, as processes in network namespaces (takes root,
nftables and conntrack): one behind each of a full-cone, an address-restricted, a port-restricted
and a symmetric router, and one public ``volunteer relay``, all on lines of their own of the same
rate, with the same round trip between any two. In turns with that, the same five on public hosts.
The founder is one of the four; the invite names the relay alone.

Once both stages have their volunteers and the links have settled, steps are timed; ``ways`` says
how each pair is linked then. After that one volunteer is killed and another comes from a fifth
home, behind a router of the same kind. The logs of all are added up at the end: each microbatch of
a step counts once in each stage.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.errors import UserError
from client.lab.chaos.ledger import Ledger, read_ledger
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from tests.bench import figures
from tests.bench.timing import all_notes
from tests.netlab.internet import Internet, Place
from tests.netlab.matrix import expected
from tests.netlab.routers import Router

MODEL = ModelChoices(layers=2, width=128, heads=1, ffn_width=32, context=16)
"""That of ``wan``: it computes little for what it sends."""
HOMES = {
    "full": Router.FULL_CONE,
    "address": Router.ADDRESS_RESTRICTED,
    "port": Router.PORT_RESTRICTED,
    "sym": Router.SYMMETRIC,
}
SPARE, RELAY, PORT = "spare", "relay", 4001
FLAGS = ("--threads", "1", "--log-format", "json", "--log-level", "debug")
STAGES, REPLICAS = 2, 2
LEFT_OUT = 2
"""Steps after the links have settled that do not count."""
DIRECT = sum(
    expected("v4", *pair) != "relayed" for pair in itertools.combinations(HOMES.values(), 2)
)
"""Pairs of these homes that need no relay."""
START_S, STEP_S, SETTLE_S = 180.0, 60.0, 45.0
POLL_S = 0.2


@dataclass(frozen=True)
class Result:
    """One swarm."""

    step_s: list[float]
    ways: dict[str, int]
    """Pairs by how they are linked, as one side sees it."""
    relayed_bytes: float
    """What the relay passed on, for each timed step."""
    used: float
    """Bytes that the busiest volunteer sent, as a share of its line."""
    replaced_s: float
    """From the kill until the newcomer serves; 0: nobody was killed."""
    ledger: Ledger
    load: float


class Swarm:
    """The volunteers of one run, and what is seen of them."""

    def __init__(self, net: Internet, processes: LocalSwarm) -> None:
        self._net, self._processes = net, processes
        self.relay = self._start(RELAY, "--listen-port", str(PORT), "--relay", "100MB/s")
        self.relay.wait_until_it_answers(START_S)
        self.members = {name: self._start(name, *FLAGS) for name in HOMES}
        self.moments: dict[int, float] = {}

    def replace(self, name: str) -> None:
        """Kill a volunteer and start another one elsewhere."""
        self._processes.members.remove(self.members[name])
        self.members.pop(name).kill()
        self.members[SPARE] = self._start(SPARE, *FLAGS)

    def wait(self, what: str, until: Callable[[], bool], limit_s: float = START_S) -> None:
        """Wait for a condition, and note the steps meanwhile.

        Raises:
            UserError: too late, or a volunteer has ended.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and all(one.alive for one in self._processes.members):
            self._note_steps()
            with suppress(AttributeError):  # one does not answer just now
                if until():
                    return
            time.sleep(POLL_S)
        tails = "\n".join(f"{m.name}:\n{m.log_tail(8)}" for m in self._processes.members)
        raise UserError(f"not within {limit_s:.0f} s: {what}\n{tails}")

    def served(self) -> bool:
        """Whether every stage has its volunteers, by the word of all."""
        return all(
            len(now.stages) == STAGES
            and now.step > 0
            and min(len(stage.replicas) for stage in now.stages) >= REPLICAS
            for now in (member.snapshot() for member in self.members.values())
            if now is not None
        )

    def ways(self) -> dict[tuple[str, str], str]:
        """Return how each pair is linked."""
        seen = {name: member.snapshot() for name, member in self.members.items()}
        found = {}
        for one, other in itertools.combinations(seen, 2):
            mine, there = seen[one], seen[other]
            links = {} if mine is None else {link.peer: link for link in mine.peers}
            link = links.get(there.peer) if there is not None else None
            if link is None or link.state == "known":
                found[one, other] = "none"
            else:
                way = "relayed" if link.relay else "punched" if link.punched else "dialled"
                found[one, other] = way
        return found

    def missed(self) -> str:
        """Return why attempts to connect directly led to nothing, and how often."""
        found = {
            name: {
                reason.removeprefix("punching: "): number
                for reason, number in now.counters.refused_by_reason.items()
                if reason.startswith("punching: ")
            }
            for name, member in self.members.items()
            if (now := member.snapshot()) is not None
        }
        return ", ".join(f"{name} {reasons}" for name, reasons in found.items() if reasons)

    def sent_bytes(self) -> dict[str, int]:
        """Return what each volunteer has sent."""
        return {
            name: now.network.sent_bytes
            for name, member in self.members.items()
            if (now := member.snapshot()) is not None
        }

    def relayed_bytes(self) -> int:
        """Return what the relay has passed on."""
        now = self.relay.snapshot()
        return 0 if now is None else now.relay.passed_bytes

    def _start(self, name: str, *flags: str) -> Member:
        return self._processes.start(
            name, flags, within=self._net.command(name), relay_only=name == RELAY
        )

    def _note_steps(self) -> None:
        for member in self.members.values():
            for event in member.new_events():
                step = event.data.get("step")
                if event.kind == "StepCommitted" and isinstance(step, int):
                    self.moments[step] = min(event.time, self.moments.get(step, event.time))


def places(routers: Mapping[str, Router], mbit: float) -> dict[str, Place]:
    """Return the places: volunteers behind these routers, the others public."""
    line = {"up_mbit": mbit, "down_mbit": mbit}
    homes = {name: Place(routers.get(name), **line) for name in (*HOMES, SPARE)}  # type: ignore[arg-type]
    return {RELAY: Place(**line), **homes}  # type: ignore[arg-type]


def found(net: Internet, folder: Path, sequences: int, microbatches: int) -> None:
    """Found the swarm at the first home; whoever joins calls the relay."""
    run = RunChoices(
        name="homes",
        stages=STAGES,
        steps=1_000_000,
        sequences=sequences,
        microbatches=microbatches,
        redundancy=REPLICAS,
        dual_homing=False,
        checkpoint_every=100_000,
        measure=False,
    )
    founder, called = (
        ensure_identity(make_private(home_folders(folder / name).data))
        for name in (next(iter(HOMES)), RELAY)
    )
    manifest = found_swarm(founder.peer, run, MODEL, OptimizerChoices()).manifest
    address = Address("ip4", net.public(RELAY), PORT, called.peer)
    write_swarm_file(folder / "x.swarm", sign(manifest, founder, (address,)))


def measured(routers: Mapping[str, Router], asked: argparse.Namespace, folder: Path) -> Result:
    """Run one swarm."""
    with Internet(places(routers, asked.mbit), rtt_ms=asked.rtt_ms) as net:
        found(net, folder, asked.sequences, asked.microbatches)
        with LocalSwarm(folder / "x.swarm", folder, folder / "logs") as processes:
            swarm = Swarm(net, processes)
            swarm.wait("every stage is served twice", swarm.served)
            _settle(swarm, asked.settle_s)
            before = len(swarm.moments)
            swarm.wait("warm", lambda: len(swarm.moments) >= before + LEFT_OUT)
            began, relayed, sent = time.monotonic(), swarm.relayed_bytes(), swarm.sent_bytes()
            first, wanted = len(swarm.moments), len(swarm.moments) + asked.steps
            limit_s = START_S + asked.steps * STEP_S
            swarm.wait("the steps", lambda: len(swarm.moments) >= wanted, limit_s)
            took = time.monotonic() - began
            relayed = swarm.relayed_bytes() - relayed
            most = max(now - sent.get(name, now) for name, now in swarm.sent_bytes().items())
            ways = swarm.ways()
            times = [swarm.moments[step] for step in sorted(swarm.moments)][first - 1 :]
            said = ", ".join(f"{one}-{other} {way}" for (one, other), way in ways.items())
            print(f"  {said}; attempts that led to nothing: {swarm.missed() or 'none'}", flush=True)
            replaced_s = 0.0 if asked.no_kill else _replaced(swarm)
            load = os.getloadavg()[0]
        counted = list(ways.values())
        return Result(
            step_s=[later - earlier for earlier, later in itertools.pairwise(times)],
            ways={way: counted.count(way) for way in sorted(set(counted))},
            relayed_bytes=relayed / asked.steps,
            used=most * 8 / 1e6 / asked.mbit / took,
            replaced_s=replaced_s,
            ledger=read_ledger(all_notes(folder / "logs"), asked.microbatches, STAGES),
            load=load,
        )


def _settle(swarm: Swarm, limit_s: float) -> None:
    """Wait until as many pairs as can be are linked directly, or for so long."""
    end = time.monotonic() + limit_s

    def settled() -> bool:
        ways = list(swarm.ways().values())
        direct = len(ways) - ways.count("relayed") >= DIRECT
        return "none" not in ways and (direct or time.monotonic() > end)

    swarm.wait("linked with each other", settled, limit_s + START_S)


def _replaced(swarm: Swarm) -> float:
    """Kill a volunteer; return the seconds until a newcomer has taken its place."""
    victim = next(iter(HOMES)) if SPARE in swarm.members else "port"
    began = time.monotonic()
    swarm.replace(victim)
    newcomer = swarm.members[SPARE]

    def serves() -> bool:
        now = newcomer.snapshot()
        return now is not None and any(seat.state == "serving" for seat in now.seats)

    swarm.wait("the newcomer serves", lambda: serves() and swarm.served(), 2 * START_S)
    took = time.monotonic() - began
    before = len(swarm.moments)
    swarm.wait("goes on", lambda: len(swarm.moments) >= before + LEFT_OUT)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mbit", type=float, default=20.0)
    parser.add_argument("--rtt-ms", type=float, default=80.0)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=96)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--settle-s", type=float, default=SETTLE_S, help="longest wait for direct links"
    )
    parser.add_argument("--only", default="open,homes")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder in which the logs are left")
    figures.add_record_flag(parser)
    asked = parser.parse_args()
    kinds = {"open": {}, "homes": {**HOMES, SPARE: HOMES["port"]}}
    found: dict[str, list[Result]] = {kind: [] for kind in asked.only.split(",")}
    for run, kind in itertools.product(range(asked.runs), found):
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as name:
            folder = Path(name) if asked.keep is None else asked.keep / f"{kind}{run}"
            folder.mkdir(parents=True, exist_ok=True)
            result = measured(kinds[kind], asked, folder)
        found[kind].append(result)
        print(f"{kind}: {words(result)}", flush=True)
    if len(found) == len(kinds):
        _conclude(found, asked)


def words(result: Result) -> str:
    """Return a run in one line."""
    ways = ", ".join(f"{count} {way}" for way, count in result.ways.items())
    kept = result.ledger
    return (
        f"{statistics.median(result.step_s):.2f} s a step ({min(result.step_s):.2f} to "
        f"{max(result.step_s):.2f}); pairs {ways}; {result.relayed_bytes / 1e6:.2f} MB a step "
        f"relayed; busiest line {result.used:.0%} used; replaced after {result.replaced_s:.0f} s; "
        f"{kept.whole} steps of a stage counted whole, {kept.unattested} not in all logs, "
        f"{kept.doubled} microbatches doubled, {kept.differing} differ; load {result.load:.1f}"
    )


def _conclude(found: Mapping[str, Sequence[Result]], asked: argparse.Namespace) -> None:
    """Print the ratio, and record it."""
    times = {
        kind: statistics.median(statistics.median(one.step_s) for one in results)
        for kind, results in found.items()
    }
    ratio = times["open"] / times["homes"]
    last = found["homes"][-1]
    ways = ", ".join(f"{count} {way}" for way, count in last.ways.items())
    said = (
        f"{times['homes']:.2f} s a step against {times['open']:.2f} s; pairs: {ways}; "
        f"{last.relayed_bytes / 1e6:.1f} MB a step relayed; {asked.steps} steps, "
        f"{asked.runs} runs in turns, load {last.load:.0f}"
    )
    print(f"homes against open ports: {ratio:.2f} x; {said}", flush=True)
    if asked.record:
        row = figures.figure(
            "relays",
            f"a 2 x 2 swarm behind routers of four kinds with one public relay, {asked.mbit:g} "
            f"Mb/s and {asked.rtt_ms:g} ms, against the same with open ports: speed",
            f"**{ratio:.2f} x**",
            said,
            "python -m tests.bench.homes",
        )
        figures.record([row])


if __name__ == "__main__":
    with terminate_as_interrupt():
        main()
