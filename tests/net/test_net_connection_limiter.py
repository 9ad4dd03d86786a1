"""Admission of connections: the limiter alone, without sockets."""

from itertools import pairwise

import pytest

from client.net.connection_limiter import (
    GUEST_EVERY_S,
    GUEST_STAYS_S,
    MACHINE_ARRIVALS,
    MAX_FRIENDS,
    MAX_TURNS,
    ConnectionLimiter,
    HostLimits,
    InboundConnection,
    Refusal,
)
from protocol.ids import PeerId

FAST = HostLimits(arrivals_per_s=1e9, arrivals_burst=1e9, links_per_s=1e9, links_burst=1e9)


class Crowd:
    """Inbound connections at one limiter, and who was told to go."""

    def __init__(self, limits: HostLimits = FAST, members: tuple[str, ...] = ()) -> None:
        self.limiter = ConnectionLimiter(limits, lambda peer: peer in members)
        self.gone: list[str] = []

    def arrive(self, name: str, ip: str = "127.0.0.1", now: float = 0.0) -> InboundConnection:
        one = InboundConnection(ip, lambda: self.gone.append(name))
        self.limiter.arrive(one, now)
        one.peer = PeerId(name)
        return one

    def come(self, name: str, ip: str = "127.0.0.1", now: float = 0.0) -> InboundConnection:
        """Arrive, prove an identity, be admitted, and leave once told to."""
        one = InboundConnection(ip, lambda: self._leave(name, one))
        self.limiter.arrive(one, now)
        try:
            self.limiter.recognise(one, PeerId(name), now)
        except Refusal:
            self.limiter.leave(one)
            raise
        one.admitted = True
        return one

    def _leave(self, name: str, one: InboundConnection) -> None:
        self.gone.append(name)
        self.limiter.leave(one)


def stranger(ip: str = "127.0.0.1") -> InboundConnection:
    return InboundConnection(ip, lambda: None)


def unknown(**numbers: float) -> ConnectionLimiter:
    """A limiter with these limits that knows no member."""
    return ConnectionLimiter(HostLimits(**numbers), lambda peer: False)  # type: ignore[arg-type]


def limits(**numbers: int) -> HostLimits:
    return HostLimits(arrivals_per_s=1e9, arrivals_burst=1e9, **numbers)


def test_silent_links_from_many_addresses_keep_nobody_out() -> None:
    crowd = Crowd(limits(connections=10, strangers=8), members=("honest",))
    for number in range(34 * 8):
        crowd.arrive(f"silent-{number}", f"10.{number // 8}.0.1")
    crowd.arrive("honest", "192.0.2.1")
    for number in range(100):
        crowd.arrive(f"late-{number}", f"11.{number // 8}.0.1")
    assert "honest" not in crowd.gone
    assert len(crowd.gone) >= 34 * 8 + 100 - 8


def test_who_was_not_admitted_goes_first_and_then_the_oldest() -> None:
    crowd = Crowd(limits(strangers=3))
    crowd.arrive("a").admitted = True
    crowd.arrive("b")
    crowd.arrive("c").admitted = True
    crowd.arrive("d").admitted = True
    crowd.arrive("e").admitted = True
    assert crowd.gone == ["b", "a"]


def test_members_fill_their_own_places_only() -> None:
    crowd = Crowd(limits(connections=2, strangers=2), members=("m", "n"))
    crowd.arrive("m")
    crowd.arrive("stranger")
    crowd.arrive("n")
    with pytest.raises(Refusal, match="too-many-connections"):
        crowd.arrive("one more")
    assert not crowd.gone


def test_an_ip6_network_counts_as_one_address() -> None:
    crowd = Crowd(limits(strangers_per_ip=2), members=("m",))
    crowd.arrive("other", "2a11:0:0:2::1")
    for number in range(8):
        crowd.arrive(str(number), f"2a11:0:0:1::{number + 1:x}")
    assert crowd.gone == [str(number) for number in range(6)]
    crowd = Crowd(limits(connections_per_ip=3))
    inbound = [crowd.arrive(str(number), f"2a11:0:0:1::{number + 1:x}") for number in range(3)]
    with pytest.raises(Refusal, match="too-many-from-one-ip"):
        crowd.arrive("more", "2a11::1:ffff:0:0:1")
    crowd.arrive("elsewhere", "2a11::2:0:0:0:1")
    for one in inbound:
        crowd.limiter.leave(one)
    crowd.arrive("later", "2a11::1:ffff:0:0:1")


def test_limits_per_address_do_not_hold_on_loopback() -> None:
    crowd = Crowd(limits(connections_per_ip=3, strangers_per_ip=2), members=("m", "n"))
    crowd.arrive("m", "192.0.2.1")
    crowd.arrive("one", "192.0.2.1")
    one = crowd.arrive("two", "192.0.2.1")
    with pytest.raises(Refusal, match="too-many-from-one-ip"):
        crowd.arrive("three", "192.0.2.1")
    crowd.limiter.leave(one)
    crowd.arrive("four", "192.0.2.1")
    assert not crowd.gone
    for number in range(5):
        crowd.arrive(str(number))
    assert not crowd.gone


def test_arrivals_wait_for_their_turn_or_are_refused() -> None:
    limiter = unknown(arrivals_per_s=10, arrivals_burst=5)
    inbound = [stranger() for _ in range(200)]
    waits = [limiter.arrive(one, 0.0) for one in inbound[:20]]
    assert waits[:5] == [0.0] * 5
    assert waits[19] == pytest.approx(1.5)
    for one in inbound[20:25]:
        limiter.arrive(one, 0.0)
    for one in inbound[25:]:
        with pytest.raises(Refusal, match="too-many-arrivals"):
            limiter.arrive(one, 0.0)
    assert limiter.arrive(inbound[100], 1.0) == pytest.approx(1.1)  # refusals cost nobody a turn


def test_a_member_gets_its_link_at_once_however_many_strangers_want_one() -> None:
    slow = HostLimits(arrivals_per_s=1e9, arrivals_burst=1e9, links_per_s=4, links_burst=8)
    limiter = ConnectionLimiter(slow, lambda peer: peer == "member")
    inbound = [stranger() for _ in range(18)]
    for one in inbound:
        limiter.arrive(one, 0.0)
    waits = [limiter.recognise(v, PeerId(f"s{n}"), 0.0) for n, v in enumerate(inbound[:16])]
    assert waits[:8] == [0.0] * 8
    assert waits[15] == pytest.approx(2.0)
    with pytest.raises(Refusal, match="too-many-strangers"):
        limiter.recognise(inbound[16], PeerId("one more"), 0.0)
    assert limiter.recognise(inbound[17], PeerId("member"), 0.0) == 0.0
    assert limiter.recognise(inbound[16], PeerId("one more"), 1.0) == pytest.approx(1.25)


def test_what_is_remembered_of_machines_is_bounded() -> None:
    limiter = ConnectionLimiter(FAST, lambda peer: False)
    for number in range(2 * MAX_TURNS):
        ip = f"10.{number // 256}.{number % 256}.1"
        one = stranger(ip)
        limiter.arrive(one, 0.0)
        limiter.leave(one)
        limiter.trust(None, 4, [ip], 0.0)
    assert (len(limiter._turns), len(limiter._friends)) == (MAX_TURNS, MAX_FRIENDS)


PROVEN = ("p1", "p2")
ALL = (*PROVEN, *(f"g{number}" for number in range(400)))


def house(guests: int = 4) -> Crowd:
    """A limiter with two proven members inside, and places for guests."""
    crowd = Crowd(limits(links_per_s=10**9, links_burst=10**9), members=ALL)
    for name in PROVEN:
        crowd.come(name, "192.0.2.1")
    crowd.limiter.trust(frozenset(PROVEN), guests, [], 0.0)
    return crowd


def test_members_that_no_work_has_proven_share_few_places() -> None:
    crowd = house()
    for number in range(4):
        crowd.come(f"g{number}", f"10.{number}.0.1", now=1.0)
    crowd.come("g4", "10.4.0.1", now=2.0)  # at once, for nobody had to leave lately
    with pytest.raises(Refusal, match="too-many-guests"):
        crowd.come("g5", "10.5.0.1", now=2.0)
    assert crowd.gone == ["g0"]
    assert crowd.limiter.dialled + len(crowd.limiter._inbound) == 6


def test_a_place_changes_hands_every_few_seconds_so_that_whoever_waits_gets_in() -> None:
    crowd, let_in = house(), list[float]()
    for tenth in range(400):
        now = tenth / 10
        try:
            crowd.come(f"g{tenth}", f"10.{tenth % 200}.{tenth // 200}.1", now)
        except Refusal:
            continue
        let_in.append(now)
    assert let_in[4] - let_in[3] <= GUEST_EVERY_S
    gaps = [later - earlier for earlier, later in pairwise(let_in[4:])]
    assert all(gap == pytest.approx(GUEST_EVERY_S) for gap in gaps)
    assert not set(crowd.gone) & set(PROVEN)


def test_a_crowd_of_one_prefix_makes_room_for_somebody_else_at_once() -> None:
    crowd = house()
    for number in range(4):
        crowd.come(f"g{number}", f"198.51.100.{number + 1}", now=1.0)
    crowd.come("g10", "203.0.113.1", now=1.0)
    crowd.come("g11", "203.0.114.1", now=1.0)
    assert crowd.gone == ["g0", "g1"]
    for number in range(20, 30):  # one more of the crowd displaces one of its own, now and then
        with pytest.raises(Refusal, match="too-many-guests"):
            crowd.come(f"g{number}", f"198.51.100.{number}", now=1.5)
    assert crowd.gone == ["g0", "g1"]


def test_a_guest_that_comes_back_takes_the_place_that_it_has() -> None:
    crowd = house()
    for number in range(4):
        crowd.come(f"g{number}", now=1.0)
    for _ in range(5):
        crowd.come("g3", now=1.0)
    assert not crowd.gone


def test_the_silent_ones_among_the_guests_go_first() -> None:
    crowd = house()
    inbound = [crowd.come(f"g{number}", now=1.0) for number in range(4)]
    inbound[2].admitted = False
    crowd.come("g9", now=20.0)
    assert crowd.gone == ["g2"]


def test_nobody_is_a_guest_while_work_has_proven_nobody() -> None:
    crowd = Crowd(limits(), members=ALL)
    crowd.limiter.trust(None, 4, [], 0.0)
    for number in range(40):
        crowd.come(f"g{number}")
    assert not crowd.gone


def test_who_is_one_too_many_once_others_are_proven_has_time_to_work() -> None:
    crowd = Crowd(limits(), members=ALL)
    for number in range(40):
        crowd.come(f"g{number}", now=float(number))
    for name in PROVEN:
        crowd.come(name, now=40.0)
    crowd.limiter.trust(frozenset(PROVEN), 4, [], GUEST_STAYS_S)
    assert crowd.gone == ["g0"]
    worked = frozenset((*PROVEN, *(f"g{number}" for number in range(20))))
    crowd.limiter.trust(worked, 4, [], 100.0 + GUEST_STAYS_S)
    assert crowd.gone == ["g0", *(f"g{number}" for number in range(20, 36))]


def test_one_machine_gets_few_handshakes_and_costs_others_none() -> None:
    limiter = unknown(arrivals_per_s=2, arrivals_burst=MACHINE_ARRIVALS.burst + 8)
    for number in range(int(MACHINE_ARRIVALS.burst) + 2):  # two of these wait for their turn
        one = stranger(f"2a11:0:0:1::{number:x}")
        limiter.arrive(one, 0.0)
        limiter.leave(one)
    for number in range(100):
        with pytest.raises(Refusal, match="too-many-arrivals-from-one-ip"):
            limiter.arrive(stranger(f"2a11:0:0:1::{number:x}"), 0.0)
    assert limiter.arrive(stranger("192.0.2.1"), 0.0) == 0.0


def test_one_prefix_with_many_machines_leaves_handshakes_to_others() -> None:
    limiter = unknown(arrivals_per_s=2, arrivals_burst=64)
    refused, let_in = set[str](), 0
    for number in range(4000):
        inbound = stranger(f"2a11:0:0:{number:x}::1")
        try:
            limiter.arrive(inbound, number / 100)
        except Refusal as refusal:
            refused.add(str(refusal))
            continue
        limiter.leave(inbound)
        let_in += 1
    assert refused == {"too-many-arrivals-from-one-prefix"}
    assert let_in <= 32 + 40 + 2
    assert len(limiter._turns) == let_in + 2, "who is refused displaces nobody"
    assert limiter.arrive(stranger("2a12::1"), 40.0) == 0.0


def test_a_machine_with_all_its_places_taken_costs_no_other_a_turn() -> None:
    """Else a crowd that nobody lets in would keep out others, by asking."""
    slow = HostLimits(arrivals_per_s=2, arrivals_burst=8, connections_per_ip=4)
    crowd = Crowd(slow, members=ALL)
    for number in range(4):
        crowd.arrive(f"g{number}", "198.51.100.1")
    for number in range(100):
        with pytest.raises(Refusal, match="too-many-from-one-ip"):
            crowd.arrive(f"late-{number}", "198.51.100.1")
    for number in range(4):
        one = stranger(f"10.{number}.0.1")
        assert crowd.limiter.arrive(one, 0.0) == 0.0


def test_a_proven_members_machine_does_not_wait_behind_a_crowd() -> None:
    limiter = unknown(arrivals_per_s=2, arrivals_burst=4, connections_per_ip=100)
    limiter.trust(frozenset(PROVEN), 4, ["192.0.2.1"], 0.0)
    for number in range(8):  # four of these wait for their turn
        limiter.arrive(stranger(f"10.0.{number}.1"), 0.0)
    with pytest.raises(Refusal, match="too-many-arrivals"):
        limiter.arrive(stranger("10.0.9.1"), 0.0)
    assert limiter.arrive(stranger("192.0.2.1"), 0.0) == 0.0
