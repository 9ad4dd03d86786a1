"""A 2 x 2 swarm behind routers of four kinds with one public relay, and what is seen of it.

Two stages of two volunteers, one thread each, as processes in network namespaces (takes root,
nftables and conntrack): one behind each of a full-cone, an address-restricted, a port-restricted
and a symmetric router, and one public ``volunteer relay``, on lines of 20 Mb/s with 80 ms between
any two. The founder is one of the four; the invite names the relay alone. Once the links have
settled, steps are made; then one volunteer is killed and another comes from a fifth home. The logs
of all are added up at the end: each microbatch of a step counts once in each stage.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.options import ModelChoices, RunChoices
from client.errors import UserError
from client.lab.chaos.ledger import Ledger, read_ledger
from client.lab.founding import found_lab
from client.lab.local_swarm import LocalSwarm, Member
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from tests.bench.timing import all_notes
from tests.netlab.internet import Internet, Place
from tests.netlab.meetings import expected
from tests.netlab.routers import Router

MODEL = ModelChoices(layers=2, width=128, heads=1, ffn_width=32, context=16)
"""It computes little for what it sends."""
HOMES = {
    "full": Router.FULL_CONE,
    "address": Router.ADDRESS_RESTRICTED,
    "port": Router.PORT_RESTRICTED,
    "sym": Router.SYMMETRIC,
}
SPARE, RELAY, PORT = "spare", "relay", 4001
VICTIM = "port"
MBIT, RTT_MS = 20.0, 80.0
SEQUENCES, MICROBATCHES = 16, 8
FLAGS = ("--threads", "1", "--log-format", "json", "--log-level", "debug")
STAGES, REPLICAS = 2, 2
LEFT_OUT = 2
"""Steps after the links have settled that do not count."""
DIRECT = sum(
    expected("v4", *pair) != "relayed" for pair in itertools.combinations(HOMES.values(), 2)
)
"""Pairs of these homes that need no relay."""
START_S, STEP_S, POLL_S = 180.0, 60.0, 0.2


@dataclass(frozen=True)
class Result:
    """One swarm."""

    ways: Counter[str]
    """Pairs by how they are linked, as one side sees it."""
    relayed_bytes: int
    """What the relay passed on during the steps."""
    ledger: Ledger


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


def measured(steps: int, folder: Path) -> Result:
    """Run the swarm."""
    line = {"up_mbit": MBIT, "down_mbit": MBIT}
    routers = {**HOMES, SPARE: HOMES[VICTIM]}
    homes = {name: Place(router, **line) for name, router in routers.items()}  # type: ignore[arg-type]
    with Internet({RELAY: Place(**line), **homes}, rtt_ms=RTT_MS) as net:  # type: ignore[arg-type]
        _found(net, folder)
        with LocalSwarm(folder / "x.swarm", folder, folder / "logs") as processes:
            swarm = Swarm(net, processes)
            swarm.wait("every stage is served twice", swarm.served)
            swarm.wait("linked as directly as can be", partial(_settled, swarm), 2 * START_S)
            _steps(swarm, LEFT_OUT)
            relayed = swarm.relayed_bytes()
            _steps(swarm, steps)
            relayed, ways = swarm.relayed_bytes() - relayed, swarm.ways()
            _replace(swarm)
        ledger = read_ledger(all_notes(folder / "logs"), MICROBATCHES, STAGES)
    return Result(Counter(ways.values()), relayed, ledger)


def _found(net: Internet, folder: Path) -> None:
    """Found the swarm at the first home; whoever joins calls the relay."""
    run = RunChoices(
        name="homes",
        stages=STAGES,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=MICROBATCHES,
        redundancy=REPLICAS,
        dual_homing=False,
        checkpoint_every=100_000,
        measure=False,
    )
    founder, called = (
        ensure_identity(make_private(home_folders(folder / name).data))
        for name in (next(iter(HOMES)), RELAY)
    )
    manifest = found_lab(folder, founder.peer, run, MODEL).manifest
    address = Address("ip4", net.public(RELAY), PORT, called.peer)
    write_swarm_file(folder / "x.swarm", sign(manifest, founder, (address,)))


def _settled(swarm: Swarm) -> bool:
    """Whether all pairs are linked, and as many as can be directly."""
    ways = list(swarm.ways().values())
    return "none" not in ways and len(ways) - ways.count("relayed") >= DIRECT


def _steps(swarm: Swarm, number: int) -> None:
    """Wait until so many more steps are made."""
    wanted = len(swarm.moments) + number
    limit_s = START_S + number * STEP_S
    swarm.wait(f"{number} steps", lambda: len(swarm.moments) >= wanted, limit_s)


def _replace(swarm: Swarm) -> None:
    """Kill a volunteer, and wait until a newcomer has taken its place and the run goes on."""
    swarm.replace(VICTIM)
    newcomer = swarm.members[SPARE]

    def serves() -> bool:
        now = newcomer.snapshot()
        return now is not None and any(seat.state == "serving" for seat in now.seats)

    swarm.wait("the newcomer serves", lambda: serves() and swarm.served(), 2 * START_S)
    _steps(swarm, LEFT_OUT)
