"""A seat that leaves, and whose messages are whose when one volunteer holds two stages."""

from protocol.effects import Send
from protocol.pipeline.effects import ForwardTask, Keep, Outcome
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Forward, Have, Lease, LeaseRequest, Receipt
from tests.support.effects import sent
from tests.support.protocol_examples import peer
from tests.support.seats import seat_of, view_of

ME, SIBLING, BEFORE, AFTER = peer(1), peer(2), peer(3), peer(4)
PER_STEP = 4


def make_seat(stage: int = 1, *, alone: bool = False, step: int = 3) -> Seat:
    """A replica in the middle of three stages, everybody at the same version."""
    seat = seat_of(Place(ME, stage, 3, PER_STEP), step)
    stages = [[BEFORE], [AFTER]]
    stages.insert(stage, [ME] if alone else [ME, SIBLING])
    seat.update_view(view_of(step, *stages), 0.0)
    return seat


def offer(seat: Seat, microbatch: int) -> str:
    """Send it a microbatch; return its verdict, or that it is taken."""
    step = microbatch // PER_STEP
    message = Forward(seat.place.stage, step, microbatch, again=False)
    effects = seat.receive(BEFORE, message, 0.0)
    taken = any(isinstance(effect, Keep) for effect in effects)
    return "taken" if taken else verdicts(effects)[microbatch]


def verdicts(effects: list[SeatEffect]) -> dict[int, str]:
    return {receipt.microbatch: receipt.verdict for _, receipt in sent(effects, Receipt)}


def test_nothing_new_is_taken_and_what_waits_is_given_back() -> None:
    seat = make_seat()
    assert [offer(seat, 12 + m) for m in range(4)] == ["taken"] * 4
    assert offer(seat, 16) == "taken"  # of the next step
    given_back = verdicts(seat.drain(0.0))
    assert given_back == dict.fromkeys((14, 15, 16), "declined"), "two are with the worker"
    assert offer(seat, 14) == "busy"
    assert offer(seat, 17) == "busy"
    assert offer(seat, 12) == "known"
    assert not seat.drained


def test_the_only_replica_takes_the_running_step_whole() -> None:
    """A replica that repeats its work elsewhere would need a replica of this stage."""
    seat = make_seat(alone=True)
    assert offer(seat, 12) == "taken"
    assert offer(seat, 17) == "taken", "it waits"
    assert verdicts(seat.drain(0.0)) == {17: "declined"}
    assert offer(seat, 13) == "taken"
    assert offer(seat, 16) == "busy"


def test_a_leaving_seat_asks_for_no_work() -> None:
    def asks(effects: list[SeatEffect]) -> bool:
        return any(isinstance(e, Send) and isinstance(e.message, LeaseRequest) for e in effects)

    def at_stage_0(step: int) -> Seat:
        return make_seat(stage=0, step=step)

    def renewed(seat: Seat) -> list[SeatEffect]:
        seat.leasing.on_lease(SIBLING, Lease(seat.step, [seat.step * PER_STEP], again=False), 1.0)
        return seat.update_view(seat._view, 1.0)

    seat = next(s for s in map(at_stage_0, range(9)) if s.current_leader() == SIBLING)
    assert asks(renewed(seat))
    seat.drain(1.0)
    assert not asks(renewed(seat))
    seat.stay()
    assert asks(renewed(seat))


def test_messages_to_our_other_seats_leave_this_one() -> None:
    """We hold all three stages: they ask and answer each other by messages."""
    seat = make_seat()
    seat.update_view(view_of(3, *[[ME]] * 3), 0.0)
    effects = seat.receive(ME, Forward(1, 3, 12, again=True), 0.0)
    assert seat.pipeline.in_flight() == {12}
    effects = seat.computed(ForwardTask(3, 12), Outcome(), 0.0)
    assert [e.message for e in effects if isinstance(e, Send)] == [Have(2, 3, 12)]


def test_replicas_that_leave_together_take_the_running_step_whole() -> None:
    seat = make_seat()
    seat.drain(0.0)
    assert offer(seat, 12) == "busy"
    own = [Replica(peer, 3, True, leaving=True) for peer in (ME, SIBLING)]
    stages = [[Replica(BEFORE, 3, True)], own, [Replica(AFTER, 3, True)]]
    seat.update_view(SwarmView.of(stages), 0.0)
    assert offer(seat, 12) == "taken"
    assert offer(seat, 16) == "busy", "none of the next step"
