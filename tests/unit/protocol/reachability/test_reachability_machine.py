"""Reachability: what probers say of our addresses, on virtual time."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.pace import ASIDE_S, LOST_S
from protocol.reachability.machine import (
    AGAIN_S,
    MAX_CANDIDATES,
    MAX_OBSERVERS,
    Ends,
    Place,
    Probe,
    Reachability,
    Source,
    Verdict,
)

US = "11.0.0.2"
PORT = 4001
FAR = [f"11.0.{number}.2" for number in range(1, 100)]


class World:
    """One volunteer behind a router, and members of other networks."""

    def __init__(self, members: int = 3) -> None:
        self.now = 0.0
        self.machine = Reachability()
        self.asked: list[Probe] = []
        self.listen({})
        for number in range(members):
            self.meet(number)

    def listen(self, given: Mapping[Place, Source]) -> None:
        self.machine.listens(["192.168.1.2"], {"ip4": PORT, "ip6": PORT}, given, self.now)

    def meet(self, number: int, seen: str = US, port: int = 50_000, dialled: bool = True) -> None:
        ends = Ends(FAR[number], 40_000, dialled)
        self.machine.observed(PeerId(f"p{number}"), ends, (seen, port), self.now)

    def ask(self, after_s: float = 0.0) -> list[str]:
        """Let time pass; who is asked to dial back, by name."""
        self.now += after_s
        found = self.machine.tick(self.now)
        self.asked += found
        return [str(probe.peer) for probe in found]

    def answer(self, *reached: bool | None) -> list[str]:
        """Those who are asked answer, one after the other; return their names."""
        names = []
        for answer in reached:
            probe = self.asked.pop()
            names.append(str(probe.peer))
            self.machine.probed(probe, answer)
            self.ask()
        return names

    def verdict(self) -> Verdict:
        found = {s.place: s.verdict for s in self.machine.candidates()}
        return found[US, PORT]


@pytest.mark.parametrize("silent", [False, True])
def test_three_members_of_different_prefixes_have_to_agree_and_who_is_silent_is_replaced(
    silent: bool,
) -> None:
    world = World(members=5)
    assert world.ask() == ["p0"]
    assert world.asked[0].place == (US, PORT)
    assert world.ask() == [], "it may answer yet"
    assert world.answer(True, True) == ["p0", "p1"]
    assert world.verdict() is Verdict.UNKNOWN
    assert world.answer(None if silent else True) == ["p2"]
    if silent:
        assert world.answer(True) == ["p3"]
    assert world.ask() == world.asked == []
    assert world.verdict() is Verdict.PUBLIC
    assert world.machine.candidates()[0].probers == 3


def test_what_the_router_maps_is_probed_again_at_once_and_once() -> None:
    world = World()
    for again in (True, True, False):
        assert bool(world.ask()) is again
        world.answer(*[True, True, True] * again)
        assert world.ask() == []
        world.listen({(US, PORT): "mapped"})


def test_who_sees_us_elsewhere_does_not_see_us_there_any_more() -> None:
    world = World(members=1)
    assert world.machine.candidates()
    world.meet(0, seen="192.168.1.9")
    assert not world.machine.candidates()


def test_without_a_majority_of_three_nothing_is_known() -> None:
    world = World(members=4)
    world.ask()
    assert world.answer(True, False, False, True) == ["p0", "p1", "p2", "p3"]
    assert world.verdict() is Verdict.UNKNOWN
    assert world.ask(ASIDE_S - 1) == []
    assert world.ask(1) == ["p0"]


@pytest.mark.parametrize("answers", [(True, True), (True, None), (None, None)])
def test_where_there_are_fewer_all_of_them_have_to_agree(answers: tuple[bool | None, ...]) -> None:
    world = World(members=2)
    assert world.ask() == world.ask(LOST_S - 1) == []
    assert world.ask(1) == ["p0"]
    assert world.answer(*answers) == ["p0", "p1"]
    agreed = answers.count(True) > 0
    assert world.verdict() is (Verdict.PUBLIC if agreed else Verdict.UNKNOWN)
    assert world.ask(ASIDE_S) == ["p0"]  # soon again


def test_two_that_agree_are_asked_again_as_soon_as_there_is_a_third() -> None:
    world = World(members=2)
    world.ask(LOST_S)
    world.answer(True, True)
    assert world.verdict() is Verdict.PUBLIC
    world.meet(2)
    assert world.ask() == ["p0"]
    assert world.verdict() is Verdict.PUBLIC
    assert world.answer(False, False, False) == ["p0", "p1", "p2"]
    assert world.verdict() is Verdict.PRIVATE


def test_it_is_probed_again_and_at_once_when_the_network_changes() -> None:
    world = World()
    world.ask()
    world.answer(True, True, True)
    assert world.ask(AGAIN_S - 1) == []
    assert world.ask(1) == ["p0"]
    world.answer(True, True, True)
    assert world.ask() == []
    world.machine.listens(["192.168.2.7"], {"ip4": PORT}, {}, world.now)
    assert world.ask() == ["p0"]
    world.answer(False, False, False)
    assert world.verdict() is Verdict.PRIVATE


def test_members_of_our_own_prefix_and_of_one_prefix_are_no_further_probers() -> None:
    world = World(members=0)
    for name, host in (("near", "11.0.0.9"), ("a", "11.0.1.2"), ("b", "11.0.1.3")):
        world.machine.observed(PeerId(name), Ends(host, 1, True), (US, 7), 0.0)
    assert world.ask(LOST_S) == ["a"]


def test_what_cannot_be_seen_from_elsewhere_is_no_observation() -> None:
    world = World(members=0)
    world.meet(0, seen="192.168.1.2")
    world.meet(1, seen="fd00::1")
    world.machine.observed(PeerId("p"), Ends("192.168.1.3", 1, True), (US, 7), 0.0)
    world.machine.observed(PeerId("q"), Ends("2a11::1", 1, True), (US, 7), 0.0)
    assert world.machine.candidates() == []
    assert world.ask() == []


def test_answers_of_others_and_to_nothing_do_not_count() -> None:
    world = World()
    world.ask()
    (probe,) = world.asked
    for peer in (PeerId("p77"), probe.peer):
        world.machine.probed(Probe(peer, probe.prefix, probe.place), True)
        world.machine.probed(Probe(peer, probe.prefix, (US, 77)), True)
    assert world.ask() == []
    assert world.verdict() is Verdict.UNKNOWN


def test_an_answer_counts_once_and_only_in_the_probing_that_asked_for_it() -> None:
    world = World()
    world.ask()
    (before,) = world.asked
    world.answer(True, True)
    world.machine.probed(before, True)
    assert world.ask() == []
    assert world.verdict() is Verdict.UNKNOWN
    world.answer(True)
    assert world.verdict() is Verdict.PUBLIC
    assert world.ask(AGAIN_S) == ["p0"]
    world.machine.probed(before, False)
    assert world.ask() == [], "the one asked now has not answered"


def test_of_where_a_peer_sees_us_only_the_host_is_a_candidate() -> None:
    world = World(members=0)
    world.meet(0, port=5000, dialled=False)
    world.meet(1, port=5001)
    assert [s.place for s in world.machine.candidates()] == [(US, PORT)]


def test_announced_and_mapped_addresses_come_before_observed_ones() -> None:
    world = World()
    world.listen({(US, 9000): "mapped", ("11.8.8.8", 1): "announced", ("100.64.0.1", 2): "mapped"})
    assert {(s.place[1], s.source) for s in world.machine.candidates()} == {
        (9000, "mapped"), (1, "announced"), (PORT, "observed")}  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "outer"),
    [
        ([(1, 5000), (1, 5000), (2, 6000)], Outer(1, US, 5000)),
        ([(1, 5000), (2, 6000), (2, 6000)], Outer(2, US, 6000)),
        ([(1, 5000)], Outer(1, US, 5000)),
        ([(1, 77), (1, 5000), (1, 5000)], Outer(1, US, 5000)),  # one of them lies
        ([], None),
    ],
)
def test_others_may_dial_a_port_that_most_see_at_one_place(
    seen: list[tuple[int, int]], outer: Outer | None
) -> None:
    machine = Reachability()
    for number, (own_port, port) in enumerate(seen):
        machine.observed(PeerId(f"p{number}"), Ends(FAR[number], own_port, True), (US, port), 0.0)
    machine.observed(PeerId("q"), Ends(FAR[50], 1, False), (US, 77), 0.0)
    assert machine.outer() == outer
    for number in range(len(seen)):
        machine.gone(PeerId(f"p{number}"), 1.0)
    assert machine.outer() is None


def test_a_port_of_ipv6_is_known_beside_one_of_ipv4() -> None:
    machine = Reachability()
    six = "2a11:0:1:1::2"
    machine.observed(PeerId("four"), Ends(FAR[0], 1, True), (US, 5000), 0.0)
    machine.observed(PeerId("six"), Ends("2a11:0:9::2", 7, True), (six, 7), 0.0)
    machine.observed(PeerId("came"), Ends("2a11:0:8::2", 8, False), (six, 8), 0.0)
    assert machine.outer() == Outer(1, US, 5000)
    assert machine.outer("ip6") == Outer(7, six, 7)


@given(st.data())
def test_whatever_is_said_it_stays_bounded_and_public_only_by_agreement(
    data: st.DataObject,
) -> None:
    machine, now = Reachability(), 0.0
    machine.listens(["192.168.1.2"], {"ip4": PORT}, {}, now)
    yes: set[str] = set()
    asked: list[Probe] = []
    hosts = st.sampled_from([US, "11.9.9.9", "10.0.0.1", "2a11::1"])
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.floats(0, 100))
        number = data.draw(st.integers(0, 20))
        peer = PeerId(f"p{number}")
        match data.draw(st.integers(0, 3)):
            case 0:
                ends = Ends(FAR[number], 1, data.draw(st.booleans()))
                machine.observed(peer, ends, (data.draw(hosts), 7), now)
            case 1:
                machine.gone(peer, now)
            case 2:
                answer = data.draw(st.sampled_from([True, False, None]))
                if asked:
                    machine.probed(data.draw(st.sampled_from(asked)), answer)
                    yes |= {str(peer)} if answer else set()
            case _:
                asked += machine.tick(now)
        found = machine.candidates()
        assert len(found) <= MAX_CANDIDATES
        if not yes:
            assert all(s.verdict is not Verdict.PUBLIC for s in found)


def test_hosts_that_one_prefix_invents_leave_a_place_to_those_that_others_see() -> None:
    world = World(members=0)
    for number in range(20):
        ends = Ends(f"11.0.77.{number + 1}", PORT, dialled=True)
        world.machine.observed(PeerId(f"liar {number}"), ends, (f"11.5.{number}.1", 7), 0.0)
    six = Ends("2a11:7::1", PORT, dialled=True)
    world.machine.observed(PeerId("six"), six, ("2a12::2", 7), 0.0)
    for number in range(2):
        world.meet(number)
    hosts = {one.place[0] for one in world.machine.candidates()}
    assert {US, "2a12::2"} < hosts
    assert len(hosts) <= 4


def test_a_crowd_of_one_prefix_does_not_displace_other_observers() -> None:
    world = World(members=3)
    for number in range(2 * MAX_OBSERVERS):
        ends = Ends(f"11.0.77.{number % 250}", PORT, dialled=False)
        world.machine.observed(PeerId(f"liar {number}"), ends, (US, 7), 0.0)
    world.ask()
    assert {*world.answer(True, True, True)} >= {"p0", "p1"}


def test_observers_are_bounded() -> None:
    machine = Reachability()
    for number in range(3 * MAX_OBSERVERS):
        host = f"11.{number // 250}.{number % 250}.9"
        machine.observed(PeerId(str(number)), Ends(host, 1, True), (US, 1), 0.0)
    assert len(machine._observations) == MAX_OBSERVERS
