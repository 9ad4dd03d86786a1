"""Aggregation rules: the contract of every rule, and a worker with one that is no sum."""

import sys
from types import ModuleType

import pytest
import torch

from client.compute.aggregation.rule import Aggregation, new_aggregation
from client.compute.memory import Holding
from model_zoo.specs.aggregation import RULES, AggregationRule
from model_zoo.specs.state import StateSpec
from protocol.pipeline.effects import ApplyTask, ContributeTask
from tests.support.compute_rounds import accumulate, bounds_of, contribute_and_reduce, reduce_task
from tests.support.compute_stages import (
    MODELS,
    SEQUENCES,
    TOKENS,
    opened,
)

SIZE = 1000


@pytest.mark.parametrize("name", RULES)
def test_a_single_contribution_is_the_result(name) -> None:
    contribution = torch.randn(SIZE)
    rule = new_aggregation(name, SIZE)
    rule.add(contribution.clone(), 3)
    assert torch.equal(rule.result(), contribution)


@pytest.mark.parametrize("name", RULES)
def test_contributions_are_overwritten_and_the_result_depends_on_nothing_else(name) -> None:
    contributions, scratch, results = torch.randn(5, SIZE), torch.empty(SIZE), []
    for _ in range(2):
        rule = new_aggregation(name, SIZE)
        for number, contribution in enumerate(contributions):
            rule.add(scratch.copy_(contribution), number)
        scratch.fill_(torch.nan)
        results.append(rule.result())
    assert torch.equal(*results)
    assert torch.isfinite(results[0]).all()


@pytest.mark.parametrize("name", [name for name in RULES if not RULES[name].robust])
def test_a_linear_rule_does_not_ask_who_computed_what(name) -> None:
    parts = torch.randn(4, SIZE, dtype=torch.float64).float()
    alone, split = new_aggregation(name, SIZE), new_aggregation(name, SIZE)
    alone.add(parts.sum(0), 4)
    for part in parts:
        split.add(part.clone(), 1)
    torch.testing.assert_close(alone.result(), split.result(), rtol=1e-5, atol=1e-5)


class MostMicrobatches(Aggregation):
    """No sum: the contribution of whoever computed most, for all."""

    def __init__(self, size: int, usual: float) -> None:
        self.taken: list[tuple[int, torch.Tensor]] = []

    def add(self, contribution: torch.Tensor, microbatches: int) -> None:
        self.taken.append((microbatches, contribution.clone()))

    def result(self) -> torch.Tensor:
        most, contribution = max(self.taken, key=lambda taken: taken[0])
        return contribution * (sum(count for count, _ in self.taken) / most)


@pytest.fixture
def other(monkeypatch):
    """A second rule, added as any other is."""
    module = ModuleType("client.compute.aggregation.most")
    module.AGGREGATION = MostMicrobatches
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rule = AggregationRule(robust_from=3)
    monkeypatch.setitem(RULES, "most", rule)
    return rule


def test_what_a_rule_makes_of_contributions_is_applied(other) -> None:
    workers = [opened(0, [4], aggregation="most") for _ in range(3)]
    for number, worker in enumerate(workers):
        accumulate([worker], 0, per_worker=1 + number)
    expected = workers[2].replica.gradient_sum.clone() * 2
    bounds = bounds_of(workers[0], 3)
    sent = [worker.call(ContributeTask(step=0, attempt=0, bounds=bounds))[1] for worker in workers]
    sums, norms = [], []
    for owner, worker in enumerate(workers):
        others = [parts[owner] for member, parts in enumerate(sent) if member != owner]
        request = reduce_task(step=0, attempt=0, segment=owner, microbatches=[1, 2, 3], own=owner)
        reply, (payload,) = worker.call(request, *others)
        sums.append(payload)
        norms.append(reply.sq_norm)
    apply = ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms)
    seen = [worker.call(apply, *sums)[0] for worker in workers]
    assert len({reply.hash for reply in seen}) == 1
    assert seen[0].grad_norm == pytest.approx(
        float(expected.norm()) / workers[0].replica.step_tokens, rel=1e-5
    )


def test_only_what_the_rule_allows_is_fed_back(other) -> None:
    workers = [opened(0, [4], averaging="s8", aggregation="most") for _ in range(2)]
    held = [worker.executor._opened.averager for worker in workers]
    assert all(averager.residual_bytes > 0 for averager in held)
    accumulate(workers, 0)
    sums, norms = contribute_and_reduce(workers, 0, 0, bounds := bounds_of(workers[0], 2), [0, 1])
    assert not any(averager._attempt.lost_in_sum for averager in held)
    worker = workers[0]
    worker.call(ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms), *sums)
    assert held[0]._residual.abs().sum() > 0


def test_a_rule_that_keeps_all_contributions_needs_memory_for_them(other) -> None:
    def need(aggregation):
        return Holding(
            model=MODELS["gpt"],
            layers_per_stage=[4],
            stage=0,
            sequences=SEQUENCES,
            tokens=TOKENS,
            graphs_kept=1,
            averaging_codec="s8",
            state=StateSpec(),
            aggregation=aggregation,
        ).need.total_bytes

    size = opened(0, [4]).replica.size
    assert need("most") - need("sum") == 4 * size
