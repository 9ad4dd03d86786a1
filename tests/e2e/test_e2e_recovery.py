"""Volunteers as processes: the rest of a run after many of them are killed together."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from client.cli.founding.options import RunChoices
from client.lab.local_swarm import LocalSwarm, Member
from client.lab.reference import train_reference
from client.store.checkpoints import CheckpointFolder
from client.store.persisted import Persisted
from client.store.records import EVIDENCE
from protocol.invite import SwarmFile
from protocol.recovery.evidence import Kept
from tests.support.e2e_local import HOST, found, told_losses, wait_for
from tests.support.texts import corpus_of

pytestmark = pytest.mark.slow
FLAGS = ("--listen-host", HOST, "--threads", "1")
EVERY = 50
"""Steps between two checkpoints: copies have to keep up, and 5 steps take a tenth of a second."""
MORE_STEPS = 60
"""Steps after a restart that are compared with the reference."""


def _found(folder: Path) -> SwarmFile:
    run = RunChoices(
        optimizer="adamw",
        name="recovery",
        stages=2,
        steps=50_000,
        sequences=2,
        microbatches=4,
        checkpoint_every=EVERY,
        measure=False,
        boundary_codec="fp32",
        averaging_codec="fp32",
        dual_homing=False,
    )
    return found(folder, "volunteer-1", run)


def _start_both(processes: LocalSwarm) -> list[Member]:
    first = processes.start("volunteer-1", FLAGS)
    processes.wait("an answer", first.snapshot, 60.0)
    return [first, processes.start("volunteer-2", FLAGS)]


def _start_alone_first(processes: LocalSwarm, names: tuple[str, str]) -> list[Member]:
    """Start one while nobody is up, so that it has to go on calling the other."""
    flags = (*FLAGS, "--dial-timeout-s", "2")
    members = []
    for name in names:
        members.append(processes.start(name, flags, log_name=f"{name}-again"))
        processes.wait("an answer", members[-1].snapshot, 60.0)
    return members


def _tells(told: dict[int, list[float]], members: list[Member], count: int) -> bool | None:
    """Add what is new; whether so many steps after the first one have been told by now."""
    for step, loss in told_losses(members):
        told.setdefault(step, []).append(loss)
    return True if told and max(told) >= min(told) + count else None


def _folders(members: list[Member], swarm: SwarmFile) -> list[Path]:
    return [m.home / "data" / "checkpoints" / swarm.swarm for m in members]


def _saved(members: list[Member], swarm: SwarmFile) -> int:
    """The newest version from which every member could go on alone: it has a checkpoint of each
    stage, its own and the copy that it keeps for the other."""
    alone = (_newest_complete(CheckpointFolder(folder)) for folder in _folders(members, swarm))
    return min(alone)


def _newest_complete(found: CheckpointFolder) -> int:
    """The newest version of which both stages are there; 0: none."""
    first, second = ({e.version for e in found.entries() if e.stage == s} for s in (0, 1))
    return max(first & second, default=0)


def _copied(members: list[Member], swarm: SwarmFile) -> bool | None:
    """Whether it no longer matters which of them comes back first, nor how much later the other.

    Each has written down that the other is an elector. Both together may still have a version newer
    by one interval: a member that is back waits for it only 15 s.
    """
    seen = [Persisted(folder / EVIDENCE, Kept).peek() for folder in _folders(members, swarm)]
    known = all(
        one is not None and any(len(e.electors) == len(members) for e in one.electors)
        for one in seen
    )
    return True if known and _saved(members, swarm) >= EVERY else None


def _assert_as_one_process(swarm: SwarmFile, told: dict[int, list[float]]) -> None:
    plan = replace(swarm.manifest, steps=max(told) + 1)
    expected = train_reference(plan, corpus_of("stdlib"), threads=1).losses
    for step, losses in told.items():
        tolerance = 1e-5 if step < 20 else 1e-3  # I3
        assert losses == pytest.approx([expected[step]] * len(losses), rel=tolerance)


def test_a_swarm_that_was_shut_down_goes_on_where_it_was(
    folder: Path, processes: LocalSwarm
) -> None:
    swarm = _found(folder)
    members = _start_both(processes)
    wait_for(lambda: _copied(members, swarm), "copies of both stages", members)
    for member in members:  # as by a power cut: nothing is handed over, nothing is saved
        member.kill()
    again = _start_alone_first(processes, ("volunteer-2", "volunteer-1"))
    told: dict[int, list[float]] = {}
    wait_for(lambda: _tells(told, again, MORE_STEPS), f"{MORE_STEPS} steps more", again)
    begin = min(told)
    assert begin >= EVERY, "it begins at a checkpoint, not at the beginning"
    assert begin % EVERY == 0
    assert set(range(begin, begin + MORE_STEPS)) <= set(told)
    _assert_as_one_process(
        swarm, {s: losses for s, losses in told.items() if s < begin + MORE_STEPS}
    )
