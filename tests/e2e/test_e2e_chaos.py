"""Chaos in the small: a volunteer is killed in the middle of a step and nothing is lost by it."""

import tempfile
from pathlib import Path

import pytest

from client.cli.founding.options import AveragingName
from client.lab.chaos.catalogue import Fault
from client.lab.chaos.ground import chaos_ground
from client.lab.chaos.ledger import read_ledger
from client.lab.chaos.measure import measure_faults
from client.lab.chaos.run import Run
from client.lab.chaos.schedule import draw_schedule

pytestmark = pytest.mark.long
SECONDS = 12.0


@pytest.mark.parametrize(("averaging", "stages"), [("every-step", 2), ("local", 1)])
def test_a_kill_in_the_middle_of_a_step_loses_nothing(
    averaging: AveragingName, stages: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        folder = Path(name)
        ground = chaos_ground(
            folder / "founder",
            stages=stages,
            replicas=4 // stages,
            seed=1,
            averaging=averaging,
            small=True,
        )
        faults = [Fault("kill", "forward")]
        schedule = draw_schedule(faults, seconds=SECONDS, every_s=SECONDS, stages=stages, seed=1)
        names, logs = ("v1", "v2", "v3", "v4"), folder / "logs"
        run = Run(ground, folder / "c", schedule, logs=logs, names=names, say=print)
        seen = run.perform(SECONDS)

    per_step = ground.manifest.microbatches_per_step
    (fault,) = measure_faults(seen)
    assert fault.at_s is not None, "the failpoint was reached"
    assert fault.lost_steps == 0
    assert fault.rto_s is not None, "work went on"
    assert seen.crashes == []

    ledger = read_ledger(seen.notes, per_step, stages)
    assert (ledger.doubled, ledger.differing, ledger.undone) == (0, 0, ())
    assert fault.step is not None
    assert ledger.closed > fault.step + 1, "the step of the kill and one more are closed"
    assert ledger.missing == ()
