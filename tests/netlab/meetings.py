"""Two homes behind routers meet: in which way, and whether they know how they are reached.

A fresh laboratory: two homes, a public relay and two more public members. In the world ``v4`` the
homes have IPv4 alone, in ``v6`` IPv6 behind stateful firewalls as well, over which they know the
others, and in ``mapped`` their routers map ports. One home dials the other by all addresses that
this advertises, its relay last. The members are networks with what finds out how they are reached
(``tests.support.reaching_members``), real from the sockets up to there; takes root.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import trio

from client.net import tcp
from protocol.reachability.machine import Verdict
from tests.netlab.internet import Internet, Place
from tests.netlab.routers import IPv6, Router
from tests.support.punching_pairs import is_direct, waited
from tests.support.reaching_members import ReachingMember, ReachingSwarm, reaching_swarm

World = Literal["v4", "v6", "mapped"]
Way = Literal["dialled", "punched", "relayed", "none"]
LETS_IN: Final = {Router.FULL_CONE, Router.ADDRESS_RESTRICTED}
"""Who is behind one can be dialled from a port that nobody knows before."""
PUBLIC: Final = ("relay", "two", "three")
JUDGE: Final = "judge"
LINK_S, DIRECT_S, STAYS_S, KNOWN_S = 40.0, 60.0, 12.0, 60.0


class Meeting(NamedTuple):
    """What became of it."""

    way: Way
    falsely_reachable: list[str]
    """Addresses that a home takes for public, and that nobody can dial."""


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


def meet(world: World, a: Router, b: Router, rtt_ms: float) -> Meeting:
    """Let two homes meet."""
    tcp.TCP._dialled.clear()  # a process of its own has dialled nobody yet
    public = Place(ipv6=IPv6.OPEN if world == "v6" else IPv6.NONE)
    places = {**dict.fromkeys((*PUBLIC, JUDGE), public), "a": home(world, a), "b": home(world, b)}
    way: Way = "none"
    with Internet(places, rtt_ms=rtt_ms) as net, reaching_swarm(net) as swarm:
        one, other = _arrive(swarm, world)
        own = other.reach.advertised(other.addresses)
        dialled = (*own, *other.network.reaching.addresses)
        trio.from_thread.run(one.network.connect, *dialled, trio_token=one.token)
        if waited(lambda: _linked(one, other) and _linked(other, one), LINK_S):
            patience_s = STAYS_S if expected(world, a, b) == "relayed" else DIRECT_S
            waited(lambda: is_direct(one, other) and is_direct(other, one), patience_s)
            way = _way(one, other)
        return Meeting(way, [*_false(swarm, one), *_false(swarm, other)])


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
