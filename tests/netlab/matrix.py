"""Every two kinds of routers: whether their homes meet, in which way, and how soon.

    python -m tests.netlab.matrix [--worlds v4,v6,mapped] [--rtt-ms 20,80,200] [--anew]
                                  [--out tests/bench/results]

For each two kinds, world and round trip a fresh laboratory: two homes, a public relay and two more
public members. In the world ``v4`` the homes have IPv4 alone, in ``v6`` IPv6 behind stateful
firewalls as well, over which they know the others, and in ``mapped`` their routers map ports. One
home dials the other by all addresses that this advertises, its relay last. A cell says whether both
are linked, how they are in the end, and whether a home believes itself reachable at an address that
a further public host cannot dial. The members are networks with what finds out how they are reached
(``tests.support.reaching_members``), real from the sockets up to there; takes root.

Every cell adds a line to ``meetings.jsonl`` and rewrites ``meetings.md``. Cells that are there are
not run again, unless ``--anew``: all of them take about forty minutes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio
from msgspec import Struct

from client.lab.local_swarm import terminate_as_interrupt
from client.net import tcp
from protocol.reachability.machine import Verdict
from tests.bench.machines import commit, this_machine
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router
from tests.support.punching_pairs import is_direct, waited
from tests.support.reaching_members import ReachingMember, ReachingSwarm, reaching_swarm

World = Literal["v4", "v6", "mapped"]
Way = Literal["dialled", "punched", "relayed", "none"]
WORLDS: Final[tuple[World, ...]] = ("v4", "v6", "mapped")
_DOC: Final = (__doc__ or "").strip()
LETS_IN: Final = {Router.FULL_CONE, Router.ADDRESS_RESTRICTED}
"""Who is behind one can be dialled from a port that nobody knows before."""
PUBLIC: Final = ("relay", "two", "three")
JUDGE: Final = "judge"
LINK_S, DIRECT_S, STAYS_S, KNOWN_S = 40.0, 60.0, 12.0, 60.0
OUT: Final = Path(__file__).parents[1] / "bench" / "results"


class Cell(Struct, frozen=True, forbid_unknown_fields=True):
    """One meeting."""

    world: World
    a: str
    b: str
    rtt_ms: float
    expected: Way
    way: Way
    linked_s: float
    """Until both were linked in any way."""
    direct_s: float
    """Until both were linked without a relay; 0: they are not."""
    falsely_reachable: list[str]
    """Addresses that a home takes for public, and that nobody can dial."""
    trouble: str = ""
    machine: str = ""
    code: str = ""

    @property
    def key(self) -> tuple[str, str, str, float]:
        """What is measured."""
        return self.world, self.a, self.b, self.rtt_ms

    @property
    def good(self) -> bool:
        """Whether it is as expected."""
        return self.way == self.expected and not self.falsely_reachable


def expected(world: World, a: Router, b: Router) -> Way:
    """Return the way in which two homes are linked in the end."""
    if world == "mapped":
        return "dialled"
    if world == "v4" and Router.SYMMETRIC in (a, b):
        return "punched" if LETS_IN & {a, b} else "relayed"
    return "punched"


def home(world: World, router: Router) -> Place:
    """Return a home of a world."""
    match world:
        case "v4":
            return Place(router)
        case "v6":
            return Place(router, ipv6=IPv6.FILTERED)
        case "mapped":
            return Place(router, port_mapper=True)


def meet(world: World, a: Router, b: Router, rtt_ms: float) -> Cell:
    """Let two homes meet; what fails is said in the cell."""
    tcp.TCP._dialled.clear()  # a process of its own has dialled nobody yet
    wanted = expected(world, a, b)
    public = Place(ipv6=IPv6.OPEN if world == "v6" else IPv6.NONE)
    places = {**dict.fromkeys((*PUBLIC, JUDGE), public), "a": home(world, a), "b": home(world, b)}
    way: Way = "none"
    linked_s = direct_s = 0.0
    false: list[str] = []
    trouble = ""
    try:
        with Internet(places, rtt_ms=rtt_ms) as net, reaching_swarm(net) as swarm:
            one, other = _arrive(swarm, world)
            began = time.monotonic()
            own = other.reach.advertised(other.addresses)
            dialled = (*own, *other.network.reaching.addresses)
            trio.from_thread.run(one.network.connect, *dialled, trio_token=one.token)
            if waited(lambda: _linked(one, other) and _linked(other, one), LINK_S):
                linked_s = time.monotonic() - began
                patience_s = STAYS_S if wanted == "relayed" else DIRECT_S
                if waited(lambda: is_direct(one, other) and is_direct(other, one), patience_s):
                    direct_s = time.monotonic() - began
                way = _way(one, other)
            false = [*_false(swarm, one), *_false(swarm, other)]
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"[:500]
    return Cell(
        *(world, a.value, b.value, rtt_ms, wanted, way),
        *(round(linked_s, 2), round(direct_s, 2), false, trouble, this_machine(), commit()),
    )


def _arrive(swarm: ReachingSwarm, world: World) -> tuple[ReachingMember, ReachingMember]:
    """Start all; return the two at home, of which the second can be reached in some way."""
    kind = "/ip6/" if world == "v6" else "/ip4/"
    called = []
    for name in PUBLIC:
        member = swarm.start(name)
        called.append(next(text for text in member.addresses if kind in text))
    relay = swarm.members["relay"]
    offer = lambda: relay.network.passing.offer(relays=True)  # noqa: E731
    trio.from_thread.run_sync(offer, trio_token=relay.token)
    one, other = (swarm.start(name, *called, port_mapping=world == "mapped") for name in ("a", "b"))
    relays = {relay.network.peer_id: called[:1]}
    reserve = lambda: other.network.reaching.update(relays, needed=True)  # noqa: E731
    trio.from_thread.run_sync(reserve, trio_token=other.token)
    assert waited(lambda: other.network.reaching.addresses, LINK_S), "no reservation"
    if world == "mapped":
        other.wait(lambda now: now.state == "mapped")
    return one, other


def _linked(one: ReachingMember, other: ReachingMember) -> bool:
    return other.network.peer_id in one.network.statistics().peers


def _way(one: ReachingMember, other: ReachingMember) -> Way:
    seen = one.network.statistics()
    if other.network.peer_id in seen.relays:
        return "relayed"
    return "punched" if other.network.peer_id in seen.punched else "dialled"


def _false(swarm: ReachingSwarm, member: ReachingMember) -> list[str]:
    """Return the addresses that a member wrongly takes for public, once it has judged all."""
    machine = member.reach.machine
    known = lambda: all(s.verdict is not Verdict.UNKNOWN for s in machine.standings())  # noqa: E731
    waited(known, KNOWN_S)
    public = [s for s in machine.standings() if s.verdict is Verdict.PUBLIC]
    texts = [f"/ip{6 if ':' in s.host else 4}/{s.host}/tcp/{s.port}" for s in public]
    return [one for one in texts if not swarm.can_dial(JUDGE, one, member.network.peer_id)]


# --- the page --------------------------------------------------------------------------------


def cells(
    worlds: Sequence[World], trips: Sequence[float]
) -> Iterator[tuple[World, Router, Router, float]]:
    """Yield all that is to be measured, one delay after the other."""
    pairs = list(itertools.combinations_with_replacement(Router, 2))
    for rtt_ms, world, (a, b) in itertools.product(trips, worlds, pairs):
        yield world, a, b, rtt_ms


def read(path: Path) -> dict[tuple[str, str, str, float], Cell]:
    """Return the newest of each cell."""
    if not path.exists():
        return {}
    found = (msgspec.json.decode(line, type=Cell) for line in path.read_text().splitlines())
    return {cell.key: cell for cell in found}


def markdown(found: Sequence[Cell], total: int) -> str:
    """Return the page."""
    good = sum(cell.good for cell in found)
    linked = sum(cell.way != "none" for cell in found)
    false = sum(bool(cell.falsely_reachable) for cell in found)
    lines = [
        "# Meetings of homes behind routers",
        "",
        f"Written by `python -m tests.netlab.matrix`; {_DOC}",
        "",
        f"**{len(found)} of {total} cells measured; {linked} linked, {good} in the expected way; "
        f"{false} with an address falsely taken for public.**",
        "",
        "| world | round trip ms | cells | linked | as expected | falsely reachable | linked s, "
        "median, most | direct s, median, most |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    groups: dict[tuple[str, float], list[Cell]] = {}
    for cell in found:
        groups.setdefault((cell.world, cell.rtt_ms), []).append(cell)
    for (world, rtt_ms), some in sorted(groups.items()):
        direct = [cell.direct_s for cell in some if cell.direct_s]
        lines.append(
            f"| {world} | {rtt_ms:g} | {len(some)} | {sum(c.way != 'none' for c in some)} "
            f"| {sum(c.good for c in some)} | {sum(bool(c.falsely_reachable) for c in some)} "
            f"| {_times([c.linked_s for c in some if c.linked_s])} | {_times(direct)} |"
        )
    lines += ["", "| world | round trip ms | homes | expected | found |"]
    lines += ["| --- | ---: | --- | --- | --- |"]
    for cell in found:
        if not cell.good:
            more = f"; {cell.trouble}" if cell.trouble else ""
            false_ = f"; falsely {', '.join(cell.falsely_reachable)}" * bool(cell.falsely_reachable)
            lines.append(
                f"| {cell.world} | {cell.rtt_ms:g} | {cell.a} x {cell.b} | {cell.expected} "
                f"| {cell.way}{false_}{more} |"
            )
    return "\n".join(lines) + "\n"


def _times(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"


def main() -> int:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--rtt-ms", default="80,20,200")
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    if reason := why_not(port_mapper="mapped" in asked.worlds):
        print(f"no laboratory here: {reason}", file=sys.stderr)
        return 1
    worlds = [world for world in WORLDS if world in asked.worlds.split(",")]
    wanted = list(cells(worlds, [float(text) for text in asked.rtt_ms.split(",")]))
    file = asked.out / "meetings.jsonl"
    known = {} if asked.anew else read(file)
    for number, (world, a, b, rtt_ms) in enumerate(wanted, 1):
        if (world, a.value, b.value, rtt_ms) in known:
            continue
        cell = meet(world, a, b, rtt_ms)
        known[cell.key] = cell
        with file.open("ab") as lines:
            lines.write(msgspec.json.encode(cell) + b"\n")
        (asked.out / "meetings.md").write_text(markdown(list(known.values()), len(wanted)))
        said = f"{cell.way} after {cell.direct_s or cell.linked_s:.1f} s {cell.trouble}"
        mark = "" if cell.good else f", but {cell.expected} was expected"
        homes = f"{world} {rtt_ms:g} ms {cell.a} x {cell.b}"
        print(f"{number} of {len(wanted)}: {homes}: {said}{mark}", flush=True)
    return int(not all(cell.good for cell in known.values()))


if __name__ == "__main__":
    with terminate_as_interrupt():
        code = main()
    sys.exit(code)
