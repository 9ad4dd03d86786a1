"""Hole punching through real routers: who can be met directly is, the others stay relayed."""

from __future__ import annotations

import pytest
import trio

from client.net import tcp
from protocol.reachability.machine import Verdict
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router
from tests.support.arrivals import backward
from tests.support.punching_pairs import is_direct, meet, waited
from tests.support.reaching_members import reaching_swarm

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
LET_IN = [Router.FULL_CONE, Router.ADDRESS_RESTRICTED]
"""Who is behind one can be dialled from a port that nobody knows before."""
CONES = [*LET_IN, Router.PORT_RESTRICTED, Router.ANSWERING]
PAIRS = [*((kind, kind) for kind in CONES), *((Router.SYMMETRIC, kind) for kind in LET_IN)]


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
            statistics = one.network.statistics()
            assert statistics.punched == (other_one.network.peer_id,)
            assert statistics.relays == {}
            assert one.network.ends(other_one.network.peer_id) is None  # it proves nothing
            assert Verdict.PUBLIC not in {s.verdict for s in one.reach.machine.standings()}


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
            assert one.network.statistics().punched == (other.network.peer_id,)


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
                    one.network.send, to, message, bytes(2000), trio_token=one.token
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
        assert pair.a.network.statistics().relays == {
            pair.b.network.peer_id: pair.relay.network.peer_id
        }
