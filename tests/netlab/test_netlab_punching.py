"""Hole punching through real routers: who can be met directly is, the others stay relayed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import trio

from client.net import tcp
from protocol.reachability.machine import Verdict
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router
from tests.support.arrivals import backward, say
from tests.support.reaching_members import ReachingMember, ReachingSwarm, reaching_swarm

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
LET_IN = [Router.FULL_CONE, Router.ADDRESS_RESTRICTED]
"""Who is behind one can be dialled from a port that nobody knows before."""
CONES = [*LET_IN, Router.PORT_RESTRICTED, Router.ANSWERING]
PAIRS = [*((kind, kind) for kind in CONES), *((Router.SYMMETRIC, kind) for kind in LET_IN)]


DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The members of the homes ``a`` and ``b``, and that of ``relay``."""

    a: ReachingMember
    b: ReachingMember
    relay: ReachingMember
    began: float
    """When one of them began to dial the other, by ``time.monotonic``."""

    def until_direct_s(self, patience_s: float = DEADLINE_S) -> float | None:
        """Wait until both have a direct link; return the seconds, None if they stay relayed."""
        both = ((self.a, self.b), (self.b, self.a))
        direct = lambda: all(is_direct(one, other) for one, other in both)  # noqa: E731
        return time.monotonic() - self.began if waited(direct, patience_s) else None


def is_direct(one: ReachingMember, other: ReachingMember) -> bool:
    """Whether a member's frames to another one go through no relay."""
    return one.network.direct(other.network.peer_id) is not None


def waited(condition: Callable[[], object], patience_s: float = DEADLINE_S) -> bool:
    """Wait for a condition; return whether it has come true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def meet(swarm: ReachingSwarm, kind: str = "ip4") -> Pair:
    """Start the three, let ``b`` reserve at the relay and ``a`` dial it there.

    Args:
        swarm: with the hosts ``relay``, ``a`` and ``b``.
        kind: of the relay's address.
    """
    relay = swarm.start("relay")
    at = [text for text in relay.addresses if f"/{kind}/" in text]
    a, b = swarm.start("a", *at), swarm.start("b", *at)
    offer = lambda: relay.network.passing.offer(relays=True)  # noqa: E731
    trio.from_thread.run_sync(offer, trio_token=relay.token)
    relays = {relay.network.peer_id: at}
    reserve = lambda: b.network.reaching.update(relays, needed=True)  # noqa: E731
    trio.from_thread.run_sync(reserve, trio_token=b.token)
    assert waited(lambda: b.network.reaching.addresses)
    began = time.monotonic()
    trio.from_thread.run(a.network.connect, b.network.reaching.addresses[0], trio_token=a.token)
    assert waited(lambda: a.network.peer_id in b.network.statistics().peers)
    return Pair(a, b, relay, began)


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_two_behind_routers_that_keep_their_ports_or_let_others_in_become_direct(
    kind: Router, other: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp.TCP, "_dialled", set())  # other tests share this process
    places = {"relay": Place(), "a": Place(kind), "b": Place(other)}
    with Internet(places, rtt_ms=80) as net, reaching_swarm(net) as swarm:
        pair = meet(swarm)
        took_s = pair.until_direct_s()
        assert took_s is not None, (pair.a.network.statistics(), pair.b.network.statistics())
        for one, other_one in ((pair.a, pair.b), (pair.b, pair.a)):
            assert one.network.working()[other_one.network.peer_id].punched
            assert one.network.relays() == {}
            assert one.network.ends(other_one.network.peer_id) is None  # it proves nothing
            assert Verdict.PUBLIC not in {s.verdict for s in one.reach.machine.candidates()}


@pytest.mark.parametrize("rtt_ms", [20, 200])
def test_two_behind_firewalls_of_ipv6_become_direct(rtt_ms: int) -> None:
    """By IPv4 these two never meet."""
    home = Place(Router.SYMMETRIC, ipv6=IPv6.FILTERED)
    places = {"relay": Place(ipv6=IPv6.OPEN), "a": home, "b": home}
    with Internet(places, rtt_ms=rtt_ms) as net, reaching_swarm(net) as swarm:
        pair = meet(swarm, "ip6")
        took_s = pair.until_direct_s()
        assert took_s is not None, (pair.a.network.statistics(), pair.b.network.punching.refused)
        for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
            link = one.network.direct(other.network.peer_id)
            assert link is not None
            assert ":" in link.ip
            assert link.punched


def test_what_is_sent_while_the_link_becomes_direct_arrives_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp.TCP, "_dialled", set())
    home = Place(Router.PORT_RESTRICTED)
    with Internet({"relay": Place(), "a": home, "b": home}, 40) as net, reaching_swarm(net) as all_:
        pair = meet(all_)
        relayed = not is_direct(pair.a, pair.b)
        sent, after = 0, 20
        while after and sent < 20_000:
            for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
                to, message = other.network.peer_id, backward(sent)
                trio.from_thread.run(
                    say, one.network, to, message, bytes(2000), trio_token=one.token
                )
            sent += 1
            after -= is_direct(pair.a, pair.b) and is_direct(pair.b, pair.a)
        assert relayed
        assert not after, "they stay relayed"
        expected = [backward(number) for number in range(sent)]
        for member in (pair.a, pair.b):
            assert waited(lambda m=member: len(m.received) >= sent)
            assert member.received == expected


@pytest.mark.parametrize("kind", [Router.PORT_RESTRICTED, Router.SYMMETRIC])
def test_a_router_that_gives_each_peer_another_port_keeps_its_home_relayed(
    kind: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp.TCP, "_dialled", set())
    places = {"relay": Place(), "a": Place(Router.SYMMETRIC), "b": Place(kind)}
    with Internet(places, rtt_ms=20) as net, reaching_swarm(net) as swarm:
        pair = meet(swarm)
        assert pair.until_direct_s(15.0) is None
        assert pair.a.network.punching.refused["missed"] >= 3
        assert pair.a.network.relays() == {pair.b.network.peer_id: pair.relay.network.peer_id}
