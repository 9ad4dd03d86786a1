"""``volunteer peers``: the members of the swarm that this volunteer knows."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.control.snapshot import AuditsView, ExpelledView, Snapshot, TrustView
from client.views.report import peers_report


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
    name: str = ""
    """As it calls itself; empty: it has no name. Anybody may choose any."""
    state: str
    rtt_ms: float | None
    relay: str
    """The member through which the connection goes; empty: it is direct."""
    punched: bool = False
    """Whether it is direct because both sides dialled at once, through their routers."""
    stages: list[Stage]
    trust: TrustView | None = None
    """None: it has nothing to its name yet."""


class Peers(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer peers --json``."""

    swarm: str
    swarm_name: str
    peers: list[Peer]
    trust: list[TrustView]
    """Of all members with anything to their name, also those that are gone."""
    expelled: list[ExpelledView]
    audits: AuditsView | None
    """None: the run has no audits."""
    schema_version: int = 1


def peers(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """List the members of the swarm: how near they are, which stages they hold, how fast.

    Under Trust: how far this volunteer trusts them and why, and who was expelled.
    """
    with connect(running_home().folders, swarm) as node:
        now = node.status()
    if json:
        print_json(members(now))
    else:
        print(peers_report(now))


def members(now: Snapshot) -> Peers:
    """Return the members, the nearest first."""
    held: dict[str, list[Stage]] = {}
    for stage in now.stages:
        for one in stage.replicas:
            place = Stage(stage.stage, one.state, one.version, one.rate)
            held.setdefault(one.peer, []).append(place)
    trust = {one.peer: one for one in now.trust}
    listed = [
        Peer(
            peer=one.peer,
            name=now.names.get(one.peer, ""),
            state=one.state,
            rtt_ms=one.rtt_ms,
            relay=one.relay,
            punched=one.punched,
            stages=held.get(one.peer, []),
            trust=trust.get(one.peer),
        )
        for one in now.peers
    ]
    listed.sort(key=lambda one: (one.rtt_ms is None, one.rtt_ms or 0.0, one.peer))
    return Peers(
        swarm=now.swarm,
        swarm_name=now.swarm_name,
        peers=listed,
        trust=now.trust,
        expelled=now.expelled,
        audits=now.audits,
    )
