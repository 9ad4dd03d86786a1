"""Connectivity: what counts as a change, who is asked and dialled, what is told."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest

from client.net import connectivity
from client.net.connectivity import (
    SILENT_S,
    SILENT_WORDS,
    Connectivity,
    Surroundings,
)
from client.net.host import Connection
from protocol.ids import PeerId
from protocol.pace import FORGET_S, HEARD_S, LOOK_S, LOST_S

A, B, C = (PeerId(name) for name in "ABC")
HOME = Surroundings(frozenset({"192.168.1.2"}), ("192.168.1.1",))
CABLE = Surroundings(frozenset({"10.0.0.7"}), ("10.0.0.1",))


Call = tuple[str, ...]
"""What it does, as the world notes it: a word, and of whom or why."""
DIAL_AGAIN: Call = ("dial again",)
RENEW: Call = ("renew",)


def ask(peer: PeerId) -> Call:
    return "ask", peer


class Line:
    """Stands for a connection, and for its session."""

    reason, relay, doubted, answers = "", None, -1, 0

    def __init__(
        self, world: "World", peer: PeerId, own_host: str, rtt_s: float, bytes_in: int = 100
    ) -> None:
        self.world, self.peer, self.own_host, self.rtt_s = world, peer, own_host, rtt_s
        self.number, self.bytes_in, self.session = len(world.made), bytes_in, self
        self.pinged, self.pinged_at = False, world.now
        world.made.append(self)

    @property
    def in_doubt(self) -> bool:
        return self.doubted == self.bytes_in

    def ping(self) -> None:
        self.world.told.append((self.world.now, ask(self.peer)))
        self.pinged, self.pinged_at = True, self.world.now

    def close(self, reason: str) -> None:
        self.world.told.append((self.world.now, ("cut", self.peer, reason)))
        self.reason = reason
        del self.world.links[self.peer]


class World:
    """Links whose bytes grow as long as their peer is heard; time passes in quarters of seconds."""

    def __init__(self, *peers: PeerId) -> None:
        self.machine = Connectivity(self)
        self.machine.renew = lambda: self.told.append((self.now, RENEW))
        self.machine.explain = lambda told: self.told.append((self.now, ("say", told.words)))
        self.now = 1000.0
        self.made: list[Line] = []
        self.links: dict[PeerId, Line] = {}
        self.heard = set(peers)
        self.told: list[tuple[float, Call]] = []
        for peer in peers:
            self.link(peer)
        self.look(HOME)

    def link(self, peer: PeerId, own_host: str = "192.168.1.2", rtt_s: float = 0.1) -> None:
        self.links[peer] = Line(self, peer, own_host, rtt_s)
        self.heard.add(peer)

    # --- what it does -----------------------------------------------------------------------

    def working(self) -> dict[PeerId, Connection]:
        return cast(dict[PeerId, Connection], dict(self.links))

    def doubt(self, peer: PeerId) -> None:
        self.told.append((self.now, ("doubt", peer)))
        self.links[peer].doubted = self.links[peer].bytes_in

    def dial_again(self) -> None:
        self.told.append((self.now, DIAL_AGAIN))

    def network_changed(self) -> None:
        """Noted by ``renew``, which is called with it."""

    # --- what happens -----------------------------------------------------------------------

    def look(self, here: Surroundings) -> list[Call]:
        begun = len(self.told)
        self.machine.looked(here, self.now)
        return self.since(begun)

    def tick(self) -> list[Call]:
        begun = len(self.told)
        self.machine.tick(self.now)
        return self.since(begun)

    def since(self, begun: int) -> list[Call]:
        return [call for _, call in self.told[begun:]]

    def run(self, seconds: float, until: Callable[[Call], bool] = lambda _: False) -> list[Call]:
        """Let time pass, until something is done at the latest; return what was done."""
        end, begun = self.now + seconds, len(self.told)
        while self.now < end and not any(until(effect) for _, effect in self.told[begun:]):
            self.now += 0.25
            for peer in self.heard & self.links.keys():
                line = self.links[peer]
                line.bytes_in, line.answers = line.bytes_in + 10, line.answers + line.pinged
                line.pinged = False
            if self.now >= self.machine.next_deadline():
                self.machine.tick(self.now)
        return self.since(begun)

    def words(self) -> list[str]:
        return [effect[1] for _, effect in self.told if effect[0] == "say"]


@pytest.fixture(autouse=True)
def _measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So every ping is a question whether somebody is there."""
    monkeypatch.setattr(connectivity, "PING_S", math.inf)


def test_round_trips_are_measured_and_who_is_silent_for_long_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connectivity, "PING_S", 5.0)
    world = World(A, B, C)
    assert world.run(11) == [ask(peer) for peer in (A, B, C)] * 2
    world.heard.remove(A)
    assert ("cut", A, "silent") not in world.run(SILENT_S - 1)
    assert ("cut", A, "silent") in world.run(2.5)
    assert {*world.links} == {B, C}


def test_a_long_line_has_longer_to_answer() -> None:
    world = World(A, B, C)
    world.run(10)
    world.link(A, rtt_s=3.0)
    world.heard.remove(A)
    assert world.run(12) == [ask(A)]
    assert ("doubt", A) in world.run(10)


def test_who_moves_cuts_links_from_the_lost_address_and_asks_the_others() -> None:
    world = World(A, B)
    world.link(C, "10.0.0.7")
    world.run(5)
    found = world.look(CABLE)
    assert [e for e in found if e[0] == "cut"] == [
        ("cut", A, "its address of this machine is gone"),
        ("cut", B, "its address of this machine is gone"),
    ]
    assert [e for e in found if e[0] == "ask"] == [ask(C)]
    assert found[-2:] == [DIAL_AGAIN, RENEW]
    world.run(2)
    for peer in (A, B):
        world.link(peer, "10.0.0.7")
    world.run(2)
    (words,) = world.words()
    assert words.startswith("the network changed (192.168.1.2 is gone and 10.0.0.7 is new); linked")
    assert "again with 3 of 3 after 2." in words
    assert world.machine.words(world.now) == words
    assert world.machine.words(world.now + 7200) == ""


def test_an_address_that_comes_and_harms_nobody_is_not_worth_a_word() -> None:
    world = World(A, B)
    more = Surroundings(HOME.hosts | {"172.17.0.1"}, HOME.routers)
    assert ask(A) in world.look(more)
    world.run(30)
    assert world.words() == []
    assert world.look(more) == []


def test_a_router_with_a_new_address_is_noticed_by_silence() -> None:
    world = World(A, B, C)
    world.run(10)
    world.heard.clear()
    began = world.now
    found = world.run(30, lambda effect: effect == DIAL_AGAIN)
    assert {e[1] for e in found if e[0] == "doubt"} == {A, B, C}
    world.link(A)
    found = world.run(1)
    assert found == [DIAL_AGAIN, RENEW]
    world.link(B)
    world.link(C)
    world.run(1)
    (words,) = world.words()
    assert words.startswith(f"{SILENT_WORDS}; linked again with 3 of 3 after ")
    assert float(words.split()[-2]) > world.now - began - 3


def test_links_lost_at_once_tell_of_us_and_one_link_of_its_peer() -> None:
    world = World(A, B, C)
    world.run(5)
    del world.links[A]
    assert not [e for e in world.run(12) if e[0] == "ask"]
    del world.links[B], world.links[C]
    world.run(2)
    assert world.machine.words(world.now).startswith(f"{SILENT_WORDS}; dialling 2 again")
    for peer in (B, C):
        world.link(peer)
    assert RENEW in world.run(2)


def test_links_that_broke_and_came_back_between_two_looks_are_told() -> None:
    """A router with a new address passes the next packet on from there, and the peer resets."""
    world = World(A, B, C)
    world.run(10)
    for peer in (A, B, C):
        world.link(peer)
    assert RENEW in world.run(2)
    (words,) = world.words()
    assert words.startswith(f"{SILENT_WORDS}; linked again with 3 of 3 after ")


def test_links_that_were_dialled_by_both_at_once_are_no_change() -> None:
    world = World(A, B, C)
    world.run(2)
    for peer in (A, B, C):
        world.link(peer)
    assert world.run(30) == []


def test_what_was_under_way_before_a_sleep_is_no_answer() -> None:
    world = World(A, B)
    world.run(5)
    world.now += 60.0
    world.tick()
    for line in world.links.values():
        line.pinged = False  # both have given us up, and what they said before is still to be read
    world.run(0.5)
    assert world.words() == []
    world.links.clear()
    world.run(2)
    for peer in (A, B):
        world.link(peer)
    world.run(1)
    (words,) = world.words()
    assert words.startswith("this machine slept for 60 s; linked again with 2 of 2 after 3.")


def test_a_busy_moment_of_ours_proves_no_silence() -> None:
    world = World(A, B)
    world.run(5)
    for _ in range(5):
        world.now += LOST_S - 2
        found = world.tick()
        assert not [effect for effect in found if effect[0] != "ask"]


def test_who_is_alone_dials_again_and_again_but_ever_more_rarely() -> None:
    world = World(A, B)
    world.look(CABLE)
    began = world.now
    world.run(600)
    at = [when - began for when, effect in world.told if effect == DIAL_AGAIN]
    assert at[0] == 0.0
    assert HEARD_S <= at[1] <= HEARD_S + LOOK_S
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses == sorted(pauses)
    assert 60 <= pauses[-1] <= 61
    world.link(A, "10.0.0.7")
    assert RENEW in world.run(2)


def test_a_change_ends_without_those_who_do_not_come_back() -> None:
    world = World(A, B, C)
    world.look(CABLE)
    world.link(A, "10.0.0.7")
    world.run(FORGET_S + 2)
    (words,) = world.words()
    assert "linked again with 1 of 3 after 30 s" in words


def test_a_second_change_during_the_first_is_told_as_one() -> None:
    world = World(A, B)
    world.look(Surroundings())
    world.run(4)
    world.look(CABLE)
    for peer in (A, B):
        world.link(peer, "10.0.0.7")
    world.run(2)
    (words,) = world.words()
    assert words.startswith("the network changed (192.168.1.2 is gone and 10.0.0.7 is new); linked")
    assert "again with 2 of 2 after 4." in words
    assert world.run(60) == []
