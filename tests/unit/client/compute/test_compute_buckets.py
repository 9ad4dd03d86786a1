"""Secret sums of buckets: exact without liars, and a bucket that is poisoned is left out."""

import itertools
from collections.abc import Sequence

import pytest
import torch

from client.compute.bucket_clipping import clipped_sum, exact_products, factors
from client.compute.public_scale import largest
from client.compute.requests import Apply, Contribute, DecodeSum, Reduce
from tests.support.compute_rounds import accumulate
from tests.support.compute_stages import LocalWorker, opened

TOKENS_PER_STEP = 1000


def sums_of(buckets: int, size: int = 1000) -> torch.Tensor:
    """Sums of honest buckets: the same direction, and noise of its size."""
    made = torch.Generator().manual_seed(3)
    common = torch.randn(size, generator=made) * 300
    each = common + torch.randn(buckets, size, generator=made) * 300
    return each.round().to(torch.int16)


SCALE = torch.arange(8, dtype=torch.int32) - 20  # of 1000 numbers


class TestRule:
    @pytest.mark.parametrize("buckets", [3, 4, 8])
    def test_without_a_liar_the_result_is_the_exact_sum(self, buckets: int) -> None:
        sums = sums_of(buckets)
        total = clipped_sum(sums, SCALE, [4] * buckets)
        assert torch.equal(total, sums.to(torch.int32).sum(0, dtype=torch.int32))

    @pytest.mark.parametrize("lie", [-10, -3, 6, 0])
    @pytest.mark.parametrize(("buckets", "liars"), [(3, 1), (4, 1), (8, 3)])
    def test_buckets_far_from_most_others_have_no_part(
        self, buckets: int, liars: int, lie: int
    ) -> None:
        sums = sums_of(buckets)
        honest = sums[liars:].to(torch.float64).mean(0) * buckets
        for place in range(liars):
            poisoned = sums[place].to(torch.int32) * lie if lie else torch.randn(1000) * 9000
            sums[place] = poisoned.clamp(-32767, 32767).to(torch.int16)
        total = clipped_sum(sums, SCALE, [4] * buckets).double()
        assert torch.allclose(total, honest, atol=1.0)

    def test_of_two_buckets_the_larger_mean_is_cut_to_the_others_norm(self) -> None:
        sums = sums_of(2)
        sums[0] = (sums[0].to(torch.int32) * -10).clamp(-32767, 32767).to(torch.int16)
        lied, honest = factors(sums, SCALE, [4, 4])
        norms = exact_products(sums, SCALE).diagonal().sqrt()
        assert honest == 1.0
        assert float(norms[0]) * lied == pytest.approx(float(norms[1]))

    def test_means_are_compared_and_not_sums(self) -> None:
        """The third bucket has done three times as much as the others, and counts twice as much."""
        sums = sums_of(4)
        sums[2] *= 3
        left = factors(sums, SCALE, [4, 4, 12, 4])
        assert left[0] == left[1] == left[3]
        assert left[2] == pytest.approx(left[0] * 2 / 3)

    def test_a_bucket_without_a_microbatch_is_left_out(self) -> None:
        sums = sums_of(3)
        assert factors(sums, SCALE, [4, 0, 0]) == [1.0, 0.0, 0.0]
        assert factors(sums, SCALE, [0, 0, 0]) == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("size", [1, 127, 128, 1000])
    def test_products_are_those_of_the_numbers(self, size: int) -> None:
        sums, scale = sums_of(3, size), SCALE[: -(-size // 128)]
        factor = torch.ldexp(torch.ones(len(scale)), scale).double()
        numbers = sums.double() * factor.repeat_interleave(128)[:size]
        assert torch.allclose(exact_products(sums, scale), numbers @ numbers.T, rtol=1e-12)

    def test_a_sum_that_is_too_large_is_cut_and_not_wrapped(self) -> None:
        sums = torch.full((8, 1000), 32767, dtype=torch.int16)
        assert clipped_sum(sums, SCALE, [1] * 7 + [10_000]).max() <= (1 << 19) - 1
        assert clipped_sum(sums, SCALE, [1] * 8).tolist() == [8 * 32767] * 1000


BUCKETS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


class TestWorkers:
    """Twelve workers of one stage in three buckets, as ``Masking`` would have them mask."""

    COUNT = len(BUCKETS)

    def masks(self, me: int) -> list[tuple[bytes, bool]]:
        near = [at for at, bucket in enumerate(BUCKETS) if bucket == BUCKETS[me] and at != me]
        pairs = [(bytes(sorted((me, other))) * 16, me < other) for other in near]
        return [(b"own%d" % me, True), *pairs]

    def workers(self) -> list[LocalWorker]:
        made = [self.opened() for _ in range(self.COUNT)]
        accumulate(made, 0)
        return made

    def opened(self) -> LocalWorker:
        return opened(0, [4], averaging="ring16", aggregation="secure-clipping")

    def bounds(self, worker: LocalWorker) -> list[int]:
        size = worker.replica.size
        return [size * k // self.COUNT // 128 * 128 for k in range(self.COUNT)] + [size]

    def contribute(self, worker: LocalWorker, me: int) -> Sequence[bytes]:
        asked = Contribute(
            step=0,
            attempt=1,
            bounds=self.bounds(worker),
            masks=self.masks(me),
            tokens=TOKENS_PER_STEP,
            buckets=BUCKETS,
        )
        return worker.call(asked)[1]

    def summed(self, workers: list[LocalWorker]) -> list[bytes]:
        sent = [self.contribute(worker, me) for me, worker in enumerate(workers)]
        sums = []
        for segment, worker in enumerate(workers):
            others = [parts[segment] for me, parts in enumerate(sent) if me != segment]
            request = Reduce(
                step=0,
                attempt=1,
                segment=segment,
                microbatches=[1] * self.COUNT,
                own=segment,
                buckets=BUCKETS,
            )
            sums.append(worker.call(request, *others)[1][0])
        return sums

    def apply(self, worker: LocalWorker, seeds: list[bytes] | None = None) -> Apply:
        return Apply(
            step=0,
            attempt=1,
            bounds=self.bounds(worker),
            squared_norms=[0.0] * self.COUNT,
            tokens=TOKENS_PER_STEP,
            seeds=seeds or [b"own%d" % me for me in range(self.COUNT)],
            buckets=BUCKETS,
            microbatches=[1] * self.COUNT,
        )

    def test_all_make_the_version_that_the_clear_sum_makes(self) -> None:
        workers = self.workers()
        sums = self.summed(workers)
        clear = torch.stack([worker.replica.gradient_sum for worker in workers]).sum(0)
        for worker, (number, payload) in itertools.product(workers[:2], enumerate(sums)):
            worker.call(DecodeSum(step=0, attempt=1, segment=number, squared_norm=0.0), payload)
        newcomer = self.opened()
        replies = [w.call(self.apply(w), *sums)[0] for w in (*workers, newcomer)]
        assert len({reply.hash for reply in replies}) == 1
        assert len({reply.grad_norm for reply in replies}) == 1
        norm = float(clear.norm()) / TOKENS_PER_STEP
        assert replies[0].grad_norm == pytest.approx(norm, rel=1e-3)

    @pytest.mark.parametrize("lie", [-10.0, 1e6])
    def test_the_bucket_of_a_liar_has_no_part_in_the_version(self, lie: float) -> None:
        workers = self.workers()
        of_bucket = [
            sum(w.replica.gradient_sum for w, of in zip(workers, BUCKETS, strict=True) if of == b)
            for b in range(3)
        ]
        honest = (of_bucket[0] + of_bucket[2]) * 1.5
        workers[4].replica.gradient_sum.mul_(lie)
        sums = self.summed(workers)
        made = workers[0].call(self.apply(workers[0]), *sums)[0]
        assert made.grad_norm == pytest.approx(float(honest.norm()) / TOKENS_PER_STEP, rel=1e-2)
        assert workers[1].call(self.apply(workers[1]), *sums)[0].hash == made.hash

    def test_masks_that_do_not_come_out_again_spoil_one_bucket_alone(self) -> None:
        workers = self.workers()
        sums = self.summed(workers)
        seeds = [b"own%d" % me for me in range(self.COUNT)]
        right = workers[0].call(self.apply(workers[0], seeds), *sums)[0]
        seeds[5] = b""
        wrong = workers[1].call(self.apply(workers[1], seeds), *sums)[0]
        assert wrong.grad_norm < 2 * right.grad_norm

    def test_a_contribution_uses_the_whole_range_of_its_bucket(self) -> None:
        workers = self.workers()
        self.contribute(workers[0], 0)
        workers[1].replica.gradient_sum.fill_(1e20)
        self.contribute(workers[1], 1)
        averager = workers[1].executor._stage.averager
        assert {int(part.max()) for part in averager._clear if len(part)} == {largest(4)}

    def test_a_bucket_of_two_is_refused(self) -> None:
        worker = self.workers()[0]
        asked = Contribute(
            step=0,
            attempt=1,
            bounds=self.bounds(worker),
            masks=self.masks(0),
            tokens=TOKENS_PER_STEP,
            buckets=[0] * 10 + [1] * 2,
        )
        assert worker.fails(asked).kind == "shape"

    def test_sums_of_other_buckets_are_no_sums_of_ours(self) -> None:
        workers = self.workers()
        sums = self.summed(workers)
        body = bytes(sums[1])[:-2]
        asked = DecodeSum(step=0, attempt=1, segment=1, squared_norm=0.0)
        assert workers[0].fails(asked, body).kind == "codec"
