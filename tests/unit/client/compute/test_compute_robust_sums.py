"""Aggregation rules: the contract of every rule; and of robust ones the effect of liars on them and
on the exact sum, and the loss of honest replicas."""

import math
from itertools import pairwise

import pytest
import torch

from client.compute import aggregation
from client.compute.aggregation import Aggregation
from model_zoo.specs.aggregation import RULES
from protocol.pipeline.effects import ApplyTask
from tests.support.compute_rounds import (
    accumulate,
    bounds_of,
    close_round,
    contribute_and_reduce,
    contributions,
    reduce_task,
    summed,
)
from tests.support.compute_stages import opened, relative_error

ROBUST = [name for name, rule in RULES.items() if rule.robust]
SIZE = 20_000
NOISE = 2.0
"""Of one microbatch, against the gradient; of real ones it was .5 to 2.2."""


def gradient() -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1))


def honest(counts) -> list[torch.Tensor]:
    """Contributions of replicas with so many microbatches each."""
    noise = torch.Generator().manual_seed(2)
    return [
        count * gradient() + math.sqrt(count) * NOISE * torch.randn(SIZE, generator=noise)
        for count in counts
    ]


def mean_of(name, contributions, counts, usual=0.0) -> torch.Tensor:
    rule = Aggregation(name, SIZE, usual)
    for contribution, count in zip(contributions, counts, strict=True):
        rule.add(contribution.clone(), count)
    return rule.result() / sum(counts)


def lying(lie, liars, counts):
    sent = honest(counts)
    return [lie(one) for one in sent[:liars]] + sent[liars:]


LIES = {
    "x -10": lambda one: -10 * one,
    "x -1": lambda one: -one,
    "zero": torch.zeros_like,
    "huge": lambda one: 1e6 * torch.sign(one),
    "enormous": lambda one: 1e13 * torch.randn(SIZE),
}


def test_distances_are_measured_in_units_of_the_noise_of_both() -> None:
    points = torch.tensor([[0, 0], [3, 4], [0, 1]], dtype=torch.float64)
    weights = torch.tensor([1, 4, 2], dtype=torch.float64)
    noise = (1 / weights[:, None] + 1 / weights).sqrt()
    found = aggregation._pairs(points @ points.T, weights)
    torch.testing.assert_close(found, torch.cdist(points, points) / noise)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize(("replicas", "liars"), [(3, 1), (4, 1), (8, 3), (16, 5)])
@pytest.mark.parametrize("lie", LIES)
def test_a_minority_that_lies_moves_the_mean_little(name, replicas, liars, lie) -> None:
    counts = [4] * replicas
    sent = lying(LIES[lie], liars, counts)
    true = torch.stack(sent[liars:]).mean(0) / 4
    error = relative_error(mean_of(name, sent, counts), true)
    assert error < 0.7
    assert error < relative_error(mean_of("sum", sent, counts), true) or lie == "zero"


@pytest.mark.parametrize("lie", ["x -10", "enormous"])
def test_crude_lies_are_left_out_by_clipping_as_if_nobody_had_sent_them(lie) -> None:
    counts = [8] * 4
    sent = lying(LIES[lie], 1, counts)
    clipped = mean_of("centred-clipping", sent, counts)
    torch.testing.assert_close(clipped, torch.stack(sent[1:]).mean(0) / 8, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 4, 4, 4], [7, 5, 4, 6], [3] * 32])
def test_clipping_without_liars_is_the_exact_sum_to_the_bit(counts) -> None:
    sent = honest(counts)
    exact = mean_of("sum", sent, counts)
    assert torch.equal(mean_of("centred-clipping", sent, counts), exact)


def test_who_does_most_of_the_work_honestly_is_not_left_out() -> None:
    counts = [40, 2, 2, 2]
    found = relative_error(mean_of("centred-clipping", honest(counts), counts), gradient())
    slow_ones = relative_error(mean_of("sum", honest(counts)[1:], counts[1:]), gradient())
    assert found < 0.75 * slow_ones


@pytest.mark.parametrize("name", ROBUST)
def test_the_work_that_a_liar_says_it_did_gives_it_no_majority(name) -> None:
    counts = [57, 3, 2, 2]
    sent = honest(counts)
    sent[0] = -10 * sent[0]
    assert relative_error(mean_of(name, sent, counts), gradient()) < 1.3
    assert relative_error(mean_of("sum", sent, counts), gradient()) > 9


@pytest.mark.parametrize("name", ROBUST)
def test_who_counted_nothing_has_no_say(name) -> None:
    counts = [0, 4, 4, 4]
    sent = [torch.full((SIZE,), 1e6), *honest(counts[1:])]
    assert torch.equal(mean_of(name, sent, counts), mean_of(name, sent[1:], counts[1:]))


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("sent", [torch.zeros(SIZE), torch.full((SIZE,), 0.1)])
def test_replicas_that_all_agree_are_believed(name, sent) -> None:
    for counts in ([3] * 3, [3] * 8):
        found = mean_of(name, [3 * sent] * len(counts), counts)
        torch.testing.assert_close(found, sent)


def rms(counts) -> float:
    """The usual norm of the mean of so many microbatches' gradients."""
    return math.sqrt((1 + NOISE**2 / sum(counts)) * SIZE)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("factor", [-10, -1.3, 1e4])
def test_of_two_replicas_none_outdoes_the_other(name, factor) -> None:
    """A result that points against the honest one is followed at full speed by Adam, however small
    it is; with the other's norm as a bound its part along it is 0 at least but for noise."""
    counts = [8, 8]
    first, second = honest(counts)
    found = mean_of(name, [factor * first, second], counts, rms(counts))
    assert found.norm() < 1.2 * rms(counts)
    assert torch.dot(found, second / 8) > 0
    for liar_first in ([-10 * second, second], [-1.3 * second, second]):
        assert mean_of(name, liar_first, counts, rms(counts)).norm() < 1e-3 * rms(counts)
    wrong = mean_of("sum", [-10 * first, second], counts)
    assert torch.dot(wrong, second) < 0


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("counts", [[8, 8], [14, 2], [1, 1]])
def test_two_honest_replicas_lose_little(name, counts) -> None:
    sent = honest(counts)
    exact = mean_of("sum", sent, counts)
    assert relative_error(mean_of(name, sent, counts, rms(counts)), exact) < 0.05
    assert torch.equal(mean_of(name, sent, counts, usual=0.0), exact)


@pytest.mark.parametrize("name", ROBUST)
def test_one_of_two_that_sends_zeros_does_not_silence_the_other_over_time(name) -> None:
    counts = [8, 8]
    usual = rms(counts)
    for _ in range(100):
        found = mean_of(name, [honest(counts)[0], torch.zeros(SIZE)], counts, usual)
        usual = 0.9 * usual + 0.1 * float(found.norm())
    assert found.norm() > 0.3 * rms(counts)


def round_of(workers, step, lie):
    """One round by hand in which the last worker lies to the others; everybody applies."""
    *bounds, liar = *bounds_of(workers[0], len(workers) - 1), len(workers) - 1
    sent = contributions(workers, step, bounds=bounds)
    wire = workers[liar].replica.wire
    for segment, (start, end) in enumerate(pairwise(bounds)):
        numbers = torch.empty(end - start)
        wire.segment_back(sent[liar][segment], numbers)
        sent[liar][segment] = bytes(wire.segment_out(lie(numbers)))
    owners = range(liar)  # the liar owns nothing: its sums are another matter
    sums, norms, _ = summed(workers, sent, step, 0, owners, [2] * len(workers))
    apply = ApplyTask(step=step, attempt=0, bounds=bounds, sq_norms=norms)
    return [worker.call(apply, *sums)[0] for worker in workers]


@pytest.mark.parametrize("codec", ["fp32", "s8"])
@pytest.mark.parametrize("lie", ["x -10", "enormous"])
def test_rounds_with_a_liar_keep_replicas_alike_and_the_update_sound(codec, lie) -> None:
    """Nor is the enormous refused: that would cost an attempt of all, and this its sender alone."""
    lies = {
        "none": lambda numbers: numbers,
        "x -10": lambda numbers: -10 * numbers,
        "enormous": lambda numbers: torch.full_like(numbers, 1e13),
    }
    start, moved = opened(0, [4]).replica.flat.values, []
    for rule, told in [("sum", "none"), *((name, lie) for name in ROBUST)]:
        workers = [opened(0, [4], averaging=codec, aggregation=rule) for _ in range(4)]
        for step in range(3):
            accumulate(workers, step)
            replies = round_of(workers, step, lies[told])
            assert len({reply.hash for reply in replies}) == 1
        moved.append(workers[0].replica.flat.values - start)
    honestly, *robustly = moved
    for found in robustly:
        assert torch.cosine_similarity(found, honestly, dim=0) > 0.6


def test_two_replicas_take_the_usual_norm_from_the_state_they_share() -> None:
    workers = [opened(0, [4], aggregation="centred-clipping") for _ in range(2)]
    bounds, averagers = bounds_of(workers[0], 2), [w.executor._opened.averager for w in workers]
    assert averagers[0].usual_norm(bounds, 0) == 0
    accumulate(workers, 0)
    close_round(workers, 0)
    replica = workers[0].replica
    expected = math.sqrt(float(replica.optimizer.vectors[1].double().sum()) / (1 - 0.95))
    found = [[each.usual_norm(bounds, segment) for segment in range(2)] for each in averagers]
    assert math.hypot(*found[0]) == pytest.approx(
        expected * replica.wire.run.tokens_per_microbatch, rel=1e-5
    )
    assert found[0] == found[1]


@pytest.mark.parametrize("malformed", [0, 1])
def test_of_two_an_absurd_contribution_is_left_out(malformed: int) -> None:
    """Also of two that are left: they are no majority either."""
    workers = [opened(0, [4], aggregation="centred-clipping") for _ in range(2)]
    accumulate(workers, 0)
    close_round(workers, 0)
    accumulate(workers, 1)
    workers[1].replica.gradient_sum.fill_(1e13)
    sent = contributions(workers, 1)
    counts = [2] * (2 + malformed)
    reduce = reduce_task(step=1, attempt=0, segment=0, microbatches=counts, own=0)
    reply, _ = workers[0].call(reduce, sent[1][0], *[b"none"] * malformed)
    assert reply.parts == (1, 2)[: 1 + malformed]


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
