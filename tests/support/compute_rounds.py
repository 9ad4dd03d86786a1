"""Rounds between executors, by hand: the accumulating, contributing and summing replicas."""

from protocol.pipeline.effects import (
    ApplyTask,
    ContributeTask,
    DecodeTask,
    LossTask,
    PayloadKey,
    ReduceTask,
)
from protocol.rounds.stretch import stretch
from tests.support.compute_stages import opened, tokens_of

CODECS = ["fp32", "bf16", "s8"]


def reduce_task(*, step, attempt, segment, microbatches, own):
    """Sum a segment of members of whom we, whose id is empty, are one; None: audit its sum."""
    peers = ["" if place == own else f"peer {place}" for place in range(len(microbatches))]
    parts = tuple(PayloadKey(step, "segment", segment, attempt, peer) for peer in peers)
    sent = PayloadKey(step, "reduced", segment, attempt) if own is None else None
    return ReduceTask(step, attempt, segment, parts, tuple(microbatches), sent)


def decode_task(segment, squared_norm, *, step=0, attempt=0):
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
    """The sums of what the members have sent, by the owners of the segments, their squared norms,
    and how far a local round is stretched."""
    sums, replies = [], []
    for segment, owner in enumerate(owners):
        others = [parts[segment] for member, parts in enumerate(sent) if member != owner]
        request = reduce_task(
            step=step, attempt=attempt, segment=segment, microbatches=microbatches, own=owner
        )
        reply, (payload,) = workers[owner].call(request, *others)
        sums.append(payload)
        replies.append(reply)
    norms = [reply.sq_norm for reply in replies]
    own = sum(reply.own_sq_norm for reply in replies)
    return sums, norms, stretch(microbatches, sum(norms), own)


def contribute_and_reduce(workers, step, attempt, bounds, owners):
    """Contributions of all members, the segments' sums and their squared norms."""
    sums, norms, _ = _reduced(workers, step, attempt, bounds, owners)
    return sums, norms


def _reduced(workers, step, attempt, bounds, owners):
    sent = contributions(workers, step, attempt=attempt, bounds=bounds)
    microbatches = [max(1, len(worker.replica.counted)) for worker in workers]
    return summed(workers, sent, step, attempt, owners, microbatches)


def close_round(workers, step, *, owners=None, attempt=0, stretched=True):
    """A whole round, in which each owns a segment unless ``owners`` says otherwise; the replies.
    A local round goes by the mean itself if it is not ``stretched``."""
    owners = list(range(len(workers))) if owners is None else owners
    bounds = bounds_of(workers[0], len(owners))
    sums, norms, further = _reduced(workers, step, attempt, bounds, owners)
    how = {"sq_norms": norms, "stretch": further if stretched else 1.0}
    request = ApplyTask(step, attempt, bounds, **how)
    return [worker.call(request, *sums)[0] for worker in workers]
