"""The sets of a step's microbatches say what their phases say, whatever happens."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.microbatches import READY, Microbatches, MicrobatchState, Phase

PER_STEP = 12
IDS = range(PER_STEP, 2 * PER_STEP)
"""Of step 1."""


def agrees(held: Microbatches, phases: dict[int, Phase]) -> None:
    done = {microbatch for microbatch, phase in phases.items() if phase is Phase.DONE}
    flying = phases.keys() - done
    assert {state.microbatch: state.phase for state in held} == phases
    assert {state.microbatch for state in held.of(1)} == phases.keys()
    step = held.at(1)
    assert (step.done, step.in_flight) == (done, flying)
    assert step.ledger == to_bitmap(done, 1, PER_STEP)
    for phase in Phase:
        assert step.count(phase) == sum(each is phase for each in phases.values())
    waiting = [(phase is Phase.QUEUED, m) for m, phase in phases.items() if phase in READY]
    assert step.first_waiting() == (min(waiting)[1] if waiting else None)


@given(st.lists(st.tuples(st.sampled_from(IDS), st.none() | st.sampled_from(Phase)), max_size=40))
def test_they_agree_after_every_change(changes: list[tuple[int, Phase | None]]) -> None:
    held, phases = Microbatches(PER_STEP), dict[int, Phase]()
    for microbatch, phase in changes:
        before, revision = phases.copy(), held.at(1).revision
        state = held.get(microbatch)
        if phase is None:
            assert held.pop(microbatch) is state
            phases.pop(microbatch, None)
        elif state is None:
            held.add(MicrobatchState(1, microbatch, phase))
            phases[microbatch] = phase
        else:
            held.move(state, phase)
            phases[microbatch] = phase
        agrees(held, phases)
        counts = [(m in seen, seen.get(m) is Phase.DONE) for seen in (before, phases) for m in IDS]
        if counts[:PER_STEP] != counts[PER_STEP:]:
            assert held.at(1).revision > revision, "what is counted or in flight has changed"


def test_a_step_that_is_forgotten_is_empty() -> None:
    held = Microbatches(PER_STEP)
    for microbatch, phase in zip(IDS, Phase, strict=False):
        held.add(MicrobatchState(1, microbatch, phase))
    assert held.steps() == [1]
    held.forget(1)
    agrees(held, {})
    assert (held.steps(), len(held)) == ([], 0)
