"""Reachability behind real routers: who is reached says so, and nobody else does."""

import pytest
import trio

from client.net import tcp
from protocol.relay.messages import PROBE_FILLER_BYTES
from tests.netlab import ground
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router
from tests.support.reaching_members import PORT, ReachingMember, ReachingSwarm, reaching_swarm

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
no_mapper = why_not(port_mapper=True)
needs_mapper = pytest.mark.skipif(no_mapper is not None, reason=f"no port mapper: {no_mapper}")
OPEN = Place(ipv6=IPv6.OPEN)
COUNTERS = """
table inet probes {{
  counter dialled {{ }}
  chain out {{
    type filter hook output priority filter; policy accept;
    oifname "wan" meta nfproto ipv4 tcp sport != {own} counter name dialled
  }}
}}
"""
"""Counts what a host sends from other ports than that of its links."""
PROBERS = {"one": OPEN, "two": OPEN, "three": OPEN}


def _verdicts(member: ReachingMember) -> dict[str, str]:
    return {
        f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}": found.verdict.value
        for found in member.reach.machine.candidates()
        for host, port in (found.place,)
    }


def _at_home(swarm: ReachingSwarm, kind: str = "ip4", *, maps: bool = False) -> ReachingMember:
    """Start the probers, and the member at home, which is linked with them."""
    public = [swarm.start(name) for name in PROBERS]
    called = [a for m in public for a in m.addresses if f"/{kind}/" in a]
    return swarm.start("home", *called, port_mapping=maps)


def _unanswered(net: Internet) -> list[str]:
    """Return the connections that have sent what the other end has not acknowledged."""
    shown = [ground.run(net.command(host, ["ss", "-Htn"])) for host in ("home", *PROBERS)]
    found = [line for of_host in shown for line in of_host.splitlines()]
    return [line for line in found if line.split()[2] != "0"]


def _settled(member: ReachingMember) -> bool:
    found = _verdicts(member).values()
    return bool(found) and "unknown" not in found


@pytest.mark.parametrize(
    ("home", "state"),
    [
        *((Place(kind), "unreachable") for kind in Router),
        (Place(Router.SYMMETRIC, carrier=Router.FULL_CONE), "unreachable"),
        (Place(Router.PORT_RESTRICTED, ipv6=IPv6.FILTERED), "unreachable"),
        (Place(Router.PORT_RESTRICTED, ipv6=IPv6.OPEN), "reachable"),
        (Place(), "reachable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_is_reached_says_so_and_nobody_else(home: Place, state: str) -> None:
    with Internet({"home": home, **PROBERS, "judge": OPEN}) as net, reaching_swarm(net) as swarm:
        member = _at_home(swarm, "ip6" if home.has_ipv6 else "ip4")
        found = member.wait(lambda now: now.state == state and _settled(member))
        assert bool(found.next_step) == (state == "unreachable")
        for address, verdict in _verdicts(member).items():
            reached = swarm.can_dial("judge", address, member.network.peer_id)
            assert reached == (verdict == "public")
        advertised = member.reach.advertised(member.addresses)
        assert (state == "reachable") == any(
            swarm.can_dial("judge", a.partition("/p2p/")[0], member.network.peer_id)
            for a in advertised
        )


def test_a_forwarded_port_is_found_and_its_end_is_noticed() -> None:
    with Internet({"home": Place(Router.PORT_RESTRICTED), **PROBERS}) as net:
        router = net.router("home")
        forward = f"tcp dport {PORT} dnat ip to {net.address('home')}:{PORT}"
        rule = f"insert rule inet home prerouting iifname wan {forward}"
        ground.run(net.command(router, ["nft", *rule.split()]))
        with reaching_swarm(net) as swarm:
            member = _at_home(swarm)
            found = member.wait(lambda now: now.state == "reachable")
            assert found.words == (f"reachable at {net.public('home')} port {PORT}, 3 members say")
            mine = f"/ip4/{net.public('home')}/tcp/{PORT}/p2p/{member.network.peer_id}"
            assert member.reach.advertised(member.addresses)[0] == mine
            member.wait(lambda _: not _unanswered(net))  # the router would answer it by a reset
            net.restart_router("home")
            member.reach.machine.listens([], {"ip4": PORT}, {}, 0.0)  # as after a change of network
            member.wait(lambda now: now.state == "unreachable")
            assert mine not in member.reach.advertised(member.addresses)


@pytest.mark.parametrize("kind", [Router.PORT_RESTRICTED, Router.ANSWERING, None])
def test_a_prober_sends_fewer_bytes_than_it_is_asked_with(kind: Router | None) -> None:
    """Whoever shares an address with the asker gets no more from us than the asker sends."""
    with Internet({"home": Place(kind), "one": OPEN}) as net, reaching_swarm(net) as swarm:
        one = swarm.start("one")
        four = next(address for address in one.addresses if "/ip4/" in address)
        home = swarm.start("home", four)
        home.wait(lambda _: bool(home.reach.machine.outer_hosts()))
        port = home.network.listening[0].port if kind is None else 9
        counted = net.command("one", ["nft", "-f", "-"])
        ground.run(counted, COUNTERS.format(own=PORT))
        asked = one.network.peer_id, port
        reached = trio.from_thread.run(home.probe, *asked, trio_token=home.token)
        assert 0 < net.counted("one", "dialled") <= PROBE_FILLER_BYTES
        assert reached == (kind is None)


@needs_mapper
@pytest.mark.parametrize(("kind", "ipv6"), [("ip4", IPv6.NONE), ("ip6", IPv6.FILTERED)])
def test_a_mapped_port_or_a_hole_is_advertised_once_members_have_reached_it(
    kind: str, ipv6: IPv6
) -> None:
    home = Place(Router.SYMMETRIC, ipv6=ipv6, port_mapper=True)
    with Internet({"home": home, **PROBERS, "judge": OPEN}) as net, reaching_swarm(net) as swarm:
        member = _at_home(swarm, kind, maps=True)
        host = net.public("home") if kind == "ip4" else net.address6("home")
        found = member.wait(lambda now: now.state == "mapped" and host in now.words)
        where = f"{host} port {PORT}"
        assert found.words == (
            f"reachable by the router, which maps the port at {where}, 3 members say"
        )
        assert not found.next_step
        there = f"/{kind}/{host}/tcp/{PORT}"
        assert member.reach.advertised(member.addresses)[0].startswith(there)
        assert swarm.can_dial("judge", there, member.network.peer_id)


@needs_mapper
def test_a_router_that_has_no_address_of_its_own_makes_nothing_public() -> None:
    home = Place(Router.PORT_RESTRICTED, carrier=Router.PORT_RESTRICTED, port_mapper=True)
    with Internet({"home": home, **PROBERS}) as net, reaching_swarm(net) as swarm:
        member = _at_home(swarm, maps=True)
        member.wait(lambda now: now.state == "unreachable")
        assert "public" not in _verdicts(member).values()


def test_several_observers_see_one_port_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp.TCP, "_dialled", set())  # other tests share this process
    home = Place(Router.PORT_RESTRICTED)
    with Internet({"home": home, **PROBERS}) as net, reaching_swarm(net) as swarm:
        member = _at_home(swarm)
        member.wait(lambda _: len(member.reach.machine._observations) > 1)
        known = member.reach.machine._observations.values()
        assert len({(one.ends.own_port, one.seen) for one in known if one.ends.dialled}) == 1
