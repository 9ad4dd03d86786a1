"""Broadcast sums decoded as they come: checked at once, and never mistaken for something else."""

from itertools import pairwise

import pytest
import torch

from protocol.pipeline.effects import ApplyTask, ContributeTask, LossTask, PassTask
from tests.support.compute_rounds import (
    CODECS,
    accumulate,
    bounds_of,
    contribute_and_reduce,
    decode_task,
    replicas,
)
from tests.support.compute_stages import tokens_of


class TestDecodedAhead:
    """Sums are checked as they come, and `Apply` finds their numbers."""

    @pytest.fixture(params=CODECS)
    def round_(self, request):
        workers = replicas(2, request.param)
        accumulate(workers, 0)
        bounds = bounds_of(workers[0], 4)
        sums, norms = contribute_and_reduce(workers, 0, 0, bounds, [0, 1, 1, 0])
        return workers, bounds, sums, norms

    def decode(self, segment, norm, *, attempt=0, step=0):
        return decode_task(step=step, attempt=attempt, segment=segment, squared_norm=norm)

    def apply(self, bounds, norms):
        return ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms)

    def decodings(self, worker, monkeypatch):
        """The worker's decoded segments from now on, by length."""
        counted, decode = [], worker.replica.wire.segment_in

        def count(wire, payload, out, part):
            counted.append(out.numel())
            decode(payload, out, part)

        monkeypatch.setattr(type(worker.replica.wire), "segment_in", count)
        return counted

    def test_apply_decodes_only_what_is_not_decoded_yet(self, round_, monkeypatch) -> None:
        (early, late), bounds, sums, norms = round_
        counted = self.decodings(early, monkeypatch)
        early.call(self.decode(1, norms[1]), sums[1])
        sizes = [end - start for start, end in pairwise(bounds)]
        assert counted == [sizes[1]]
        applied, _ = early.call(self.apply(bounds, norms), *sums)
        assert counted == [sizes[1], sizes[2]], "0 and 3 are its own"
        assert late.call(self.apply(bounds, norms), *sums)[0].hash == applied.hash

    @pytest.mark.parametrize("other", ["pass", "contribute", "subtract"])
    def test_what_used_the_scratch_since_does_not_enter_the_version(self, round_, other) -> None:
        (busy, calm), bounds, sums, norms = round_
        for segment in (1, 2):
            busy.call(self.decode(segment, norms[segment]), sums[segment])
        if other == "pass":
            busy.call(LossTask(step=0, microbatch=77), tokens_of(77))
        elif other == "subtract":
            busy.call(PassTask(into="less", step=0, microbatch=0), tokens_of(0))
        else:
            busy.call(ContributeTask(step=0, attempt=1, bounds=[0, bounds[-1]]))
        expected, _ = calm.call(self.apply(bounds, norms), *sums)
        assert busy.call(self.apply(bounds, norms), *sums)[0].hash == expected.hash

    def test_other_bytes_than_were_decoded_are_decoded_anew(self, round_) -> None:
        (worker, other), bounds, sums, norms = round_
        worker.call(self.decode(1, norms[1]), sums[1])
        other.replica.gradient_sum.mul_(3)
        others, other_norms = contribute_and_reduce([other] * 2, 0, 0, bounds, [0, 1, 1, 0])
        expected, _ = other.call(self.apply(bounds, other_norms), *others)
        assert worker.call(self.apply(bounds, other_norms), *others)[0].hash == expected.hash

    def test_what_is_no_sum_is_refused_and_the_sum_still_taken(self, round_) -> None:
        (worker, _), bounds, sums, norms = round_
        before = worker.replica.gradient_sum.clone()
        damaged = bytearray(sums[1])  # its seal is as it was, and all that the node looks at
        damaged[-1] ^= 1
        wrong = (sums[2], sums[1][:-1], damaged)
        for bad, norm in (*((payload, norms[1]) for payload in wrong), (sums[1], 2 * norms[1])):
            failed = worker.fails(self.decode(1, norm), bad)
            assert (failed.kind, failed.part) == ("codec", 0)
        assert torch.equal(worker.replica.gradient_sum, before)
        worker.call(self.decode(1, norms[1]), sums[1])
        worker.call(self.apply(bounds, norms), *sums)

    def test_of_another_attempt_step_or_segment(self, round_) -> None:
        (worker, _), _, sums, norms = round_
        assert worker.fails(self.decode(1, norms[1], attempt=1), sums[1]).kind == "stale"
        assert worker.fails(self.decode(1, norms[1], step=1), sums[1]).kind == "stale"
        for segment, given in ((4, sums[:1]), (1, sums[:2]), (1, [])):
            assert worker.fails(self.decode(segment, norms[1]), *given).kind == "shape"
