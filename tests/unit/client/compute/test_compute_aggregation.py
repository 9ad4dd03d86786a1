"""Aggregation rules: the contract of every rule, and what a worker does otherwise with a robust
one."""

import pytest
import torch

from client.compute.aggregation import Aggregation
from model_zoo.specs.aggregation import RULES
from tests.support.compute_rounds import accumulate, bounds_of, contribute_and_reduce
from tests.support.compute_stages import need_of, open_request, opened

SIZE = 1000


@pytest.mark.parametrize("name", RULES)
def test_a_single_contribution_is_the_result(name) -> None:
    contribution = torch.randn(SIZE)
    rule = Aggregation(name, SIZE)
    rule.add(contribution.clone(), 3)
    assert torch.equal(rule.result(), contribution)


@pytest.mark.parametrize("name", RULES)
def test_contributions_are_overwritten_and_the_result_depends_on_nothing_else(name) -> None:
    contributions, scratch, results = torch.randn(5, SIZE), torch.empty(SIZE), []
    for _ in range(2):
        rule = Aggregation(name, SIZE)
        for number, contribution in enumerate(contributions):
            rule.add(scratch.copy_(contribution), number)
        scratch.fill_(torch.nan)
        results.append(rule.result())
    assert torch.equal(*results)
    assert torch.isfinite(results[0]).all()


@pytest.mark.parametrize("name", RULES)
def test_of_a_robust_result_nothing_is_fed_back(name) -> None:
    workers = [opened(0, [4], averaging="s8", aggregation=name) for _ in range(2)]
    accumulate(workers, 0)
    contribute_and_reduce(workers, 0, 0, bounds_of(workers[0], 2), [0, 1])
    for worker in workers:
        fed_back = worker.executor._opened.averager._attempt.lost_in_sum
        assert bool(fed_back) is not RULES[name].robust


@pytest.mark.parametrize("name", RULES)
def test_a_robust_rule_needs_memory_for_a_segment_of_all(name) -> None:
    def need(rule):
        return need_of(open_request(0, [4], averaging="s8", aggregation=rule)).total_bytes

    extra = 4 * opened(0, [4]).replica.size
    assert need(name) - need("sum") == (extra if RULES[name].robust else 0)
