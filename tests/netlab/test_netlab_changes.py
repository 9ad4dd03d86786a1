"""A volunteer's network changes while it trains: links come back, and no step is lost."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.control.snapshot import Snapshot
from client.net.connectivity import SILENT_WORDS
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import Router
from tests.support.cases import usual
from tests.support.scattered_swarm import PORT, ScatteredSwarm, scattered_swarm

reason = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]
no_mapper = why_not(port_mapper=True)
needs_mapper = pytest.mark.skipif(no_mapper is not None, reason=f"no port mapper: {no_mapper}")
HOME = Place(Router.PORT_RESTRICTED)
Seen = dict[str, Snapshot]
SETTLED_S = 20.0
"""Then no link is so young that its end tells nothing."""
STOPPED_S = 75.0
"""Longer than anybody waits for who is silent."""
DOWN_S = 10.0
OPEN_STEPS = 2
"""That were open when the network changed: who knew the sum of such a step's losses may have been
cut off, and then nobody tells its loss, though the step counts."""


@contextmanager
def _training(net: Internet) -> Iterator[ScatteredSwarm]:
    """Three volunteers that train: two in the open, and the one in ``home``."""
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        scattered_swarm(
            Path(name), "one", [net.public("one")], net.command, steps=100_000
        ) as swarm,
    ):
        swarm.start("one", "--listen-port", str(PORT))
        swarm.start("two", "--listen-port", str(PORT))
        swarm.start("home")
        swarm.wait(lambda seen: min(now.step for now in seen.values()) > 2, "trained")
        swarm.wait(_all_linked, "linked with each other")
        swarm.wait(lambda seen: min(now.uptime_s for now in seen.values()) > SETTLED_S, "settled")
        yield swarm


def _all_linked(seen: Seen) -> bool:
    peers = {now.peer for now in seen.values()}
    return all(peers - {now.peer} <= _linked(now) for now in seen.values())


def _linked(now: Snapshot) -> set[str]:
    return {peer.peer for peer in now.peers if peer.state == "connected"}


def _comes_back(swarm: ScatteredSwarm, words: str, began: float) -> Seen:
    """Wait until the one at home tells of the change and all train again; return what they say."""
    told = f"{words}.*linked again with 2 of 2"

    def back(seen: Seen) -> bool:
        change = seen["home"].reach.change
        return words in change and "linked again with 2 of 2" in change

    swarm.wait(back, told)
    seen = swarm.wait(_all_linked, "linked with each other again")
    took_s = time.monotonic() - began
    print(f"{seen['home'].reach.change}; all linked {took_s:.1f} s after it began")
    before = max(now.step for now in seen.values())

    after = swarm.wait(
        lambda seen: min(now.step for now in seen.values()) > before + 3, "training goes on"
    )
    for now in after.values():
        assert now.counters.doubled_microbatches == 0
    steps = set(range(before + 3))
    swarm.wait(lambda _: len(steps - swarm.steps()) <= OPEN_STEPS, "the steps are told")
    print(f"steps that nobody tells of: {sorted(steps - swarm.steps())}")
    return after


@pytest.mark.long
def test_another_network_by_another_device() -> None:
    places = {"one": Place(), "two": Place(), "home": HOME, "cafe": Place(Router.SYMMETRIC)}
    with Internet(places, rtt_ms=20) as net, _training(net) as swarm:
        began = time.monotonic()
        there = net.move_host("home", "cafe")
        seen = _comes_back(swarm, f"the network changed (192.168.1.2 is gone and {there}", began)
        assert any(there in address for address in seen["home"].addresses)


@pytest.mark.parametrize("silent", usual(1, [False, True]))
def test_a_new_public_address(silent: bool) -> None:
    places = {"one": Place(), "two": Place(), "home": HOME}
    with Internet(places, rtt_ms=20) as net, _training(net) as swarm:
        began = time.monotonic()
        net.renumber("home", silent=silent)
        _comes_back(swarm, SILENT_WORDS, began)


@pytest.mark.long
@needs_mapper
def test_a_router_that_restarts_maps_the_port_again() -> None:
    home = Place(Router.PORT_RESTRICTED, port_mapper=True)
    places = {"one": Place(), "two": Place(), "home": home}
    with Internet(places, rtt_ms=20) as net, _training(net) as swarm:
        swarm.wait(lambda seen: seen["home"].reach.state == "mapped", "mapped")
        assert net.mapped("home")
        began = time.monotonic()
        with net.router_down("home"):
            time.sleep(DOWN_S)
        _comes_back(swarm, SILENT_WORDS, began)
        swarm.wait(lambda seen: bool(net.mapped("home")), "mapped again")


@pytest.mark.long
def test_a_stopped_process_comes_back() -> None:
    places = {"one": Place(), "two": Place(), "home": HOME}
    with Internet(places, rtt_ms=20) as net, _training(net) as swarm:
        pid = swarm.pid("home")
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(STOPPED_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        _comes_back(swarm, "this machine slept for ", began)
