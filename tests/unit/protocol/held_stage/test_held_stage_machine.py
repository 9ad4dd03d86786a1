"""A held stage: every state with every event, its deadlines, and what it says that it waits for."""

from itertools import product

import pytest

from protocol.errors import LocalProtocolError
from protocol.held_stage.machine import DRAIN_S, TABLE, Do, Event, HeldStage, Phase, State
from protocol.pace import SAVE_S


def brought_to(state: State) -> HeldStage:
    """A held stage in a state, by the inputs that lead there."""
    held = HeldStage(3, 0.0)
    if state is State.OBSERVING:
        held.opened(2.0, serving=False)
    if state in (State.SERVING, State.DRAINING, State.SAVING):
        held.opened(2.0, serving=True)
    if state in (State.DRAINING, State.SAVING):
        held.drain(3.0)
    if state is State.SAVING:
        held.leaves = True
        held.stand_still(4.0)
    if state is State.GONE:
        held.drain(3.0)
    assert held.state is state
    return held


@pytest.mark.parametrize(("state", "event"), product(State, Event))
def test_a_transition_is_that_of_the_table_or_refused(state: State, event: Event) -> None:
    held, (after, effects) = brought_to(state), TABLE[state].get(event, (None, ()))
    since = held.since
    if after is None:
        with pytest.raises(LocalProtocolError, match=f"{event.value} .* while it is {state.value}"):
            held.take(event, 9.0)
        assert (held.state, held.since) == (state, since)
        return
    assert held.take(event, 9.0) == effects
    assert held.state is after
    assert held.since == (since if after is state else 9.0)


@pytest.mark.parametrize("state", list(State))
def test_a_seat_is_closed_whenever_the_stage_is_lost_or_given_up(state: State) -> None:
    """Between a state with a seat and one without, something closes it."""
    seated = {State.OBSERVING, State.SERVING, State.DRAINING, State.SAVING}
    closing = {Do.RETAKE, Do.RELEASE, Do.REPORT}
    for after, effects in TABLE[state].values():
        if state in seated and after not in seated:
            assert len(closing & set(effects)) == 1
        if after in seated:
            assert not closing & set(effects)


def test_what_the_driver_does_on_the_way_through() -> None:
    held = HeldStage(0, 0.0)
    assert held.assign(0.0) == ()
    assert held.opened(1.0, serving=False) == ()
    assert held.take(Event.SERVE, 2.0) == (Do.ANNOUNCE,)
    assert held.take(Event.SERVE, 2.5) == (), "it is announced once"
    assert held.drain(3.0) == (Do.DRAIN,)
    assert held.drain(3.5) == (), "it drains already"
    assert held.assign(4.0) == (Do.KEEP, Do.ANNOUNCE)
    assert held.take(Event.LOSE, 5.0) == (Do.RETAKE,)
    assert held.drain(6.0) == (Do.RELEASE,), "there is nothing to drain"
    assert held.assign(7.0) == ()
    assert held.again
    assert held.drain(8.0) == ()
    assert not held.again


def test_it_drains_until_nobody_needs_the_seat() -> None:
    held = brought_to(State.DRAINING)
    assert held.look(4.0, drained=False) == ()
    assert held.next_deadline() == 3.0 + DRAIN_S
    assert held.look(10.0, drained=True) == (Do.RELEASE,)
    assert held.next_deadline() is None


def test_draining_and_saving_are_bounded() -> None:
    held = brought_to(State.DRAINING)
    held.leaves = True
    assert held.look(3.0 + DRAIN_S, drained=False) == (Do.SAVE,)
    assert held.state is State.SAVING
    assert held.next_deadline() == 3.0 + DRAIN_S + SAVE_S
    assert held.look(3.0 + DRAIN_S + SAVE_S - 0.1, drained=True) == ()
    assert held.look(3.0 + DRAIN_S + SAVE_S, drained=True) == (Do.RELEASE,)
    assert held.state is State.GONE


def test_what_cannot_be_saved_is_kept_until_it_is_let_go() -> None:
    held = brought_to(State.SAVING)
    held.cannot_save("No space left on device")
    assert held.keeps
    assert held.next_deadline() is None
    assert held.look(4.0 + 9 * SAVE_S, drained=True) == ()
    assert held.waits_for == "saving stage 3: No space left on device"
    held.let_go()
    assert not held.keeps
    assert held.look(4.0 + 9 * SAVE_S, drained=True) == (Do.RELEASE,)


def test_a_stage_that_stays_and_drains_later_has_as_long_again() -> None:
    held = brought_to(State.DRAINING)
    held.assign(20.0)
    held.drain(30.0)
    assert held.next_deadline() == 30.0 + DRAIN_S


def test_where_no_step_closes_none_is_waited_for_by_who_leaves_the_swarm() -> None:
    held = brought_to(State.DRAINING)
    assert held.stand_still(3.0) == (), "others have its state: it moves, it does not leave"
    held.leaves = True
    assert held.stand_still(3.0) == (Do.SAVE,)
    assert held.stand_still(3.0) == ()


def test_between_two_lineages_it_is_still_ours() -> None:
    held = brought_to(State.SERVING)
    assert held.begin_anew(5.0) == (Do.RETAKE,)
    assert held.returning
    held.begin_anew(6.0)
    assert held.returning, "another lineage before the seat is open again"
    held.opened(7.0, serving=False)
    assert not held.returning
    held.take(Event.LOSE, 8.0)
    assert not held.returning, "a seat that is lost alone is no new lineage"
    newcomer = brought_to(State.ACQUIRING)
    newcomer.begin_anew(5.0)
    assert not newcomer.returning, "it had no seat"
    draining = brought_to(State.DRAINING)
    draining.begin_anew(5.0)
    assert not draining.returning, "it does not come back"


def test_every_waiting_state_says_what_it_waits_for_and_since_when() -> None:
    said = {state: brought_to(state).waits_for for state in State}
    assert [state for state, words in said.items() if not words] == [State.SERVING]
    assert all("stage 3" in words for state, words in said.items() if words)
    held = brought_to(State.ACQUIRING)
    held.waits(Phase.OPENING, 2.0)
    assert (held.waits_for, held.since) == ("opening stage 3", 2.0)
    held.waits(Phase.HISTORY, 4.0, "waiting up to 12 s for more")
    held.waits(Phase.HISTORY, 5.0, "waiting up to 11 s for more")
    assert (held.waits_for, held.since) == ("waiting up to 11 s for more", 4.0)
    held.opened(6.0, serving=False)
    held.waits(Phase.DOWNLOAD, 7.0)
    assert (held.waits_for, held.since) == ("downloading the state of stage 3", 7.0)
    saving = brought_to(State.SAVING)
    assert saving.waits_for == "saving stage 3: writing a last checkpoint"
    saving.copies()
    assert saving.waits_for == "saving stage 3: waiting until a neighbour keeps a copy"
