"""A version's hash comes later than the version: work goes on, and what needs the hash waits."""

import pytest

from protocol.ids import peer_id_from_key
from protocol.pipeline.effects import Committed, Fault, HashTask, Outcome
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import SwarmView
from protocol.wire.messages import Admit, JoinStage, LedgerReport
from tests.support.decrees import commit_of
from tests.support.effects import sent, tasks
from tests.support.seats import alone, applied, closes, seat_of, view_of

BEFORE, ME, SIBLING, NEW = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, SIZE = 3, 512


def made_version() -> tuple[Seat, list[SeatEffect]]:
    """A seat that has just made version STEP + 1, and the effects of that."""
    place = Place(ME, 1, 2, 4)
    seat = seat_of(place, STEP, size=SIZE)
    seat.update_view(view(STEP), 0.0)
    effects = applied(seat, Outcome(grad_norm=2.0), 1.0)
    return seat, [*effects, *seat.update_view(view(STEP + 1), 1.0)]


def view(step: int) -> SwarmView:
    return view_of(step, [BEFORE], [ME, SIBLING])


def test_it_is_asked_for_and_nothing_is_said_before() -> None:
    seat, effects = made_version()
    assert tasks(effects) == [HashTask(STEP + 1)]
    assert not [effect for effect in effects if isinstance(effect, Committed)]
    assert sent([*effects, *seat.tick(9.0)], LedgerReport) == []
    later = seat.computed(HashTask(STEP + 1), Outcome(hash="ab"), 10.0)
    [committed] = [effect for effect in later if isinstance(effect, Committed)]
    assert (committed.version, committed.hash, committed.grad_norm) == (STEP + 1, "ab", 2.0)
    reports = [message for _, message in sent(later, LedgerReport)]
    own = seat.leader.reports.get(ME)
    assert reports or own
    for report in [*reports, *([own] if own else [])]:
        assert report.state == bytes.fromhex("ab")


def test_the_loss_is_that_of_a_token() -> None:
    _, effects = closes(alone(ME, STEP))
    [committed] = [effect for effect in effects if isinstance(effect, Committed)]
    assert committed.loss == 0.5  # of 1.0 for the two tokens of a step


def test_newcomers_are_admitted_when_the_digest_can_be_said() -> None:
    seat, _ = made_version()
    seat.update_view(view_of(STEP + 1, [BEFORE], [ME]), 1.5)
    assert seat.leader.leading
    seat.elector.take(commit_of(1, STEP, 1, bytes(32), [ME]), checked=True)
    assert sent(seat.receive(NEW, JoinStage(1), 2.0), Admit) == []
    admits = sent(seat.computed(HashTask(STEP + 1), Outcome(hash="ab"), 3.0), Admit)
    assert {admit.state for _, admit in admits} == {bytes.fromhex("ab")}


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_who_catches_up_hashes_no_version_that_others_have_left(ahead: int) -> None:
    place = Place(ME, 1, 2, 4)
    seat = seat_of(place, STEP, size=SIZE, serving=False)
    seat.update_view(view(STEP + ahead), 0.0)
    effects = applied(seat, Outcome(), 2.0)
    assert tasks(effects) == ([] if ahead > 1 else [HashTask(STEP + 1)])
    assert seat.step == STEP + 1


def test_who_drains_stays_until_it_is_known() -> None:
    seat, _ = made_version()
    seat.drain(2.0)
    seat.update_view(view(STEP + 1), 2.0)
    assert not seat.drained
    seat.computed(HashTask(STEP + 1), Outcome(hash="ab"), 3.0)
    assert seat.drained


@pytest.mark.parametrize("error", ["internal", "oom"])
def test_a_hash_that_cannot_be_computed_is_a_fault(error: str) -> None:
    seat, _ = made_version()
    [fault] = [
        effect
        for effect in seat.computed(HashTask(STEP + 1), Outcome(error=error), 3.0)
        if isinstance(effect, Fault)
    ]
    assert fault.kind == "internal"
