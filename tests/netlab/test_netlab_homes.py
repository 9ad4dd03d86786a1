"""Volunteers in homes behind routers: IPv6 alone, broken IPv6, and two in one home."""

import os
import tempfile
import time
from pathlib import Path

import pytest
import trio

from client.net.libp2p_network import open_network
from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router
from tests.support.reaching_members import reaching_swarm
from tests.support.scattered_swarm import PORT, scattered_swarm

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
OPEN = Place(ipv6=IPv6.OPEN)


def _dial_s(net: Internet, host: str, *addresses: str) -> float:
    """How long a host takes to have a link to the peer at these addresses."""

    async def dial() -> float:
        async with open_network(os.urandom(32), ("all", 0)) as network:
            began = time.monotonic()
            with trio.fail_after(30):
                await network.connect(*addresses)
            return time.monotonic() - began

    return inside(net, host, lambda: trio.run(dial))


def test_broken_ipv6_costs_a_quarter_of_a_second() -> None:
    home = Place(Router.PORT_RESTRICTED, ipv6=IPv6.BROKEN)
    with Internet({"home": home, "one": OPEN}) as net, reaching_swarm(net) as swarm:
        four, six = swarm.start("one").addresses
        assert six.startswith(f"/ip6/{net.address6('one')}/tcp/{PORT}/")
        assert four.startswith(f"/ip4/{net.public('one')}/tcp/{PORT}/")
        assert _dial_s(net, "one", four) < 3.0
        took = min(_dial_s(net, "home", six, four) for _ in range(3))
        assert 0.25 <= took < 2.0  # a dial that waits for the answer takes 10 s


@pytest.mark.slow
def test_a_swarm_that_has_only_ipv6_trains() -> None:
    places = {
        "one": Place(ipv4=False, ipv6=IPv6.OPEN),
        "home": Place(Router.SYMMETRIC, ipv4=False, ipv6=IPv6.FILTERED),
    }
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        Internet(places, rtt_ms=20) as net,
        scattered_swarm(Path(name), "one", [net.address6("one")], net.command) as swarm,
    ):
        swarm.start("one", "--listen-port", str(PORT))
        swarm.start("home")
        seen = swarm.wait_done()
        swarm.wait(lambda _: swarm.steps() == {0, 1, 2}, "all steps are told")
        assert all("/ip6/" in address for now in seen.values() for address in now.addresses)


@pytest.mark.long
@pytest.mark.slow
def test_two_in_one_home_meet_there_though_the_founder_is_elsewhere() -> None:
    places = {
        "one": Place(),
        "home": Place(Router.SYMMETRIC, others=("guest",)),
    }
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        Internet(places, rtt_ms=20) as net,
        scattered_swarm(Path(name), "one", [net.public("one")], net.command) as swarm,
    ):
        swarm.start("one", "--listen-port", str(PORT))
        swarm.start("home")
        swarm.start("guest")

        linked = lambda seen: all(len(now.peers) == 2 for now in seen.values())  # noqa: E731
        swarm.wait(linked, "linked with each other")
        done = lambda seen: [now.state for now in seen.values()].count("done") >= 2  # noqa: E731
        swarm.wait(done, "done")
