"""A segment that is summed again by another replica than its owner, with every rule and codec."""

import pytest
import torch

from model_zoo.specs.aggregation import RULES
from protocol.audit.record import Grade, grade
from protocol.pipeline.effects import KeepVersionTask
from tests.support.compute_rounds import (
    CODECS,
    accumulate,
    bounds_of,
    close_round,
    contributions,
    reduce_task,
)
from tests.support.compute_stages import opened


class Round:
    """Three replicas that have contributed to a step; the first owns segment 1."""

    def __init__(self, rule: str, codec: str) -> None:
        self.workers = [opened(0, [4], averaging=codec, aggregation=rule) for _ in range(3)]
        self.bounds = bounds_of(self.workers[0], 3)
        accumulate(self.workers, 0)
        close_round(self.workers, 0)  # so that the second moment knows what is usual
        accumulate(self.workers, 1)
        self.sent = [parts[1] for parts in contributions(self.workers, 1, attempt=1)]
        request = reduce_task(step=1, attempt=1, segment=1, microbatches=[2] * 3, own=0)
        _, (self.sum,) = self.workers[0].call(request, *self.sent[1:])

    def again(self, claimed: bytes, parts: list[bytes] | None = None) -> float:
        """Have the third replica sum segment 1 again."""
        self.workers[2].call(KeepVersionTask(step=1, bounds=self.bounds, segment=1))
        request = reduce_task(step=1, attempt=1, segment=1, microbatches=[2] * 3, own=None)
        reply, _ = self.workers[2].call(request, *(parts or self.sent), claimed)
        return reply.apart[0]

    def scaled(self, times: float) -> bytes:
        """What an owner sends that lies about its sum."""
        wire, size = self.workers[0].replica.wire, self.bounds[2] - self.bounds[1]
        numbers = torch.empty(size)
        wire.segment_back(self.sum, numbers)
        return bytes(wire.segment_out(numbers * times))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("codec", CODECS)
def test_an_honest_sum_agrees_and_a_false_one_does_not(rule: str, codec: str) -> None:
    one = Round(rule, codec)
    assert one.again(one.sum) == 0.0, "to the bit, on one machine"
    for times in (-10.0, -1.0, 0.0, 1.5):
        assert grade(one.again(one.scaled(times))) is Grade.LIES


def test_a_contribution_that_is_left_out_is_found() -> None:
    one = Round("sum", "s8")
    twice = [one.sent[0], one.sent[1], one.sent[1]]
    assert grade(one.again(one.sum, twice)) is Grade.LIES


def test_a_check_changes_nothing_at_the_replica_that_makes_it() -> None:
    one = Round("sum", "s8")
    before = one.workers[2].replica.state_hash(), one.workers[2].replica.gradient_sum.clone()
    one.again(one.scaled(-10.0))
    assert one.workers[2].replica.state_hash() == before[0]
    assert torch.equal(one.workers[2].replica.gradient_sum, before[1])
