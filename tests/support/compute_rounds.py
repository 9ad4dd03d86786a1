"""Rounds between executors, by hand: the accumulating, contributing and summing replicas."""

from protocol.pipeline.effects import (
    ApplyTask,
    ContributeTask,
    DecodeTask,
    LossTask,
    PayloadKey,
    ReduceTask,
)
from tests.support.compute_stages import opened, tokens_of

CODECS = ["fp32", "bf16", "s8"]


def reduce_task(*, step, attempt, segment, microbatches, own):
    """Sum a segment of members of whom we, whose id is empty, are one; None: audit its sum."""
    peers = ["" if place == own else f"peer {place}" for place in range(len(microbatches))]
    parts = tuple(PayloadKey(step, "segment", segment, attempt, peer) for peer in peers)
    sent = PayloadKey(step, "reduced", segment, attempt) if own is None else None
    return ReduceTask(step, attempt, segment, parts, tuple(microbatches), sent)


def decode_task(*, step, attempt, segment, squared_norm):
    """Decode the sum of a segment, as its owner broadcast it."""
    key = PayloadKey(step, "reduced", segment, attempt)
    return DecodeTask(step, attempt, segment, key, squared_norm)


def replicas(count, averaging):
    return [opened(0, [4], averaging=averaging) for _ in range(count)]


def accumulate(workers, step, *, per_worker=2):
    for index, worker in enumerate(workers):
        for n in range(per_worker):
            microbatch = 100 * step + 10 * index + n
            worker.call(LossTask(step, microbatch), tokens_of(microbatch))


def bounds_of(worker, segments):
    size = worker.replica.size
    return [
        0,
        *sorted((size * (k * k + 1)) // (segments * segments) for k in range(1, segments)),
        size,
    ]


def contributions(workers, step, *, attempt=0, bounds=None):
    """What each member sends, by segment; of as many segments as members unless they are given."""
    bounds = bounds or bounds_of(workers[0], len(workers))
    request = ContributeTask(step=step, attempt=attempt, bounds=bounds)
    return [worker.call(request)[1] for worker in workers]


def summed(workers, sent, step, attempt, owners, microbatches):
    """The sums of what the members have sent, by the owners of the segments, and their squared
    norms."""
    sums, norms = [], []
    for segment, owner in enumerate(owners):
        others = [parts[segment] for member, parts in enumerate(sent) if member != owner]
        request = reduce_task(
            step=step, attempt=attempt, segment=segment, microbatches=microbatches, own=owner
        )
        reply, (payload,) = workers[owner].call(request, *others)
        sums.append(payload)
        norms.append(reply.sq_norm)
    return sums, norms


def contribute_and_reduce(workers, step, attempt, bounds, owners):
    """Contributions of all members, the segments' sums and their squared norms."""
    sent = contributions(workers, step, attempt=attempt, bounds=bounds)
    microbatches = [max(1, len(worker.replica.counted)) for worker in workers]
    return summed(workers, sent, step, attempt, owners, microbatches)


def close_round(workers, step, *, owners=None, attempt=0):
    """A whole round, in which each owns a segment unless ``owners`` says otherwise; the replies."""
    owners = list(range(len(workers))) if owners is None else owners
    bounds = bounds_of(workers[0], len(owners))
    sums, norms = contribute_and_reduce(workers, step, attempt, bounds, owners)
    request = ApplyTask(step=step, attempt=attempt, bounds=bounds, sq_norms=norms)
    return [worker.call(request, *sums)[0] for worker in workers]
