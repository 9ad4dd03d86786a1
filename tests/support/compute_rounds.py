"""Rounds between executors, by hand: the accumulating, contributing and summing replicas."""

from client.compute.requests import Contribute, ForwardBackward, Reduce
from tests.support.compute_stages import opened, tokens_of

CODECS = ["fp32", "bf16", "s8"]


def replicas(count, averaging):
    return [opened(0, [4], averaging=averaging) for _ in range(count)]


def accumulate(workers, step, *, per_worker=2):
    for index, worker in enumerate(workers):
        for n in range(per_worker):
            microbatch = 100 * step + 10 * index + n
            request = ForwardBackward(
                step=step, microbatch=microbatch, tokens=tokens_of(microbatch)
            )
            worker.call(request)


def bounds_of(worker, segments):
    size = worker.replica.size
    return [
        0,
        *sorted((size * (k * k + 1)) // (segments * segments) for k in range(1, segments)),
        size,
    ]


def contribute_and_reduce(workers, step, attempt, bounds, owners):
    """Contributions of all members, the segments' sums and their squared norms."""
    request = Contribute(step=step, attempt=attempt, bounds=bounds)
    sent = [worker.call(request)[1] for worker in workers]
    sums, norms = [], []
    for segment, owner in enumerate(owners):
        others = [parts[segment] for member, parts in enumerate(sent) if member != owner]
        request = Reduce(
            step=step,
            attempt=attempt,
            segment=segment,
            microbatches=[max(1, len(worker.replica.counted)) for worker in workers],
            own=owner,
        )
        reply, (payload,) = workers[owner].call(request, *others)
        sums.append(payload)
        norms.append(reply.squared_norm)
    return sums, norms
