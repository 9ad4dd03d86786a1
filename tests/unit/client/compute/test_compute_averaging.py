"""Rounds between replicas: bit-identical, equal to the sum, lossless over time."""

import math
import struct
from itertools import pairwise

import pytest
import torch

from client.compute.averaging import relative
from client.compute.payload import BLOCK, SEAL_BYTES, seal
from client.compute.replica import squared_norm
from client.compute.requests import Load, Save
from protocol.pipeline.effects import ApplyTask, ContributeTask, KeepVersionTask, LossTask, PassTask
from tests.support.codecs import decode
from tests.support.compute_rounds import (
    CODECS,
    accumulate,
    bounds_of,
    close_round,
    contribute_and_reduce,
    contributions,
    decode_task,
    reduce_task,
    replicas,
)
from tests.support.compute_stages import opened, relative_error, tokens_of

LARGEST_SCALE = b"\x80\x53"  # 2^40 as bf16


def parameters(worker):
    return worker.replica.flat.values.clone()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("members", [1, 2, 3])
def test_replicas_stay_bit_identical_and_follow_the_sum(codec, members) -> None:
    workers = replicas(members, codec)
    alone = opened(0, [4])
    for step in range(4):
        accumulate(workers, step)
        total = sum(worker.replica.gradient_sum for worker in workers)
        alone.replica.gradient_sum.copy_(total)
        applied = close_round(workers, step)
        expected, _ = alone.call(ApplyTask(step=step))
        assert len({reply.hash for reply in applied}) == 1
        tolerance = 1e-6 if codec == "fp32" else 0.01
        assert applied[0].grad_norm == pytest.approx(expected.grad_norm, rel=tolerance)
    assert relative_error(parameters(workers[0]), parameters(alone)) < 5 * tolerance
    for worker in workers:
        assert worker.replica.state_hash() == applied[0].hash
        assert not worker.replica.gradient_sum.any()
        assert not worker.replica.counted


@pytest.mark.parametrize("codec", [*CODECS, "q2"])
def test_the_sum_does_not_depend_on_who_owns_a_shard(codec) -> None:
    workers = replicas(3, codec)
    accumulate(workers, 0)
    bounds = bounds_of(workers[0], 3)
    first = contribute_and_reduce(workers, 0, 0, bounds, [0, 1, 2])
    second = contribute_and_reduce(workers, 0, 1, bounds, [2, 2, 0])
    assert first == second


@pytest.mark.parametrize("own", range(3))
@pytest.mark.parametrize("damaged", range(2))
def test_only_our_own_contribution_is_taken_unsealed(own, damaged) -> None:
    """The others' seals count for any owner of the shard: here one byte of one payload is
    changed."""
    workers = replicas(3, "s8")
    accumulate(workers, 0)
    sent = [part for (part,) in contributions(workers, 0, bounds=[0, workers[0].replica.size])]
    others = [part for member, part in enumerate(sent) if member != own]
    others[damaged] = others[damaged][:-1] + bytes([others[damaged][-1] ^ 1])
    request = reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1, 1], own=own)
    reply, _ = workers[own].call(request, *others)
    place = damaged + (damaged >= own)
    assert (reply.part, reply.parts) == (place, (place,))


@pytest.mark.parametrize("codec", ["bf16", "s8", "q4", "q3", "q2"])
def test_nothing_is_lost_over_time(codec) -> None:
    """The sums of all rounds plus all residuals equal everything accumulated."""
    workers = replicas(2, codec)
    accumulated, applied = 0, 0
    for step in range(5):
        accumulate(workers, step)
        accumulated = accumulated + sum(w.replica.gradient_sum.double() for w in workers)
        close_round(workers, step, owners=[step % 2, 1, 0])
        applied = applied + workers[0].replica.flat.gradients.double()  # the decoded sums
    residuals = sum(w.residual.double() for w in workers)
    assert relative_error(applied + residuals, accumulated) < 1e-6
    assert relative_error(applied, accumulated) > 1e-5  # so the residuals matter


@pytest.mark.parametrize("codec", [*CODECS, "q2"])
def test_a_new_attempt_starts_from_the_old_residual(codec) -> None:
    """A round that failed twice ends in the bits of a round that never failed."""
    calm, restarted = replicas(2, codec), replicas(2, codec)
    for workers in (calm, restarted):
        accumulate(workers, 0)
        close_round(workers, 0)
        accumulate(workers, 1)
    bounds = bounds_of(restarted[0], 3)
    contribute_and_reduce(restarted, 1, 0, bounds, [0, 1, 0])
    restarted[1].call(ContributeTask(step=1, attempt=1, bounds=[0, bounds[-1]]))
    assert close_round(calm, 1)[0].hash == close_round(restarted, 1, attempt=2)[0].hash
    for left, right in zip(calm, restarted, strict=True):
        assert codec == "fp32" or torch.equal(left.residual, right.residual)


def test_a_lone_replica_spends_its_residual() -> None:
    workers = replicas(2, "s8")
    accumulate(workers, 0)
    close_round(workers, 0)
    left = workers[0]
    residual = left.residual
    expected = residual.clone()
    assert expected.any()
    left.call(ApplyTask(step=1))
    assert torch.equal(left.replica.flat.gradients, expected)
    assert not residual.any()


def test_a_replica_with_nothing_to_give_follows_the_round() -> None:
    workers = replicas(3, "s8")
    accumulate(workers[:2], 0)
    bounds = bounds_of(workers[0], 2)
    sums, norms = contribute_and_reduce(workers[:2], 0, 0, bounds, [0, 1])
    request = ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms)
    assert len({worker.call(request, *sums)[0].hash for worker in workers}) == 1


def test_contributions_name_their_microbatches() -> None:
    (worker,) = replicas(1, "fp32")
    accumulate([worker], 0, per_worker=3)
    worker.call(PassTask(into="less", step=0, microbatch=1), tokens_of(1))
    size = worker.replica.size
    reply, _ = worker.call(ContributeTask(step=0, attempt=0, bounds=[0, size]))
    assert reply.counted == (0, 2)


@pytest.mark.parametrize(
    "bounds", [[], [0], [0, 5], [1, None], [0, None, 5, None], [0, 10, 5, None]]
)
def test_bounds_must_cut_the_parameters(bounds) -> None:
    (worker,) = replicas(1, "s8")
    bounds = [worker.replica.size if bound is None else bound for bound in bounds]
    assert worker.fails(ContributeTask(step=0, attempt=0, bounds=bounds)).kind == "shape"


class TestRefusals:
    """Every bad part of a round is named, and changes nothing."""

    @pytest.fixture
    def round_(self):
        workers = replicas(3, "s8")
        accumulate(workers, 0)
        bounds = bounds_of(workers[0], 3)
        return workers, bounds, contribute_and_reduce(workers, 0, 0, bounds, [0, 1, 2])

    def apply(self, bounds, norms, *, step=0, attempt=0):
        return ApplyTask(step=step, attempt=attempt, bounds=bounds, sq_norms=norms)

    def test_damaged_sums(self, round_) -> None:
        (worker, *_), bounds, (sums, norms) = round_
        before = worker.replica.state_hash(), worker.replica.gradient_sum.clone()
        for place in range(3):
            for bad in (b"", sums[place][:-1], sums[(place + 1) % 3]):
                given = [*sums[:place], bad, *sums[place + 1 :]]
                failed = worker.fails(self.apply(bounds, norms), *given)
                assert (failed.kind, failed.part) == ("codec", place)
        assert worker.replica.state_hash() == before[0]
        assert torch.equal(worker.replica.gradient_sum, before[1])
        worker.call(self.apply(bounds, norms), *sums)

    @pytest.mark.parametrize("lie", [0.0, 1e30, -1.0, float("nan"), float("inf")])
    def test_a_lie_about_a_norm(self, round_, lie) -> None:
        (worker, *_), bounds, (sums, norms) = round_
        failed = worker.fails(self.apply(bounds, [norms[0], lie, norms[2]]), *sums)
        assert (failed.kind, failed.part) == ("codec", 1)

    def test_damaged_contributions(self, round_) -> None:
        workers, bounds, _ = round_
        request = reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1, 1], own=0)
        good = workers[1].call(ContributeTask(step=0, attempt=0, bounds=bounds))[1][0]
        foreign = bytearray(good)
        foreign[SEAL_BYTES : SEAL_BYTES + 2] = b"\xff\xff"
        seal(foreign)  # an honest digest over a dishonest scale
        reply, _ = workers[0].call(request, good, bytes(foreign))
        assert (reply.part, reply.parts) == (None, (2,))
        assert workers[0].call(request, good, good)[0].parts == ()

    @pytest.mark.parametrize(("value", "place"), [(-128, 0), (-127, 0), (127, 0), (-127, 1)])
    def test_a_contribution_too_large_to_be_summed(self, round_, value, place) -> None:
        """Each number of it could be sent, except -128; but not with that of another added."""
        workers, bounds, _ = round_
        given = [parts[0] for parts in contributions(workers[1:], 0, attempt=1, bounds=bounds)]
        absurd = bytearray(given[place])
        absurd[SEAL_BYTES : SEAL_BYTES + 2] = LARGEST_SCALE
        values = SEAL_BYTES + 2
        absurd[values : values + BLOCK] = struct.pack("b", value) * BLOCK
        seal(absurd)
        given[place] = bytes(absurd)
        workers[0].replica.gradient_sum.copysign_(torch.tensor(float(value)))
        workers[0].replica.gradient_sum.mul_(1e9)
        workers[0].call(ContributeTask(step=0, attempt=1, bounds=bounds))
        request = reduce_task(step=0, attempt=1, segment=0, microbatches=[1, 1, 1], own=0)
        assert workers[0].call(request, *given)[0].parts == (place + 1,)

    def test_wrong_counts(self, round_) -> None:
        (worker, *_), bounds, (sums, norms) = round_
        assert worker.fails(self.apply(bounds, norms), *sums[:2]).kind == "shape"
        assert worker.fails(self.apply(bounds, norms[:2]), *sums).kind == "shape"
        for request in (
            reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1], own=0),
            reduce_task(step=0, attempt=0, segment=3, microbatches=[1, 1, 1], own=0),
            reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1, 1], own=3),
        ):
            assert worker.fails(request, *sums[1:]).kind == "shape"
        again = reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1, 1], own=None)
        assert worker.fails(again, *sums).kind == "stale"
        worker.call(KeepVersionTask(step=0, bounds=bounds, segment=0))
        assert worker.fails(again, *sums[:3]).message.startswith("4 payloads were expected")

    def test_stale_attempts(self, round_) -> None:
        (worker, *_), bounds, (sums, norms) = round_
        assert worker.fails(self.apply(bounds, norms, step=1), *sums).kind == "stale"
        request = reduce_task(step=0, attempt=1, segment=0, microbatches=[1, 1, 1], own=0)
        assert worker.fails(request, *sums[1:]).kind == "stale"
        moved = [0, bounds[1] + 1, *bounds[2:]]
        assert worker.fails(self.apply(moved, norms), *sums).kind == "stale"
        worker.call(self.apply(bounds, norms), *sums)


class TestOnlyTheAppliedBytesCount:
    """A replica's own accumulated gradient enters a version only through the sums."""

    @pytest.fixture
    def round_(self):
        workers = replicas(3, "s8")
        accumulate(workers, 0)
        close_round(workers, 0)  # leaves residuals behind
        accumulate(workers, 1)
        bounds = bounds_of(workers[0], 3)
        sums, norms = contribute_and_reduce(workers, 1, 0, bounds, [0, 1, 2])
        request = ApplyTask(step=1, attempt=0, bounds=bounds, sq_norms=norms)
        return workers, request, sums

    def test_work_done_after_contributing(self, round_) -> None:
        """Those microbatches are counted elsewhere, so the residual cannot be told from them."""
        (calm, busy, _), request, sums = round_
        for microbatch in (177, 178):
            busy.call(LossTask(step=1, microbatch=microbatch), tokens_of(microbatch))
        expected, _ = calm.call(request, *sums)
        assert busy.call(request, *sums)[0].hash == expected.hash
        assert calm.residual.any()
        assert not busy.residual.any()
        assert not busy.replica.gradient_sum.any()
        assert not busy.replica.counted

    def test_work_taken_out_after_contributing(self, round_) -> None:
        (calm, busy, _), request, sums = round_
        busy.call(PassTask(into="less", step=1, microbatch=110), tokens_of(110))
        expected, _ = calm.call(request, *sums)
        assert busy.call(request, *sums)[0].hash == expected.hash
        assert not busy.residual.any()

    def test_an_attempt_one_took_no_part_in(self, round_) -> None:
        """The residual of rounds before stays: it was not sent with this one."""
        (calm, apart, _), request, sums = round_
        apart.call(ContributeTask(step=1, attempt=7, bounds=request.bounds))
        kept = apart.residual.clone()
        assert kept.any()
        expected, _ = calm.call(request, *sums)
        assert apart.call(request, *sums)[0].hash == expected.hash
        assert torch.equal(apart.residual, kept)


def test_shards_of_every_size_add_up_and_may_be_empty() -> None:
    workers = replicas(2, "fp32")
    accumulate(workers, 0)
    size = workers[0].replica.size
    bounds = [0, 0, 1, 130, size - 1, size, size]
    sums, norms = contribute_and_reduce(workers, 0, 0, bounds, [0, 1, 0, 1, 0, 1])
    assert sums[0] == sums[-1] == b""
    total = sum(worker.replica.gradient_sum for worker in workers)
    request = ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms)
    seal(sealed := bytearray(SEAL_BYTES))
    workers[0].call(request, sealed, *sums[1:-1], b"of no numbers nothing is read")
    assert torch.equal(workers[0].replica.flat.gradients, total)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_absurd_contribution_counts_for_nothing(codec, steps_before) -> None:
    """1e13 is a legal number: it is held against what the stage's gradients have been."""
    workers = replicas(2, codec)
    for step in range(steps_before):
        accumulate(workers, step)
        close_round(workers, step)
    accumulate(workers, steps_before)
    workers[1].replica.gradient_sum.fill_(1e13)
    given = contributions(workers, steps_before)
    reduce = reduce_task(step=steps_before, attempt=0, segment=0, microbatches=[1, 1], own=0)
    reply, (total,) = workers[0].call(reduce, given[1][0])
    assert reply.parts == (1,)
    size = (bounds_of(workers[0], 2)[1],)
    ours = decode(given[0][0], size, codec, "average")
    assert relative_error(decode(total, size, codec, "average"), ours) < 0.02


@pytest.mark.parametrize(("loaded", "out"), [(False, (1,)), (True, ())])
def test_what_was_usual_belongs_to_the_steps_that_were_made_here(tmp_path, loaded, out) -> None:
    """Of the step before a loaded version nothing is known, and it may have been a long one."""
    workers = replicas(2, "fp32")
    accumulate(workers, 0)
    close_round(workers, 0)
    if loaded:
        path = str(tmp_path / "state")
        workers[1].call(Save(version=1, path=path, durable=False))
        workers[0].call(Load(version=1, path=path))
    accumulate(workers, 1)
    workers[1].replica.gradient_sum.mul_(1e5)
    given = contributions(workers, 1)
    reduce = reduce_task(step=1, attempt=0, segment=0, microbatches=[1, 1], own=0)
    assert workers[0].call(reduce, given[1][0])[0].parts == out


def test_a_machine_that_has_gone_wrong_spoils_its_own_sums_neither() -> None:
    """Unless the others' contributions are as long."""
    workers = replicas(3, "fp32")
    accumulate(workers, 0)
    close_round(workers, 0)
    accumulate(workers, 1)
    reduce = reduce_task(step=1, attempt=0, segment=1, microbatches=[1] * 3, own=1)
    for wrong, out in (((1,), (1,)), ((1, 2), ())):
        for member in wrong:
            workers[member].replica.gradient_sum.fill_(1e13)
        given = contributions(workers, 1)
        assert workers[1].call(reduce, given[0][1], given[2][1])[0].parts == out


@pytest.mark.parametrize("codec", CODECS)
def test_what_rounding_leaves_of_ours_is_no_measure_of_a_first_contribution(codec) -> None:
    """All of ours is counted for others and was taken out again: next to nothing stays."""
    workers = replicas(2, codec)
    accumulate(workers, 0)
    workers[0].replica.counted.clear()
    workers[0].replica.gradient_sum.fill_(1e-7)
    given = contributions(workers, 0)
    reduce = reduce_task(step=0, attempt=0, segment=0, microbatches=[1, 1], own=0)
    workers[0].call(reduce, given[1][0])


def test_an_absurd_sum_is_refused_as_its_owners() -> None:
    workers = replicas(2, "fp32")
    accumulate(workers, 0)
    close_round(workers, 0)
    accumulate(workers, 1)
    contributions(workers, 1)
    start, end = bounds_of(workers[0], 2)[1:]
    numbers = torch.full((end - start,), 1e13)
    total = bytes(workers[1].replica.wire.segment_out(numbers))
    task = decode_task(1, squared_norm(numbers), step=1)
    assert "absurd" in workers[0].fails(task, total).message


def test_several_absurd_contributions_are_left_out() -> None:
    workers = replicas(4, "fp32")
    accumulate(workers, 0)
    for liar in (1, 3):
        workers[liar].replica.gradient_sum.fill_(1e13)
    given = contributions(workers, 0)
    reduce = reduce_task(step=0, attempt=0, segment=0, microbatches=[1] * 4, own=0)
    assert workers[0].call(reduce, *(parts[0] for parts in given[1:]))[0].parts == (1, 3)


@pytest.mark.parametrize(
    ("distance", "norm", "apart"), [(1.0, 2.0, 0.5), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf)]
)
def test_nothing_is_as_near_to_nothing_as_it_can_be(distance, norm, apart) -> None:
    """Or an audit of a gradient of zero would convict whoever has sent it."""
    assert relative(distance, norm) == apart


class TestDecodedAhead:
    """Sums are checked as they come, and `Apply` finds their numbers."""

    @pytest.fixture(params=CODECS)
    def round_(self, request):
        workers = replicas(2, request.param)
        accumulate(workers, 0)
        bounds = bounds_of(workers[0], 4)
        sums, norms = contribute_and_reduce(workers, 0, 0, bounds, [0, 1, 1, 0])
        return workers, bounds, sums, norms

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
        early.call(decode_task(1, norms[1]), sums[1])
        sizes = [end - start for start, end in pairwise(bounds)]
        assert counted == [sizes[1]]
        applied, _ = early.call(self.apply(bounds, norms), *sums)
        assert counted == [sizes[1], sizes[2]], "0 and 3 are its own"
        assert late.call(self.apply(bounds, norms), *sums)[0].hash == applied.hash

    @pytest.mark.parametrize("other", ["pass", "contribute", "subtract"])
    def test_what_used_the_scratch_since_does_not_enter_the_version(self, round_, other) -> None:
        (busy, calm), bounds, sums, norms = round_
        for segment in (1, 2):
            busy.call(decode_task(segment, norms[segment]), sums[segment])
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
        worker.call(decode_task(1, norms[1]), sums[1])
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
            failed = worker.fails(decode_task(1, norm), bad)
            assert (failed.kind, failed.part) == ("codec", 0)
        assert torch.equal(worker.replica.gradient_sum, before)
        worker.call(decode_task(1, norms[1]), sums[1])
        worker.call(self.apply(bounds, norms), *sums)

    def test_of_another_attempt_step_or_segment(self, round_) -> None:
        (worker, _), _, sums, norms = round_
        assert worker.fails(decode_task(1, norms[1], attempt=1), sums[1]).kind == "stale"
        assert worker.fails(decode_task(1, norms[1], step=1), sums[1]).kind == "stale"
        for segment, given in ((4, sums[:1]), (1, sums[:2]), (1, [])):
            assert worker.fails(decode_task(segment, norms[1]), *given).kind == "shape"
