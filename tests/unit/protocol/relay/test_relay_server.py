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
    for peer in reserved:
        machine.asked(Asked(peer, Reserve(), member=True), 0.0)
    return machine


def connect(asker: PeerId, target: PeerId = B, *, member: bool = True) -> Asked:
    return Asked(asker, Connect(target), member)


def open_circuit(machine: RelayServer, asker: PeerId, *, member: bool = True) -> Asked:
    circuit = connect(asker, member=member)
    assert machine.asked(circuit, 0.0) == (Stop(asker), None)
    circuit.agreed = True
    return circuit


def test_members_at_both_ends_of_a_circuit_are_told_where_the_other_one_is() -> None:
    machine = relay()

    def code(asker: PeerId, target: PeerId = B, *, member: bool = True) -> str:
        answer, _ = machine.asked(Asked(asker, WhereIs(target), member), 1.0)
        assert isinstance(answer, Status)
        assert not answer.host  # the driver adds it
        return answer.code

    circuit = connect(A, member=False)
    machine.asked(circuit, 0.0)
    assert code(A) == "no-circuit"  # not yet
    circuit.agreed = True
    assert code(A, member=False) == "not-a-member"
    assert code(A) == code(B, A) == "ok"
    assert code(C) == code(C, A) == "no-circuit"
    machine.ended(circuit)
    assert code(A) == "no-circuit"


def test_the_answer_to_what_was_refused_is_not_cut_off() -> None:
    machine = relay(reserved=())
    refused = Asked(B, Reserve(), member=False)
    assert machine.asked(refused, 0.0) == (Status("not-a-member"), None)
    assert not machine.is_over(refused, 0.5)


def test_a_reservation_ends_with_its_stream_or_when_the_relay_has_left() -> None:
    machine = relay(reserved=())
    first, second = (Asked(B, Reserve(), True) for _ in range(2))
    for asked in (first, second):
        assert machine.asked(asked, 0.0) == (Status("ok"), None)
    assert machine.is_over(first, 2.0)
    machine.ended(first)
    assert not machine.is_over(second, 1e6)
    assert machine.reservations == {B}, "the later one lasts"
    machine.drain(30.0, 1e6)
    assert not machine.is_over(second, 1e6 + 29.9)
    assert machine.is_over(second, 1e6 + 30.0)
    machine.ended(second)
    assert machine.reservations == frozenset()


@pytest.mark.parametrize(
    ("asked", "code", "blamed"),
    [
        (Asked(A, Reserve(), member=False), "not-a-member", False),
        (Asked(A, Reserve(), member=True, relayed=True), "over-a-circuit", True),
        (Asked(A, Connect(B), member=True, relayed=True), "over-a-circuit", True),
        (Asked(A, Connect(A), member=True), "own-circuit", True),
        (Asked(A, Connect(RELAY), member=True), "own-circuit", True),
        (Asked(A, Connect(C), member=True), "no-reservation", False),
        (Asked(A, Connect("nonsense"), member=True), "no-reservation", False),
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
        machine.asked(Asked(PeerId(f"peer {number}"), Reserve(), True), 0.0)
    assert len(machine.reservations) == machine.limits.reservations
    assert machine.refused["full"] == 10_000 - machine.limits.reservations
    held = next(iter(machine.reservations))
    renewed, _ = machine.asked(Asked(held, Reserve(), True), 1.0)  # in its own place
    assert renewed == Status("ok")


def test_a_target_is_not_flooded_by_many_askers_together() -> None:
    """Nobody is blamed: each of them asks once."""
    machine = relay(RelayLimits(circuits_of_member=10_000, circuits=10_000))
    asks = [connect(PeerId(f"asker {number}")) for number in range(200)]
    replies = [machine.asked(one, 0.0) for one in asks]
    assert sum(isinstance(reply, Stop) for reply, _ in replies) == machine.limits.asks.burst
    assert {blame for _, blame in replies} == {None}


def test_who_asks_for_one_target_without_end_leaves_it_to_others() -> None:
    """It asks as often as any peer may, and its circuits end at once."""
    machine = relay()
    reached = 0
    for second in range(200):
        for half in (0.0, 0.5):
            asked = connect(A)
            machine.asked(asked, second + half)
            machine.ended(asked)
        honest = connect(PeerId(f"asker {second}"))
        reached += isinstance(machine.asked(honest, second)[0], Stop)
        machine.ended(honest)
    assert reached == 200
    assert machine.refused["too-often"] > 300


def test_who_asks_for_one_target_without_end_is_blamed_also_if_it_comes_again() -> None:
    machine = relay()
    replies = []
    for _ in range(20):
        asked = connect(A)
        replies.append(machine.asked(asked, 0.0))
        machine.ended(asked)
    burst = machine.limits.asks_of_pair.burst
    assert [reply for reply, _ in replies].count(Stop(A)) == burst
    blamed = [blame.peer for _, blame in replies if blame is not None]
    assert blamed == [A] * (20 - burst)


def test_nobody_takes_all_circuits_of_a_target() -> None:
    machine = relay()
    for _ in range(8):
        machine.asked(connect(A), 0.0)
    assert machine.circuits == machine.limits.circuits_of_pair
    assert machine.asked(connect(C), 0.0) == (Stop(C), None)


def test_strangers_do_not_use_up_the_requests_of_members() -> None:
    """Each of them is another one, asks once, and goes."""
    machine = relay()
    for number in range(1000):
        stranger = connect(PeerId(f"stranger {number}"), member=False)
        machine.asked(stranger, 0.01 * number)
        machine.ended(stranger)
    assert machine.asked(connect(A), 10.0) == (Stop(A), None)


def test_the_peers_of_one_prefix_do_not_use_up_the_requests_for_a_target() -> None:
    machine = relay()
    for number in range(400):
        asked = Asked(PeerId(f"p{number}"), Connect(B), member=True, prefix="11.0.0")
        machine.asked(asked, 0.1 * number)
        machine.ended(asked)
    elsewhere = Asked(A, Connect(B), member=True, prefix="11.0.1")
    assert machine.asked(elsewhere, 40.0) == (Stop(A), None)


def test_what_is_remembered_of_requests_is_bounded() -> None:
    machine = relay()
    for number in range(2 * MAX_ASKS):
        machine.asked(Asked(PeerId(f"peer {number}"), Reserve(), True), 0.0)
    assert len(machine._asks) == MAX_ASKS


def test_the_peers_of_one_prefix_get_a_quarter_of_the_reservations() -> None:
    machine = relay(reserved=())
    for number in range(200):
        machine.asked(Asked(PeerId(f"p{number}"), Reserve(), True, prefix="11.0.0"), 0.0)
    assert len(machine.reservations) == machine.limits.reservations // 4
    renewed, _ = machine.asked(Asked(PeerId("p0"), Reserve(), True, prefix="11.0.0"), 1.0)
    other, _ = machine.asked(Asked(A, Reserve(), True, prefix="11.0.1"), 1.0)
    for answer in (renewed, other):
        assert answer == Status("ok")


@pytest.mark.parametrize("member", [True, False])
def test_the_peers_of_one_prefix_get_a_quarter_of_the_circuits(member: bool) -> None:
    targets = [PeerId(f"t{number}") for number in range(100)]
    machine = relay(reserved=tuple(targets))
    limits = machine.limits
    for number, target in enumerate(targets):
        ask = Asked(PeerId(f"p{number}"), Connect(target), member, prefix="11.0.0")
        machine.asked(ask, 0.0)
    assert machine.circuits == (limits.circuits if member else limits.circuits_of_strangers) // 4
    elsewhere = Asked(A, Connect(targets[0]), member, prefix="11.0.1")
    assert machine.asked(elsewhere, 0.0) == (Stop(A), None)


def test_circuits_are_bounded_in_all_for_a_member_and_for_strangers() -> None:
    limits = RelayLimits(circuits=6, circuits_of_member=4, circuits_of_strangers=1)
    machine = relay(limits, reserved=(B, C))
    asks = [
        connect(A, member=False),
        connect(PeerId("stranger"), member=False),  # full: the other one has the place
        connect(A), connect(A), connect(A),
        connect(A, C),  # full: a has four
        connect(PeerId("d"), B),  # full: b has four
        connect(PeerId("d"), C), connect(PeerId("d"), C),
        connect(PeerId("e"), C),  # full: six in all
    ]  # fmt: skip
    refused = [isinstance(machine.asked(asked, 0.0)[0], Status) for asked in asks]
    assert [number for number, full in enumerate(refused, 1) if full] == [2, 6, 7, 10]
    assert machine.circuits == 6


def test_circuits_end_when_a_relay_has_left() -> None:
    machine = relay()
    circuit = open_circuit(machine, A)
    machine.drain(20.0, 5.0)
    machine.offer()
    assert not machine.is_over(circuit, 1e6)
    machine.drain(20.0, 1e6)
    assert not machine.is_over(circuit, 1e6 + 19.9)
    assert machine.is_over(circuit, 1e6 + 20.0)
    machine.ended(circuit)
    assert machine.circuits == 0


def test_a_strangers_circuit_ends_unless_it_becomes_a_member() -> None:
    for becomes in (False, True):
        machine = relay()
        circuit = open_circuit(machine, A, member=False)
        if becomes:
            machine.admitted(A)
        assert not machine.is_over(circuit, 59.9)
        assert machine.is_over(circuit, 60.0) != becomes


def test_a_relay_that_leaves_gives_no_more_reservations() -> None:
    machine = relay(reserved=(B, C))
    machine.drain(30.0, 1.0)
    machine.drain(30.0, 2.0)
    assert machine._until == 31.0
    assert machine.asked(Asked(B, Reserve(), True), 2.0) == (Status("not-offered"), None)
