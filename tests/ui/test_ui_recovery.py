"""Faults are read off events and stage maps: noticed, replaced, copied, resumed."""

from __future__ import annotations

from client.control.updates import Update
from client.views.recovery import Incident, summary
from client.views.span import Box, plain
from client.views.timeline import recovery_head, recovery_rows, story, track
from tests.ui.examples import (
    ANNA,
    BORIS,
    CARLA,
    ME,
    NOW,
    down,
    event,
    recorded_from,
    replica,
    stage,
    step,
    update,
)
from tests.ui.playing import recorded

FULL = [stage(0, replica(ME), replica(ANNA)), stage(1, replica(BORIS))]
BARE = [stage(0, replica(ME), replica(ANNA)), stage(1)]
FETCHED = [stage(0, replica(ME), replica(ANNA)), stage(1, replica(CARLA, "fetching"))]
HEALED = [stage(0, replica(ME), replica(ANNA)), stage(1, replica(CARLA))]
BOX = Box(100)


def _only(*updates: Update) -> Incident:
    (found,) = recorded_from(*updates).incidents.newest_first
    return found


def test_a_stage_that_loses_its_only_replica_is_followed_until_work_goes_on() -> None:
    found = _only(
        update(1, step(1, 4), stages=FULL),
        update(2, down(2, BORIS), stages=BARE),
        update(5, stages=FETCHED),
        update(6, step(6, 5), stages=FETCHED),
        update(9, stages=HEALED),
        update(12, step(12, 6), stages=HEALED),
    )
    assert (found.peer, found.stages, found.bare) == (BORIS, (1,), {1})
    assert found.step == 5
    assert found.detected == NOW + 2
    assert found.rematched == NOW + 5
    assert found.transferred == NOW + 9
    assert found.resumed == NOW + 12, "a step that closes before somebody serves does not count"
    assert found.heirs == (CARLA,)
    assert found.settled


def test_a_stage_with_other_replicas_needs_no_new_match() -> None:
    left = [stage(0, replica(ME)), stage(1, replica(BORIS))]
    found = _only(
        update(1, stages=FULL),
        update(2, down(2, ANNA), stages=left),
        update(3, step(3, 5), stages=left),
    )
    assert found.bare == set()
    assert found.rematched is None
    assert found.resumed == NOW + 3
    assert found.cover({}) == "the others of its stage went on"
    assert "replaced not needed" in plain(recovery_rows(recorded_from(
        update(1, stages=FULL), update(2, down(2, ANNA), stages=left),
        update(3, step(3, 5), stages=left)), BOX)[0].lines)  # fmt: skip


def test_signs_of_one_fault_make_one_incident() -> None:
    rerouted = event(
        3, "no link to anna: its microbatches go to other replicas", "RecoveryEvent",
        data={"fault": "peer", "phase": "detected", "step": 5, "peer": ANNA}, level="warning",
    )  # fmt: skip
    gradient = event(
        4, "first gradient of a re-routed microbatch 0.40 s after detection", "RecoveryEvent",
        data={"fault": "peer", "phase": "recovered", "step": 5, "peer": None},
    )  # fmt: skip
    found = _only(update(1), update(2, down(2, ANNA)), update(5, rerouted, gradient))
    assert found.resumed == NOW + 4
    assert any("first gradient" in note for note in found.told({}))


def test_a_dead_worker_is_an_incident_of_our_own() -> None:
    data: dict[str, object] = {"fault": "worker", "phase": "detected", "step": None, "peer": None}
    died = event(2, "killed by signal 9; starting it again", "RecoveryEvent", data=data)
    found = _only(update(1), update(2, died), update(4, step(4, 5)))
    assert found.title({}) == "killed by signal 9; starting it again"
    assert found.stages == (0,)
    assert found.resumed == NOW + 4


def test_who_gave_its_stage_up_before_it_left_did_serve_one() -> None:
    """It hands over first; the stage map of a moment before it goes does not name it any more."""
    handed = [stage(0, replica(ME)), stage(1, replica(BORIS))]
    left = event(
        3, "anna is down: leaves", "PeerChanged",
        data={"peer": ANNA, "state": "down", "stages": [0]},
    )  # fmt: skip
    found = _only(update(1, stages=handed), update(2, stages=handed), update(3, left))
    assert found.stages == (0,)
    assert found.cover({}) == "the others of its stage went on"


def test_who_leaves_in_order_is_no_fault() -> None:
    record = recorded_from(update(1), update(2, down(2, ANNA, "leaves", in_order=True)))
    assert record.incidents.newest_first[0].in_order
    assert summary(record.incidents) == "no faults seen"


def test_the_words_of_a_reason_do_not_make_a_loss_a_departure_in_order() -> None:
    found = _only(update(1), update(2, down(2, ANNA, "its system left it 0 bytes; goodbye")))
    assert not found.in_order
    assert found.title({}).endswith("was lost: its system left it 0 bytes; goodbye")


def test_roll_backs_are_counted() -> None:
    found = _only(
        update(2, step(1, 4), down(2, BORIS), stages=BARE), update(6, step(6, 2), stages=HEALED)
    )
    assert found.step == 5
    assert found.steps_lost == 3


def test_open_faults_are_said_and_their_time_runs() -> None:
    record = recorded_from(
        update(1), update(2, down(2, BORIS), stages=BARE), update(32, stages=BARE)
    )
    assert summary(record.incidents) == "1 fault, 1 not repaired yet"
    text = plain(recovery_rows(record, BOX)[0].lines)
    assert "not resumed for 30 s" in text
    assert "replaced awaited" in text
    assert "1 fault" in plain(recovery_head(record, BOX))


def test_the_timeline_puts_marks_at_their_moments() -> None:
    found = Incident(1, event(0), 5, rematched=NOW + 5, transferred=NOW + 10, resumed=NOW + 20)
    drawn = plain([track(found, NOW + 100, 41)])
    assert (drawn[0], drawn[10], drawn[20], drawn[40]) == ("●", "◆", "▲", "✓")
    crowded = Incident(1, event(0), 5, rematched=NOW, transferred=NOW, resumed=NOW)
    assert plain([track(crowded, NOW, 20)]).count("━") == 0


def test_the_recorded_kill_is_found_whole() -> None:
    record = recorded_from(*recorded())
    (found,) = [one for one in record.incidents.newest_first if not one.in_order]
    assert found.bare
    assert found.rematched is not None
    assert found.transferred is not None
    assert found.resumed is not None
    assert found.detected < found.rematched <= found.transferred <= found.resumed
    assert found.steps_lost > 0
    for row in recovery_rows(record, Box(80)):
        assert all(len(plain([line])) <= 80 for line in row.lines)


def test_the_story_of_a_fault_is_what_was_said_while_it_lasted() -> None:
    record = recorded_from(
        update(1, event(1, "long before")),
        update(12, down(10, BORIS), event(11, "somebody is looked for"), stages=BARE),
    )
    record.apply(update(30, step(20, 6), event(29, "long after"), stages=HEALED))
    (found,) = record.incidents.newest_first
    text = plain(story(record, str(found.number), BOX))
    assert "is down" in text
    assert "somebody is looked for" in text
    assert "long before" not in text
    assert plain(story(record, None, BOX)) == "choose a fault above"
