"""Masked integers: the scale that all know, masks that come out again, and a worker with them."""

import itertools

import numpy as np
import pytest
import torch

from client.compute.errors import PoisonedTensor
from client.compute.masks import add_mask
from client.compute.payload import HEADER, seal
from client.compute.public_scale import exponents, largest, to_integers, to_numbers
from protocol.pipeline.effects import ApplyTask, ContributeTask
from tests.support.compute_rounds import accumulate, decode_task, reduce_task
from tests.support.compute_stages import LocalWorker, opened, relative_error

TOKENS_PER_STEP = 1000


@pytest.mark.parametrize("size", [1, 127, 1 << 18, (1 << 18) + 1, 700_001])
def test_a_mask_comes_out_again_and_hides_what_it_is_added_to(size: int) -> None:
    numbers = np.zeros(size, "<u2")
    add_mask(numbers, b"seed", 3)
    if size > 1000:
        assert len(np.unique(numbers)) > 0.9 * min(size, 1 << 16) * (1 - np.exp(-size / (1 << 16)))
        assert abs(numbers.mean() / 65535 - 0.5) < 0.05
    other = np.zeros(size, "<u2")
    add_mask(other, b"seed", 4)
    assert size == 1 or not np.array_equal(numbers, other)
    add_mask(numbers, b"seed", 3, subtract=True)
    assert not numbers.any()


@pytest.mark.parametrize("members", [3, 4, 8, 16, 32])
def test_the_sum_of_the_largest_fits_the_ring(members: int) -> None:
    assert members * largest(members) <= 32767
    assert members * (largest(members) + 1) > 32767


def moment(size: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1)
    spread = torch.exp(torch.randn(size, generator=made) - 12)
    spread[:256] = 0.0  # a row that was never used
    return spread


@pytest.mark.parametrize(("members", "error"), [(3, 0.01), (8, 0.02), (32, 0.06)])
def test_numbers_of_the_usual_size_are_kept_to_a_part_in_hundreds(
    members: int, error: float
) -> None:
    """Of blocks whose numbers differ much in size; error feedback brings the rest."""
    squares = moment(10_000)
    scale = exponents(squares, 100, 0.99, TOKENS_PER_STEP, members)
    numbers = torch.randn(10_000) * squares.sqrt() * TOKENS_PER_STEP
    numbers[:256] = squares.max().sqrt() / 100 * TOKENS_PER_STEP
    integers, back = to_integers(numbers, scale, members), torch.empty(10_000)
    norm = to_numbers(integers, scale, back)
    assert relative_error(back, numbers) < error
    assert norm == pytest.approx(float(back.double().square().sum()), rel=1e-12)


def test_what_is_beyond_the_scale_is_clipped_and_not_wrapped() -> None:
    scale = exponents(moment(1000), 100, 0.99, TOKENS_PER_STEP, 4)
    integers = to_integers(torch.full((1000,), 1e20), scale, 4)
    assert set(integers.tolist()) == {largest(4)}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    scale = exponents(moment(1000), 0, 0.99, TOKENS_PER_STEP, 4)
    with pytest.raises(PoisonedTensor):
        to_integers(torch.full((1000,), bad), scale, 4)


@pytest.mark.parametrize("squares", [torch.zeros(300), torch.full((300,), 1e-45)])
def test_without_a_usual_size_there_is_a_scale(squares: torch.Tensor) -> None:
    assert torch.equal(exponents(squares, 9, 0.99, 8, 4), exponents(torch.ones(300), 0, 0.99, 8, 4))


class TestWorkers:
    """Four workers of one stage, as ``Masking`` would have them mask."""

    COUNT = 4

    def masks(self) -> list[list[tuple[bytes, bool]]]:
        pairs = {pair: bytes(pair) * 16 for pair in itertools.combinations(range(self.COUNT), 2)}
        return [
            [(b"own%d" % me, True)]
            + [(seed, me == first) for (first, last), seed in pairs.items() if me in (first, last)]
            for me in range(self.COUNT)
        ]

    def workers(self) -> list[LocalWorker]:
        made = [opened(0, [4], averaging="ring16", aggregation="secure") for _ in range(self.COUNT)]
        accumulate(made, 0)
        return made

    def contribute(self, masks: list[tuple[bytes, bool]], bounds: list[int]) -> ContributeTask:
        return ContributeTask(step=0, attempt=1, bounds=bounds, masks=masks)

    def bounds(self, worker: LocalWorker) -> list[int]:
        size = worker.replica.size
        return [size * k // self.COUNT // 128 * 128 for k in range(self.COUNT)] + [size]

    def summed(self, workers: list[LocalWorker]) -> tuple[list[int], list[bytes]]:
        bounds = self.bounds(workers[0])
        asked = [self.contribute(masks, bounds) for masks in self.masks()]
        sent = [worker.call(one)[1] for worker, one in zip(workers, asked, strict=True)]
        sums = []
        for segment, worker in enumerate(workers):
            others = [parts[segment] for me, parts in enumerate(sent) if me != segment]
            request = reduce_task(
                step=0, attempt=1, segment=segment, microbatches=[2] * self.COUNT, own=segment
            )
            sums.append(worker.call(request, *others)[1][0])
        return bounds, sums

    def apply(self, bounds: list[int], seeds: list[bytes]) -> ApplyTask:
        return ApplyTask(
            step=0,
            attempt=1,
            bounds=bounds,
            sq_norms=[0.0] * self.COUNT,
            seeds=seeds,
        )

    def test_all_make_the_version_that_the_clear_sum_makes(self) -> None:
        workers = self.workers()
        bounds, sums = self.summed(workers)
        clear = torch.stack([worker.replica.gradient_sum for worker in workers]).sum(0)
        seeds = [b"own%d" % me for me in range(self.COUNT)]
        for worker in workers:
            for number, payload in enumerate(sums):
                asked = decode_task(step=0, attempt=1, segment=number, squared_norm=0.0)
                worker.call(asked, payload)
        newcomer = opened(0, [4], averaging="ring16", aggregation="secure")
        replies = [w.call(self.apply(bounds, seeds), *sums)[0] for w in (*workers, newcomer)]
        assert len({reply.hash for reply in replies}) == 1
        assert len({reply.grad_norm for reply in replies}) == 1
        norm = float(clear.norm()) / workers[0].replica.step_tokens
        assert replies[0].grad_norm == pytest.approx(norm, rel=1e-3)

    def test_what_rounding_takes_is_brought_with_the_next_contribution(self) -> None:
        workers = self.workers()
        clear = torch.stack([worker.replica.gradient_sum for worker in workers]).sum(0)
        bounds, sums = self.summed(workers)
        seeds = [b"own%d" % me for me in range(self.COUNT)]
        total = torch.zeros(())
        for worker in workers:
            worker.call(self.apply(bounds, seeds), *sums)
            total = total + worker.executor._stage.averager._residual
        sent = worker.replica.flat.gradients
        assert relative_error(sent + total, clear) < 1e-6
        assert total.norm() > 0

    def test_a_wrong_seed_leaves_noise(self) -> None:
        workers = self.workers()
        bounds, sums = self.summed(workers)
        seeds = [b"own0", b"own1", b"own2", b"wrong"]
        wrong = workers[0].call(self.apply(bounds, seeds), *sums)[0]
        right = workers[1].call(self.apply(bounds, [*seeds[:3], b"own3"]), *sums)[0]
        assert wrong.grad_norm > 100 * right.grad_norm

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_a_worker_sends_nothing_that_too_few_masks_hide(self, count: int) -> None:
        worker = self.workers()[0]
        failed = worker.fails(self.contribute(self.masks()[0][:count], self.bounds(worker)))
        assert failed.kind == "shape"

    @pytest.mark.parametrize("change", ["seal", "size", "codec", "empty"])
    def test_a_contribution_that_is_none_is_blamed_on_its_sender(self, change: str) -> None:
        workers = self.workers()
        bounds = self.bounds(workers[0])
        asked = [self.contribute(masks, bounds) for masks in self.masks()]
        sent = [worker.call(one)[1] for worker, one in zip(workers, asked, strict=True)]
        bad = bytearray(sent[2][0])
        if change == "seal":
            bad[-1] ^= 1
        elif change == "size":
            bad = bad[:-2]
        elif change == "empty":
            bad = bytearray()
        else:
            bad[5] = 1  # bf16 has as many bytes
            seal(bad)
        request = reduce_task(step=0, attempt=1, segment=0, microbatches=[2] * self.COUNT, own=0)
        failed = workers[0].fails(request, sent[1][0], bytes(bad), sent[3][0])
        assert (failed.kind, failed.part) == ("codec", 1)

    def test_a_sum_that_is_none_is_refused_before_anybody_is_ready(self) -> None:
        workers = self.workers()
        _, sums = self.summed(workers)
        asked = decode_task(step=0, attempt=1, segment=1, squared_norm=0.0)
        assert workers[0].fails(asked, sums[1][:-1] + b"x").kind == "codec"
        assert len(sums[1]) > HEADER.size

    def test_what_does_not_open_a_step_is_refused(self) -> None:
        workers = self.workers()
        bounds, sums = self.summed(workers)
        seeds = [b"own%d" % me for me in range(self.COUNT)]
        for few in (self.apply(bounds, seeds[:2]), self.apply(bounds, seeds)):
            given = sums[:3] if len(few.seeds) > 2 else sums
            failed = workers[0].fails(few, *given)
            assert (failed.kind, "do not open a step" in failed.message) == ("shape", True)
        for segment, count in ((len(sums), 1), (0, 2), (0, 0)):
            asked = decode_task(step=0, attempt=1, segment=segment, squared_norm=0.0)
            failed = workers[0].fails(asked, *sums[:count])
            assert (failed.kind, failed.message[:10]) == ("shape", "no segment")

    def test_a_segment_that_cuts_a_block_is_refused(self) -> None:
        worker = self.workers()[0]
        bounds = [0, 100, *self.bounds(worker)[2:]]
        assert worker.fails(self.contribute(self.masks()[0], bounds)).kind == "shape"
