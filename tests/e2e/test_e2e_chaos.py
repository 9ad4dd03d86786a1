"""Chaos in the small: a volunteer is killed in the middle of a step and nothing is lost by it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from client.lab.bench.efficiency import training_plan
from client.lab.chaos.catalogue import Fault
from client.lab.chaos.ground import Ground
from client.lab.chaos.ledger import read_ledger
from client.lab.chaos.measure import measure_faults, read_progress
from client.lab.chaos.run import Run
from client.lab.chaos.schedule import draw_schedule
from client.lab.reference import train_reference
from model_zoo.datasets.build import open_source

pytestmark = pytest.mark.long
SECONDS = 12.0
COMPARED = 150
"""Steps to compare at most: beyond, the order of sums may show (I3)."""


def test_a_kill_in_the_middle_of_a_step_loses_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        folder = Path(name)
        ground = Ground(folder / "founder", stages=2, replicas=2, seed=1, small=True)
        faults = [Fault("kill", "forward")]
        schedule = draw_schedule(faults, seconds=SECONDS, every_s=SECONDS, stages=2, seed=1)
        run = Run(ground, folder / "c", volunteers=4, flags=(), relayed=False, seed=1, say=print)
        seen = run.perform(schedule, SECONDS, jitter_s=0.0, elastic_s=0.0)

    per_step = ground.manifest.microbatches_per_step
    (fault,) = measure_faults(seen, per_step)
    assert fault.at_s is not None, "the failpoint was reached"
    assert fault.lost_steps == 0
    assert fault.rto_s is not None, "work went on"
    assert seen.crashes == []

    ledger = read_ledger(seen.notes, per_step, 2)
    assert (ledger.doubled, ledger.differing, ledger.undone) == (0, 0, ())
    assert seen.counters[-1][1]["doubled_microbatches"] == 0
    progress = read_progress(seen.notes)
    assert fault.step is not None
    assert ledger.closed > fault.step + 1, "the step of the kill and one more are closed"
    assert ledger.missing == ()

    steps = min(COMPARED, max(progress.losses) + 1)
    assert steps > fault.step
    expected = _reference(ground, steps)
    found = {step: loss for step, loss in progress.losses.items() if step < steps}
    assert len(found) >= steps - 1, "who died may have been the only one who knew a step's loss"
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-3)


def _reference(ground: Ground, steps: int) -> list[float]:
    """Return the losses of one process on the same manifest."""
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        losses.append(loss)
        if len(losses) == steps:
            raise StopIteration

    with pytest.raises(StopIteration):
        train_reference(training_plan(ground.manifest), open_source("stdlib"), on_step=note)
    return losses
