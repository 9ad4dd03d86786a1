"""The whole matching with real processes: two stages at one volunteer, one is killed, one comes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.founding.options import ModelChoices, RunChoices
from client.lab.local_swarm import Member
from tests.support.e2e_local import HOST, found, killed_at_the_end
from tests.support.watched_swarm import Watch

pytestmark = pytest.mark.long
STAGES = 3
FLAGS = ("--listen-host", HOST, "--threads", "1")
STEPS = 100_000
"""More than are done meanwhile."""
WITHIN_S = 240.0
"""No measure of speed: only when to give up."""


@pytest.fixture
def watch() -> Iterator[Watch]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        folder = Path(name)
        run = RunChoices(
            name="e2e",
            stages=STAGES,
            steps=STEPS,
            sequences=2,
            microbatches=24,  # so that averaging a second stage is worth it
            measure=False,
            dual_homing=True,
        )
        found(folder, "v1", run, ModelChoices(layers=STAGES, width=32, heads=2, context=16))
        with killed_at_the_end(folder) as swarm:
            yield Watch(swarm, STAGES)


def _step(watch: Watch) -> int:
    return max((now.step for now in watch.last.values()), default=0)


def _dispensable(watch: Watch) -> Member | None:
    """Return a volunteer beside whom every stage has another one; never the founder."""
    covered = watch.replicas()
    alone = {held[0] for held in covered if len(held) == 1}
    return next((m for m in watch.alive()[1:] if m.name not in alone), None)


def _in_use(watch: Watch) -> bool:
    """Whether all have a home, somebody holds two stages beside each other, and one may go."""
    seconds = [p for p in watch.seats().values() if p.second is not None]
    beside = all(p.second in (p.home - 1, p.home + 1) for p in seconds)
    return watch.is_matched() and bool(seconds) and beside and _dispensable(watch) is not None


def test_a_kill_and_a_newcomer_leave_every_stage_served_and_nothing_lost(watch: Watch) -> None:
    for number in range(1, 5):
        watch.swarm.start(f"v{number}", (*FLAGS, "--compute-share", "50"))
        if number == 1:
            watch.until(lambda: bool(watch.last), "the first one answers", WITHIN_S)
    watch.until(lambda: _in_use(watch) and _step(watch) >= 3, "all train", WITHIN_S)

    before, victim = _step(watch), _dispensable(watch)
    assert victim is not None
    victim.kill()
    watch.swarm.start("v5", FLAGS)
    watch.until(lambda: "v5" in watch.seats() and watch.is_matched(), "in place again", WITHIN_S)
    watch.until(lambda: _step(watch) >= before + 5, "training goes on", WITHIN_S)

    assert not watch.empty, f"every stage has a replica once all are covered: {watch.empty}"
    assert all(now.counters.doubled_microbatches == 0 for now in watch.last.values())
    assert all(count <= 1 for count in watch.moves(300.0).values())
    losses = [now.loss for now in watch.last.values() if now.loss is not None]
    assert losses
    assert max(losses) < 6.0, "about that of guessing bytes, after so few steps"
