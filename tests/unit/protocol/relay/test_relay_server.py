"""The relay's machine as tables: who is refused and why, what ends when, what is bounded."""

import pytest

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.relay.messages import Connect, Reserve, Status, Stop, WhereIs
from protocol.relay.server import MAX_ASKS, Asked, RelayLimits, RelayServer

RELAY, A, B, C = (PeerId(name) for name in ("relay", "a", "b", "c"))


def relay(limits: RelayLimits | None = None, *, reserved: tuple[PeerId, ...] = (B,)) -> RelayServer:
    machine = RelayServer(RELAY, limits or RelayLimits())
    machine.offer()
    for number, peer in enumerate(reserved):
        machine.asked(Asked(-1 - number, peer, Reserve(), member=True), 0.0)
    return machine


def connect(number: int, asker: PeerId, target: PeerId = B, *, member: bool = True) -> Asked:
    return Asked(number, asker, Connect(target), member)


def open_circuit(machine: RelayServer, number: int, asker: PeerId, *, member: bool = True) -> None:
    machine.asked(connect(number, asker, member=member), 0.0)
    assert machine.agreed(number, True)


def test_a_member_is_told_where_the_other_end_of_its_circuit_is() -> None:
    machine = relay()

    def code(number: int, asker: PeerId, target: PeerId = B, *, member: bool = True) -> str:
        answer, _ = machine.asked(Asked(number, asker, WhereIs(target), member), 1.0)
        assert isinstance(answer, Status)
        assert not answer.host  # the driver adds it
        return answer.code

    machine.asked(connect(1, A, member=False), 0.0)
    assert code(2, A) == "no-circuit"  # not yet
    machine.agreed(1, True)
    assert code(3, A, member=False) == "not-a-member"
    assert code(4, A) == "ok"
    assert code(5, B, A) == code(6, C) == "no-circuit"  # who was asked for knows it from `Stop`
    machine.ended(1)
    assert code(7, A) == "no-circuit"


def test_a_reservation_ends_with_its_stream_or_when_the_relay_has_left() -> None:
    machine = relay(reserved=())
    assert machine.asked(Asked(1, B, Reserve(), True), 0.0) == (Status("ok"), None)
    assert machine.asked(Asked(2, B, Reserve(), True), 1.0) == (Status("ok"), None)
    assert machine.tick(2.0) == [1]
    machine.ended(1)
    assert machine.tick(1e6) == []
    assert machine.reservations == {B}, "the later one lasts"
    machine.drain(30.0, 1e6)
    assert machine.tick(1e6 + 29.9) == []
    assert machine.tick(1e6 + 30.0) == [2]
    machine.ended(2)
    assert machine.reservations == frozenset()


@pytest.mark.parametrize(
    ("asked", "code", "blamed"),
    [
        (Asked(1, A, Reserve(), member=False), "not-a-member", False),
        (Asked(1, A, Reserve(), member=True, relayed=True), "over-a-circuit", True),
        (Asked(1, A, Connect(B), member=True, relayed=True), "over-a-circuit", True),
        (Asked(1, A, Connect(A), member=True), "own-circuit", True),
        (Asked(1, A, Connect(RELAY), member=True), "own-circuit", True),
        (Asked(1, A, Connect(C), member=True), "no-reservation", False),
        (Asked(1, A, Connect("nonsense"), member=True), "no-reservation", False),
    ],
)
def test_who_is_refused(asked: Asked, code: str, blamed: bool) -> None:
    machine = relay()
    answer, blame = machine.asked(asked, 1.0)
    assert answer == Status(code)  # type: ignore[arg-type]
    assert isinstance(blame, Penalise) == blamed
    assert machine.refused == {code: 1}
    assert machine.circuits == 0


def test_ten_thousand_reservations_are_bounded() -> None:
    machine = relay(reserved=())
    for number in range(10_000):
        machine.asked(Asked(number, PeerId(f"peer {number}"), Reserve(), True), 0.0)
    assert len(machine.reservations) == machine.limits.reservations
    assert machine.refused["full"] == 10_000 - machine.limits.reservations
    held = next(iter(machine.reservations))
    renewed, _ = machine.asked(Asked(1, held, Reserve(), True), 1.0)  # in its own place
    assert renewed == Status("ok")


def test_a_target_is_not_flooded_by_many_askers_together() -> None:
    """Nobody is blamed: each of them asks once."""
    machine = relay(RelayLimits(circuits_of_member=10_000, circuits=10_000))
    asks = [connect(number, PeerId(f"asker {number}")) for number in range(200)]
    replies = [machine.asked(one, 0.0) for one in asks]
    assert sum(isinstance(reply, Stop) for reply, _ in replies) == machine.limits.asks.burst
    assert {blame for _, blame in replies} == {None}


def test_who_asks_for_one_target_without_end_leaves_it_to_others() -> None:
    """It asks as often as any peer may, and its circuits end at once."""
    machine = relay()
    reached = 0
    for second in range(200):
        for half in (0.0, 0.5):
            number = 10 * second + round(2 * half)
            machine.asked(connect(number, A), second + half)
            machine.ended(number)
        honest = machine.asked(connect(10 * second + 5, PeerId(f"asker {second}")), second)
        reached += isinstance(honest[0], Stop)
        machine.ended(10 * second + 5)
    assert reached == 200
    assert machine.refused["too-often"] > 300


def test_who_asks_for_one_target_without_end_is_blamed_also_if_it_comes_again() -> None:
    machine = relay()
    replies = []
    for number in range(20):
        replies.append(machine.asked(connect(number, A), 0.0))
        machine.ended(number)
    burst = machine.limits.asks_of_pair.burst
    assert [reply for reply, _ in replies].count(Stop(A)) == burst
    blamed = [blame.peer for _, blame in replies if blame is not None]
    assert blamed == [A] * (20 - burst)


def test_nobody_takes_all_circuits_of_a_target() -> None:
    machine = relay()
    for number in range(8):
        machine.asked(connect(number, A), 0.0)
    assert machine.circuits == machine.limits.circuits_of_pair
    assert machine.asked(connect(9, C), 0.0) == (Stop(C), None)


def test_strangers_do_not_use_up_the_requests_of_members() -> None:
    """Each of them is another one, asks once, and goes."""
    machine = relay()
    for number in range(1000):
        machine.asked(connect(number, PeerId(f"stranger {number}"), member=False), 0.01 * number)
        machine.ended(number)
    assert machine.asked(connect(1000, A), 10.0) == (Stop(A), None)


def test_the_peers_of_one_prefix_do_not_use_up_the_requests_for_a_target() -> None:
    machine = relay()
    for number in range(400):
        asked = Asked(number, PeerId(f"p{number}"), Connect(B), member=True, prefix="11.0.0")
        machine.asked(asked, 0.1 * number)
        machine.ended(number)
    elsewhere = Asked(1000, A, Connect(B), member=True, prefix="11.0.1")
    assert machine.asked(elsewhere, 40.0) == (Stop(A), None)


def test_what_is_remembered_of_requests_is_bounded() -> None:
    machine = relay()
    for number in range(2 * MAX_ASKS):
        machine.asked(Asked(number, PeerId(f"peer {number}"), Reserve(), True), 0.0)
    assert len(machine._asks) == MAX_ASKS


def test_the_peers_of_one_prefix_get_a_quarter_of_the_reservations() -> None:
    machine = relay(reserved=())
    for number in range(200):
        machine.asked(Asked(number, PeerId(f"p{number}"), Reserve(), True, prefix="11.0.0"), 0.0)
    assert len(machine.reservations) == machine.limits.reservations // 4
    renewed, _ = machine.asked(Asked(1, PeerId("p0"), Reserve(), True, prefix="11.0.0"), 1.0)
    other, _ = machine.asked(Asked(1, A, Reserve(), True, prefix="11.0.1"), 1.0)
    for answer in (renewed, other):
        assert answer == Status("ok")


@pytest.mark.parametrize("member", [True, False])
def test_the_peers_of_one_prefix_get_a_quarter_of_the_circuits(member: bool) -> None:
    targets = [PeerId(f"t{number}") for number in range(100)]
    machine = relay(reserved=tuple(targets))
    limits = machine.limits
    for number, target in enumerate(targets):
        ask = Asked(number, PeerId(f"p{number}"), Connect(target), member, prefix="11.0.0")
        machine.asked(ask, 0.0)
    assert machine.circuits == (limits.circuits if member else limits.circuits_of_strangers) // 4
    elsewhere = Asked(1000, A, Connect(targets[0]), member, prefix="11.0.1")
    assert machine.asked(elsewhere, 0.0) == (Stop(A), None)


def test_circuits_are_bounded_in_all_for_a_member_and_for_strangers() -> None:
    limits = RelayLimits(circuits=6, circuits_of_member=4, circuits_of_strangers=1)
    machine = relay(limits, reserved=(B, C))
    codes = []
    asks = [
        connect(1, A, member=False),
        connect(2, PeerId("stranger"), member=False),  # full: the other one has the place
        connect(3, A), connect(4, A), connect(5, A),
        connect(6, A, C),  # full: a has four
        connect(7, PeerId("d"), B),  # full: b has four
        connect(8, PeerId("d"), C), connect(9, PeerId("d"), C),
        connect(10, PeerId("e"), C),  # full: six in all
    ]  # fmt: skip
    for asked in asks:
        reply, _ = machine.asked(asked, 0.0)
        codes.append(asked.number if isinstance(reply, Status) else 0)
    assert [number for number in codes if number] == [2, 6, 7, 10]
    assert machine.circuits == 6


def test_circuits_end_when_a_relay_has_left() -> None:
    machine = relay()
    open_circuit(machine, 1, A)
    machine.drain(20.0, 5.0)
    machine.offer()
    assert machine.tick(1e6) == []
    machine.drain(20.0, 1e6)
    assert machine.tick(1e6 + 19.9) == []
    assert machine.tick(1e6 + 20.0)[-1:] == [1]
    assert machine.refused == {"drained": 1}
    assert machine.circuits == 0
    assert not machine.agreed(1, True)  # too late


def test_a_strangers_circuit_ends_unless_it_becomes_a_member() -> None:
    for becomes in (False, True):
        machine = relay()
        open_circuit(machine, 1, A, member=False)
        if becomes:
            machine.admitted(A)
        assert machine.tick(59.9) == []
        assert machine.tick(60.0) == [1] * (not becomes)
        assert machine.refused == ({} if becomes else {"stranger": 1})


def test_a_relay_that_leaves_gives_no_more_reservations() -> None:
    machine = relay(reserved=(B, C))
    machine.drain(30.0, 1.0)
    machine.drain(30.0, 2.0)
    assert machine._until == 31.0
    assert machine.asked(Asked(5, B, Reserve(), True), 2.0) == (Status("not-offered"), None)


def test_a_target_that_does_not_agree() -> None:
    machine = relay()
    machine.asked(connect(1, A), 0.0)
    assert not machine.agreed(1, False)
    assert machine.refused == {"unreachable": 1}
    assert machine.circuits == 0
