"""A held stage: every state with every event, its deadlines, and what it says that it waits for."""

from itertools import product

import pytest

from protocol.held_stage.machine import DRAIN_S, Do, HeldStage, Phase, State
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


INPUTS = ("assign", "serves", "lose", "fail", "drain", "release")
STATES = dict(zip("AOSDVG", State, strict=True))
LEADS_TO = {
    "A": "ASAGGG",
    "O": "OSAGGG",
    "S": "SSAGDG",
    "D": "SDGGDG",
    "V": "VVGGVG",
    "G": "GGGGGG",
}
"""By state: where each input leads."""


@pytest.mark.parametrize(("letter", "number"), product(STATES, range(len(INPUTS))))
def test_an_input_leads_to_its_state_and_a_seat_that_is_left_is_closed(
    letter: str, number: int
) -> None:
    held = brought_to(STATES[letter])
    since, effects = held.since, getattr(held, INPUTS[number])(9.0)
    after = LEADS_TO[letter][number]
    assert held.state is STATES[after]
    assert held.since == (since if after == letter else 9.0)
    if letter in "OSDV":
        assert len({Do.RETAKE, Do.RELEASE, Do.REPORT} & set(effects)) == (after in "AG")


def test_what_the_driver_does_on_the_way_through() -> None:
    held = HeldStage(0, 0.0)
    assert held.assign(0.0) == ()
    assert held.opened(1.0, serving=False) == ()
    assert held.serves(2.0) == (Do.ANNOUNCE,)
    assert held.serves(2.5) == (), "it is announced once"
    assert held.drain(3.0) == (Do.DRAIN,)
    assert held.drain(3.5) == (), "it drains already"
    assert held.assign(4.0) == (Do.KEEP, Do.ANNOUNCE)
    assert held.lose(5.0) == (Do.RETAKE,)
    assert held.drain(6.0) == (Do.RELEASE,), "there is nothing to drain"
    assert held.assign(7.0) == ()
    assert held.again
    assert held.drain(8.0) == ()
    assert not held.again


def test_it_drains_until_nobody_needs_the_seat() -> None:
    held = brought_to(State.DRAINING)
    assert held.look(4.0, drained=False) == ()
    assert held.look(3.0 + DRAIN_S - 0.1, drained=False) == ()
    assert held.look(10.0, drained=True) == (Do.RELEASE,)


def test_draining_and_saving_are_bounded() -> None:
    held = brought_to(State.DRAINING)
    held.leaves = True
    assert held.look(3.0 + DRAIN_S, drained=False) == (Do.SAVE,)
    assert held.state is State.SAVING
    assert held.look(3.0 + DRAIN_S + SAVE_S - 0.1, drained=True) == ()
    assert held.look(3.0 + DRAIN_S + SAVE_S, drained=True) == (Do.RELEASE,)
    assert held.state is State.GONE


def test_what_cannot_be_saved_is_kept_until_it_is_let_go() -> None:
    held = brought_to(State.SAVING)
    held.cannot_save("No space left on device")
    assert held.keeps
    assert held.look(4.0 + 9 * SAVE_S, drained=True) == ()
    assert held.waits_for == "saving stage 3: No space left on device"
    held.let_go()
    assert not held.keeps
    assert held.look(4.0 + 9 * SAVE_S, drained=True) == (Do.RELEASE,)


def test_a_stage_that_stays_and_drains_later_has_as_long_again() -> None:
    held = brought_to(State.DRAINING)
    held.assign(20.0)
    held.drain(30.0)
    assert held.look(30.0 + DRAIN_S - 0.1, drained=False) == ()
    assert held.look(30.0 + DRAIN_S, drained=False) == (Do.RELEASE,)


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
    held.lose(8.0)
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
