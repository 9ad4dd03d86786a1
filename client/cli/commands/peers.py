"""``volunteer peers``: the members of the swarm that this volunteer knows."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json, printable
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.cli.terminal.table import aligned
from client.control.snapshot import Snapshot


class Stage(Struct, frozen=True):
    """A stage that a member holds."""

    stage: int
    state: str
    version: int
    rate: float
    """Microbatches per second."""


class Peer(Struct, frozen=True, kw_only=True):
    """One member."""

    peer: str
    state: str
    rtt_ms: float | None
    stages: list[Stage]


class Peers(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer peers --json``."""

    swarm: str
    swarm_name: str
    peers: list[Peer]
    schema_version: int = 1


def peers(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """List the members of the swarm: how near they are, which stages they hold, how fast."""
    with connect(find_home().folders, swarm) as node:
        found = members(node.status())
    if json:
        print_json(found)
        return
    rows = [[one.peer, one.state, _rtt(one), _stages(one)] for one in found.peers]
    for line in aligned(["member", "state", "rtt", "stages"], rows):
        print(printable(line))


def members(now: Snapshot) -> Peers:
    """Return the members, the nearest first."""
    held: dict[str, list[Stage]] = {}
    for stage in now.stages:
        for one in stage.replicas:
            place = Stage(stage.stage, one.state, one.version, one.rate)
            held.setdefault(one.peer, []).append(place)
    listed = [
        Peer(peer=one.peer, state=one.state, rtt_ms=one.rtt_ms, stages=held.get(one.peer, []))
        for one in now.peers
    ]
    listed.sort(key=lambda one: (one.rtt_ms is None, one.rtt_ms or 0.0, one.peer))
    return Peers(swarm=now.swarm, swarm_name=now.swarm_name, peers=listed)


def _rtt(peer: Peer) -> str:
    return "-" if peer.rtt_ms is None else f"{peer.rtt_ms:.0f} ms"


def _stages(peer: Peer) -> str:
    words = (f"{one.stage} ({one.state}, {one.rate:.2g}/s)" for one in peer.stages)
    return ", ".join(words) or "-"
