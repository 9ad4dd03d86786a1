"""What an umpire finds of a contribution: lies, agreement, and what only rounding may explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from client.compute.aggregation.kept import are_unlike, norms
from client.compute.replies import ContributionWeighed
from client.compute.requests import (
    KeepVersion,
    Load,
    Recompute,
    Save,
    WeighContribution,
)
from protocol.audit.record import Grade, judge
from tests.support.audited_stage import AUDITOR, LIAR, AuditedStage, Lie
from tests.support.other_process import AuditingWorker


def weighed(
    swarm: AuditedStage, folder: Any, lie: Callable[[torch.Tensor], None], before: float | None
) -> ContributionWeighed:
    """Have a worker beside the stage open the version, and judge the next step's contribution.

    Args:
        before: norm of the sum of the step before, as the umpire is told; None: as it was.
    """
    path = folder / "case.safetensors"
    accuser = swarm.members[AUDITOR]
    accuser.call(Save(version=swarm.step, path=str(path)))
    umpire = AuditingWorker()
    swarm.open(umpire, swarm.audited)
    umpire.call(Load(path=str(path), version=swarm.step))
    umpire.call(KeepVersion(step=swarm.step, umpire=True))
    told = accuser.call(KeepVersion(step=swarm.step))[0].before if before is None else before
    swarm.compute(Lie(spoils=lie))
    work = {m: swarm.work[m] for m in list(swarm.work)[: swarm.shares[LIAR]]}
    for microbatch, sent in work.items():
        given = [payload for payload in sent.given if payload is not sent.tokens]
        request = Recompute(step=swarm.step, microbatch=microbatch, tokens=sent.tokens)
        umpire.call(request, *given, *sent.claimed)
    parts = swarm.contribute()[LIAR]
    share = len(work) / sum(swarm.shares)
    request = WeighContribution(step=swarm.step, bounds=swarm.bounds, before=told, share=share)
    reply: ContributionWeighed = umpire.call(request, *parts)[0]
    return reply


def grades(reply: ContributionWeighed) -> tuple[Grade, Grade]:
    """Return what it is at least, and what it is by what the umpire was told."""
    at_least = judge(0.0, reply.deviation, reply.along, coarse=True)
    return at_least, judge(0.0, reply.told_deviation, reply.told_along, coarse=True)


def honest(_gradient: torch.Tensor) -> None:
    pass


@pytest.mark.parametrize("averaging", ["fp32", "s8"])
@pytest.mark.parametrize("factor", [-10.0, -1.0, 0.0])
def test_a_lie_is_one_for_an_umpire(tmp_path, averaging, factor):
    swarm = AuditedStage(1, averaging=averaging)
    swarm.train(3)
    reply = weighed(swarm, tmp_path, lambda gradient: gradient.mul_(factor), None)
    assert grades(reply) == (Grade.LIES, Grade.LIES)


@pytest.mark.parametrize("averaging", ["fp32", "s8"])
def test_an_honest_contribution_agrees_by_its_accusers_own_figure(tmp_path, averaging):
    swarm = AuditedStage(1, averaging=averaging)
    swarm.train(3)
    assert grades(weighed(swarm, tmp_path, honest, None)) == (Grade.AGREES, Grade.AGREES)


def test_who_hides_the_sum_before_cannot_make_a_liar_of_an_honest_one(tmp_path):
    swarm = AuditedStage(1, averaging="s8")
    swarm.train(3)
    at_least, _ = grades(weighed(swarm, tmp_path, honest, 0.0))
    assert at_least is Grade.AGREES


def test_nor_who_names_a_huge_one_let_an_umpire_charge_anybody_but_itself(tmp_path):
    swarm = AuditedStage(1, averaging="s8")
    swarm.train(3)
    reply = weighed(swarm, tmp_path, lambda gradient: gradient.mul_(-10.0), 1e30)
    assert grades(reply) == (Grade.AGREES, Grade.AGREES)


@pytest.mark.parametrize(
    ("change", "unlike"),
    [
        (lambda x: x, False),
        (lambda x: 3 * x, False),
        (lambda x: 10 * x, True),
        (lambda x: x / 10, True),
        (lambda x: -x, True),
        (lambda x: 0 * x, True),
        (lambda x: -10 * x, True),
    ],
)
def test_of_two_a_contribution_unlike_the_others_is_seen(change, unlike):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 4096, generator=generator)
    gradient = torch.randn(4096, generator=generator)
    sums = [gradient + noise[0], change(gradient + noise[1])]
    assert are_unlike(sums, norms(sums), [4, 4]) is unlike


def test_noise_alone_points_nowhere():
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        sums = list(torch.randn(2, 4096, generator=generator))
        assert not are_unlike(sums, norms(sums), [4, 4])


def test_pairs_whose_noise_is_not_even_are_alike():
    """As in small models: most of the noise lies along one direction."""
    generator = torch.Generator().manual_seed(3)
    common, direction = torch.randn(2, 4096, generator=generator)
    for times in (0.3, 0.6, 0.9):
        sums = [common + direction * times, 0.5 * common - direction * times]
        assert not are_unlike(sums, norms(sums), [4, 4])


@pytest.mark.parametrize("microbatches", [[1, 15], [15, 1], [1, 1]])
def test_a_single_microbatch_is_not_compared(microbatches):
    sums = [torch.ones(4096), -100 * torch.ones(4096)]
    assert not are_unlike(sums, norms(sums), microbatches)


def test_a_share_of_one_microbatch_is_not_unlike_for_its_noise():
    generator = torch.Generator().manual_seed(2)
    one, many = torch.randn(2, 4096, generator=generator)
    sums = [one, 15**0.5 * many]
    assert not are_unlike(sums, norms(sums), [1, 15])
