"""Why a seat waits: every "may I" says what is missing, in the words that people read."""

from client.lab.simulate.electing import UnsplitQuorum
from protocol.ids import short
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.leader import RoundLeader
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import LedgerReport
from tests.support.protocol_examples import peer
from tests.support.rounds import leader_of
from tests.support.seats import seat_of

ME, SIBLING, BEFORE = sorted(peer(n) for n in (1, 2, 3))
PER_STEP, STEP = 4, 3
IDS = range(12, 16)


def make_seat(*, serving: bool = True, steps: int = 100) -> Seat:
    return seat_of(Place(ME, 1, 2, PER_STEP), STEP, steps=steps, serving=serving)


def view(*ours: Replica) -> SwarmView:
    return SwarmView.of([[Replica(BEFORE, STEP, True)], list(ours)])


def report(ids: object, seq: int = 1) -> LedgerReport:
    done = to_bitmap(ids, STEP, PER_STEP)
    return LedgerReport(1, STEP, seq, done, bytes(len(done)), 0)


def leading(*ours: Replica) -> RoundLeader:
    quorum = UnsplitQuorum(ME, 1)
    quorum.designated = ME
    made = leader_of(Place(ME, 1, 2, PER_STEP), 64, STEP, quorum=quorum)
    made.update_view(view(*ours), True, 0.0)
    return made


HERE, THERE = Replica(ME, STEP, True), Replica(SIBLING, STEP, True)


def test_who_joins_says_what_it_waits_for() -> None:
    seat = make_seat(serving=False)
    catching_up = "stage 1: catching up at version 3:"
    assert seat.why() == f"{catching_up} the state is on its way"
    seat.update_view(view(Replica(ME, STEP, False), Replica(SIBLING, STEP + 1, True)), 0.0)
    seat.state_loaded(1.0)
    assert seat.why() == f"{catching_up} what was closed meanwhile is applied"


def test_nothing_is_leased_before_the_swarm_is_whole() -> None:
    seat = make_seat()
    seat.update_view(SwarmView.of([[], [HERE]]), 0.0)
    assert seat.why() == "stage 1: waiting for a volunteer in stage 0"
    seat.update_view(view(HERE), 0.0)
    assert seat.may_train()
    assert make_seat(steps=STEP).may_train().reason == "the run is complete"


def test_who_does_not_lead_waits_for_the_leaders_plan() -> None:
    seat = make_seat()
    seat.update_view(view(HERE, THERE), 0.0)
    led_by = seat.current_leader()
    assert led_by != ME
    assert seat.may_close().reason == f"waiting for the plan of {short(led_by)}"
    assert seat.why().endswith(f"led by {short(led_by)}")
    assert seat.may_close().reason in seat.why()


def test_who_leads_a_step_that_nobody_serves_says_so() -> None:
    made = leading(Replica(ME, STEP - 1, True))
    made.tick(1.0)
    assert made.may_plan.reason == "nobody serves it yet"


def test_a_straggler_is_named() -> None:
    made = leading(HERE, Replica(SIBLING, STEP - 1, True))
    made.report(ME, report(IDS), 0.0)
    assert made.may_plan.reason == f"{short(SIBLING)} still applies the step before"
