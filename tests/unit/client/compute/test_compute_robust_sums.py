"""Robust aggregation rules: the effect of liars on them and on the exact sum, and the loss of
honest replicas."""

import math

import pytest
import torch

from client.compute.aggregation.rule import new_aggregation
from model_zoo.specs.aggregation import RULES
from protocol.pipeline.effects import ApplyTask, ContributeTask
from tests.support.compute_rounds import accumulate, bounds_of, reduce_task
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
    rule = new_aggregation(name, SIZE, usual)
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
}


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize(("replicas", "liars"), [(3, 1), (4, 1), (16, 5)])
@pytest.mark.parametrize("lie", LIES)
def test_a_minority_that_lies_moves_the_mean_little(name, replicas, liars, lie) -> None:
    counts = [4] * replicas
    sent = lying(LIES[lie], liars, counts)
    true = torch.stack(sent[liars:]).mean(0) / 4
    error = relative_error(mean_of(name, sent, counts), true)
    assert error < 0.7
    assert error < relative_error(mean_of("sum", sent, counts), true) or lie == "zero"


@pytest.mark.parametrize("lie", ["x -10", "huge"])
def test_crude_lies_are_left_out_by_clipping_as_if_nobody_had_sent_them(lie) -> None:
    counts = [8] * 4
    sent = lying(LIES[lie], 1, counts)
    clipped = mean_of("centred-clipping", sent, counts)
    torch.testing.assert_close(clipped, torch.stack(sent[1:]).mean(0) / 8, rtol=1e-4, atol=1e-5)


def test_the_exact_sum_is_ruined_by_one_liar() -> None:
    counts = [8] * 4
    assert relative_error(mean_of("sum", lying(LIES["x -10"], 1, counts), counts), gradient()) > 2


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


def round_of(workers, step, lie, codec_bounds):
    """One round by hand in which the last worker lies to the others; everybody applies."""
    bounds = codec_bounds
    sent = [w.call(ContributeTask(step=step, attempt=0, bounds=bounds))[1] for w in workers]
    wire, liar = workers[-1].replica.wire, len(workers) - 1
    if lie is not None:
        sent[liar] = [lied(wire, part, lie, a, b) for part, a, b in _parts(sent[liar], bounds)]
    sums, norms = [], []
    for segment in range(len(bounds) - 1):
        owner = segment % liar  # the liar owns nothing: its sums are another matter
        others = [parts[segment] for member, parts in enumerate(sent) if member != owner]
        request = reduce_task(
            step=step, attempt=0, segment=segment, microbatches=[2] * len(workers), own=owner
        )
        reply, (payload,) = workers[owner].call(request, *others)
        sums.append(payload)
        norms.append(reply.sq_norm)
    apply = ApplyTask(step=step, attempt=0, bounds=bounds, sq_norms=norms)
    return [worker.call(apply, *sums)[0] for worker in workers]


def _parts(payloads, bounds):
    return zip(payloads, bounds, bounds[1:], strict=False)


def lied(wire, payload, lie, start, end):
    numbers = torch.empty(end - start)
    wire.segment_back(payload, numbers)
    return bytes(wire.segment_out(lie(numbers)))


@pytest.mark.parametrize("codec", ["fp32", "s8"])
def test_rounds_with_a_liar_keep_replicas_alike_and_the_update_sound(codec) -> None:
    found = {}
    for rule, lie in [("sum", None), ("sum", -10), *((name, -10) for name in ROBUST)]:
        workers = [opened(0, [4], averaging=codec, aggregation=rule) for _ in range(4)]
        bounds = bounds_of(workers[0], 3)
        for step in range(3):
            accumulate(workers, step)
            times = None if lie is None else (lambda numbers: -10 * numbers)
            replies = round_of(workers, step, times, bounds)
            assert len({reply.hash for reply in replies}) == 1
        moved = workers[0].replica.flat.values - opened(0, [4]).replica.flat.values
        found[rule, lie] = moved
    honestly = found.pop(("sum", None))
    assert torch.cosine_similarity(found.pop(("sum", -10)), honestly, dim=0) < -0.1
    for (rule, _), moved in found.items():
        least = 0.6 if rule == "centred-clipping" else 0.1  # the first steps of Adam are signs
        assert torch.cosine_similarity(moved, honestly, dim=0) > least


def test_two_replicas_take_the_usual_norm_from_the_state_they_share() -> None:
    workers = [opened(0, [4], aggregation="centred-clipping") for _ in range(2)]
    bounds, averagers = bounds_of(workers[0], 2), [w.executor._opened.averager for w in workers]
    assert averagers[0].usual_norm(tuple(bounds), 0) == 0
    accumulate(workers, 0)
    round_of(workers, 0, None, bounds)
    replica = workers[0].replica
    expected = math.sqrt(float(replica.optimizer.vectors[1].double().sum()) / (1 - 0.95))
    known = [averagers[1].usual_norm(tuple(bounds), segment) for segment in range(2)]
    assert math.hypot(*known) == pytest.approx(expected * replica.wire.token_count, rel=1e-5)
    assert known == [averagers[0].usual_norm(tuple(bounds), segment) for segment in range(2)]


@pytest.mark.parametrize("apart", [True, False])
def test_three_of_eight_that_contribute_enormous_numbers_are_left_out(apart) -> None:
    counts, size = [4] * 8, 1e13
    sent = [
        size * (torch.randn(SIZE) if apart else torch.ones(SIZE)) if member < 3 else one
        for member, one in enumerate(honest(counts))
    ]
    clipped = mean_of("centred-clipping", sent, counts)
    assert relative_error(clipped, torch.stack(sent[3:]).mean(0) / 4) < 0.2


@pytest.mark.parametrize("codec", ["fp32", "s8"])
def test_what_the_rule_leaves_out_by_itself_is_not_refused(codec) -> None:
    """A refusal costs an attempt of all; a contribution that is left out costs its sender."""
    found = []
    for lie in (None, lambda numbers: torch.full_like(numbers, 1e13)):
        workers = [opened(0, [4], averaging=codec, aggregation="centred-clipping") for _ in "four"]
        for step in range(3):
            accumulate(workers, step)
            replies = round_of(workers, step, lie, bounds_of(workers[0], 3))
            assert len({reply.hash for reply in replies}) == 1
        found.append(workers[0].replica.flat.values - opened(0, [4]).replica.flat.values)
    assert torch.cosine_similarity(*found, dim=0) > 0.6


def test_what_it_does_not_leave_out_is() -> None:
    replicas = 2
    workers = [opened(0, [4], aggregation="centred-clipping") for _ in range(replicas)]
    bounds = bounds_of(workers[0], replicas)
    accumulate(workers, 0)
    round_of(workers, 0, None, bounds)
    accumulate(workers, 1)
    workers[-1].replica.gradient_sum.fill_(1e13)
    sent = [w.call(ContributeTask(step=1, attempt=0, bounds=bounds))[1] for w in workers]
    reduce = reduce_task(step=1, attempt=0, segment=0, microbatches=[2] * replicas, own=0)
    failed = workers[0].fails(reduce, *(parts[0] for parts in sent[1:]))
    assert (failed.kind, failed.part) == ("codec", replicas - 2)
