"""A seat's memory of later rounds: enough to follow them, bounded, and from each sender only its
own."""

import pytest

from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import Fault, Keep
from protocol.pipeline.place import Place
from protocol.seat.early_messages import (
    MAX_STEPS_AHEAD,
    SERVING_STEPS_AHEAD,
    EarlyMessages,
    most_of_sender,
)
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Commit, Plan, Reduced
from protocol.wire.parts import PlanMember
from tests.support.decrees import commit_of
from tests.support.seats import seat_of

ME, B, C, D = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP = 5


def reduced(step: int, attempt: int = 1, segment: int = 0) -> Reduced:
    return Reduced(0, step, attempt, segment, 1.0)


def plan(step: int) -> Plan:
    return Plan(0, step, 1, [PlanMember(B, b"")], [0, 256], [ME])


def commit(step: int, attempt: int = 1) -> Commit:
    return commit_of(0, step, attempt, bytes(32), [B])


def view(serving: bool, *versions: int) -> SwarmView:
    mine = Replica(ME, 1, serving)
    return SwarmView.of(
        [[mine, *(Replica(p, v, True) for p, v in zip((B, C, D), versions, strict=False))]]
    )


def seat(*, serving: bool) -> Seat:
    made = seat_of(Place(ME, 0, 1, 4), 1, size=256, serving=serving)
    made.update_view(view(serving, 1, 1), 0.0)
    return made


def kept(made: Seat, sender: PeerId, message: Reduced) -> list[str]:
    """Under whose name the payload is kept."""
    effects = made.receive(sender, message, 1.0, bytes(32))
    return [key.peer for e in effects if isinstance(e, Keep) for key in e.keys]


def test_each_attempt_is_said_once() -> None:
    ahead = EarlyMessages(8)
    assert ahead.keep(B, reduced(STEP, segment=0), b"first")
    assert not ahead.keep(B, reduced(STEP, segment=0), b"second")
    assert ahead.keep(B, reduced(STEP, segment=1), b"another segment")
    assert ahead.keep(B, reduced(STEP, attempt=2), b"third")
    assert ahead.keep(C, reduced(STEP), b"another sender")
    assert [digest for _, _, digest in ahead.take(STEP)] == [
        b"first",
        b"another segment",
        b"third",
        b"another sender",
    ]


def test_a_flood_is_bounded_and_drowns_nobody() -> None:
    ahead = EarlyMessages(8)
    for attempt in range(1000):
        assert ahead.keep(B, commit(STEP, attempt), b"") == (attempt < most_of_sender(8))
    assert ahead.keep(C, commit(STEP), b"")


def test_a_sibling_cannot_replace_the_bytes_of_another() -> None:
    made = seat(serving=True)
    assert kept(made, B, reduced(2)) == [B]
    assert kept(made, C, reduced(2)) == [C]
    assert kept(made, B, reduced(2)) == []


def test_one_that_serves_keeps_no_more_than_siblings_can_have_closed() -> None:
    """Payloads of rounds that nobody closes would fill its disk."""
    made = seat(serving=True)
    steps = [step for step in range(2, 2 + MAX_STEPS_AHEAD) if kept(made, B, reduced(step))]
    assert steps == list(range(2, 2 + SERVING_STEPS_AHEAD))
    observer = seat(serving=False)
    steps = [step for step in range(2, 2 + MAX_STEPS_AHEAD) if kept(observer, B, reduced(step))]
    assert steps == list(range(2, 2 + MAX_STEPS_AHEAD))


def test_what_is_said_of_later_steps_keeps_no_newcomer_from_serving() -> None:
    made = seat(serving=False)
    made.receive(B, plan(MAX_STEPS_AHEAD), 1.0)
    made.receive(PeerId("stranger"), commit(2), 1.0)
    made.state_loaded(1.0)
    assert made.serving


@pytest.mark.parametrize("serving", [True, False])
def test_one_message_from_far_ahead_does_not_evict_a_replica(serving: bool) -> None:
    """Heartbeats say how far the others are, of whom one may lie."""
    far, made = 2 + MAX_STEPS_AHEAD, seat(serving=serving)
    effects = [*made.receive(B, commit(far), 1.0), *made.receive(B, reduced(far), 1.0)]
    effects += made.update_view(view(serving, far, 1, 1), 2.0)
    assert not [e for e in effects if isinstance(e, Fault)]


def test_an_observer_that_most_have_left_far_behind_loads_nothing_first() -> None:
    far, made = 2 + MAX_STEPS_AHEAD, seat(serving=False)
    assert not [e for e in made.update_view(view(False, far, 1, 1), 1.0) if isinstance(e, Fault)]
    [fault] = [e for e in made.update_view(view(False, far, far, 1), 2.0) if isinstance(e, Fault)]
    assert fault.kind == "behind"
