"""Umpires in swarms of real engines: of two replicas the one that lies is expelled by the stage
beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from client.cli.terminal.status_text import status_report
from client.compute.requests import CompareContribution, Contribute
from client.errors import UserError
from client.node.status import take_snapshot
from client.train.machine.memory_budget import MemoryBudget
from client.train.workers.opening import Fit
from protocol.ids import PeerId
from tests.support.cases import usual
from tests.support.local_worker import LocalWorker
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

Executed = Callable[[Any, Any, Any], None]


def peer(volunteer: Volunteer) -> PeerId:
    return volunteer.engine.signer.peer


def expelled(volunteer: Volunteer) -> set[PeerId]:
    return set(volunteer.engine.expulsions.voted)


async def staffed(swarm: TestSwarm, *stages: int) -> list[Volunteer]:
    volunteers = [await swarm.add(stage) for stage in stages]
    await swarm.until(
        lambda: all(v.serves(stage) for v, stage in zip(volunteers, stages, strict=True))
    )
    swarm.start()
    return volunteers


def contributes(worker: LocalWorker, factor: float) -> None:
    """Contribute so many times the gradient from now on."""
    executor, spoilt = worker._executor, set[int]()
    execute: Executed = executor.execute

    def lying(request: Any, payloads: Any, answer: Any) -> None:
        if isinstance(request, Contribute) and request.step not in spoilt:
            spoilt.add(request.step)
            assert executor._opened is not None
            executor._opened.replica.gradient_sum.mul_(factor)
        execute(request, payloads, answer)

    executor.execute = lying  # type: ignore[method-assign]


def finds_fault(worker: LocalWorker) -> None:
    """Find a lie in every contribution that is audited from now on."""
    executor = worker._executor
    execute: Executed = executor.execute

    def lying(request: Any, payloads: Any, answer: Any) -> None:
        def worse(reply: Any, made: Any) -> None:
            answer(msgspec.structs.replace(reply, deviation=11.0, along=-11.0), made)

        execute(request, payloads, worse if isinstance(request, CompareContribution) else answer)

    executor.execute = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("stages", "liar", "changes"),
    usual(
        2,
        [
            ((0, 0, 1, 1), 1, {}),  # the umpires read the first stage's samples themselves
            ((0, 1, 1), 2, {}),  # one umpire
            ((0, 0, 1, 1), 3, {}),
            ((0, 0, 1, 1), 3, {"averaging_codec": "fp32"}),
            ((0, 0, 1, 1), 3, {"delayed_update": True}),
            ((0, 0, 1, 1), 3, {"aggregation": "centred-clipping"}),
        ],
    ),
)
async def test_of_two_replicas_the_liar_is_expelled_and_the_run_goes_on(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    stages: tuple[int, ...],
    liar: int,
    changes: dict[str, Any],
) -> None:
    async with open_swarm(tmp_path, audit=50, steps=60, **changes) as swarm:
        volunteers = await staffed(swarm, *stages)
        await swarm.until(lambda: volunteers[0].step(0) >= 3)
        out, rest = volunteers[liar], [v for v in volunteers if v is not volunteers[liar]]
        for worker in out.workers:
            contributes(worker, -10.0)
        await swarm.until(lambda: all(expelled(v) == {peer(out)} for v in rest))
        step = rest[0].step(0)
        assert step < 50
        await swarm.until(lambda: rest[0].step(0) >= step + 3)
        now = take_snapshot(rest[-1].engine, rest[-1].held_stages, 0.0, stopping=False)
        [told] = now.expelled
        assert f"found by {len(stages) - 1} members" in told.reason
        budgets = [volunteer.held_stages._context.memory_budget for volunteer in rest]
        await swarm.until(lambda: not any(budget._beside for budget in budgets))


async def test_who_accuses_its_sibling_falsely_is_expelled_itself(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path, audit=50, steps=60) as swarm:
        first, second, accuser, honest = await staffed(swarm, 0, 0, 1, 1)
        await swarm.until(lambda: first.step(0) >= 3)
        for worker in accuser.workers:
            finds_fault(worker)
        rest = first, second, honest
        await swarm.until(lambda: all(expelled(v) == {peer(accuser)} for v in rest))
        reason = first.engine.expulsions.voted[peer(accuser)]
        assert "accused a member falsely" in str(reason)


async def test_without_memory_umpires_have_no_opinion_and_both_stay(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: MemoryBudget, stage: int) -> Fit:
        raise UserError(f"stage {stage} needs more memory than there is", "")

    monkeypatch.setattr(MemoryBudget, "take_beside", full)
    async with open_swarm(tmp_path, audit=100, steps=20) as swarm:
        first, second, honest, liar = await staffed(swarm, 0, 0, 1, 1)
        await swarm.until(lambda: first.step(0) >= 3)
        for worker in liar.workers:
            contributes(worker, -1.0)
        await swarm.until_done()
        assert not any(map(expelled, (first, second, honest, liar)))
        now = take_snapshot(honest.engine, honest.held_stages, 0.0, stopping=False)
        assert "which is no majority" in status_report(now)
        charged = next(one for one in now.trust if one.peer == peer(liar))
        assert charged.standing == "charged"
        assert "which is no majority" in charged.words
        said = [e.event.words for e in first.engine.event_sink.log.since(0).entries]
        assert any("no opinion on" in words and "memory" in words for words in said)
