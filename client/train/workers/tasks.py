"""Translates a seat's tasks into the worker's requests and payloads, and its replies back.

Pure translation; the only state is the run's constants (who we are, where the stage stands).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client.compute.payload import sealed_digest
from client.compute.replies import (
    Applied,
    ContributionCompared,
    Evaluated,
    Hashed,
    LossComputed,
    Recomputed,
    Reduced,
    Reply,
    SumCompared,
    UsualNormTold,
)
from client.compute.requests import (
    Apply,
    ApplyLocal,
    Backward,
    CompareContribution,
    Contribute,
    DecodeSum,
    Evaluate,
    Forward,
    ForwardBackward,
    HashVersion,
    KeepVersion,
    Recompute,
    Reduce,
    Request,
    Subtract,
    SumAgain,
    UsualNorm,
)
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    ApplyLocalTask,
    ApplyTask,
    BackwardTask,
    CompareTask,
    ContributeTask,
    DecodeTask,
    EvaluateTask,
    ForwardTask,
    HashTask,
    KeepVersionTask,
    LossTask,
    Outcome,
    PayloadKey,
    RecomputeTask,
    ReduceTask,
    SubtractTask,
    SumAgainTask,
    Task,
    UsualNormTask,
    held_out_key,
)

Sources = tuple[PayloadKey | None, ...]
"""Payloads of a request by key; None stands for an empty one."""


@dataclass(frozen=True, slots=True)
class SeatConstants:
    """The constants of a seat that its requests need."""

    me: PeerId
    first: bool
    last: bool
    tokens_per_step: int
    tokens_everywhere: bool = False
    """Whether every stage needs the tokens, as `Manifest` says it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, the payloads it takes and the keys under which its answer's are stored."""

    request: Request[Any]
    sources: Sources = ()
    tokens: PayloadKey | None = None
    """Goes into the request's ``tokens`` field."""
    results: tuple[PayloadKey, ...] = ()


def to_call(task: Task, place: SeatConstants) -> Call:
    """Translate a task."""
    match task:
        case ForwardTask():
            return _forward(task, place)
        case LossTask(step, m):
            request = ForwardBackward(step=step, microbatch=m, tokens=b"")
            if place.first:
                return Call(request)
            return Call(
                request,
                sources=(PayloadKey(step, "input", m),),
                tokens=PayloadKey(step, "tokens", m),
                results=(PayloadKey(step, "grad_out", m),),
            )
        case BackwardTask(step, m):
            inputs: Sources = () if place.first else (PayloadKey(step, "input", m),)
            results = () if place.first else (PayloadKey(step, "grad_out", m),)
            sources = (PayloadKey(step, "grad_in", m), *inputs)
            tokens = _tokens(step, m, place)
            return Call(Backward(step=step, microbatch=m), sources, tokens, results)
        case SubtractTask():
            return _subtract(task, place)
        case EvaluateTask():
            return _evaluate(task, place)
        case KeepVersionTask(step):
            return Call(KeepVersion(step=step))
        case HashTask(step):
            return Call(HashVersion(version=step))
        case RecomputeTask(step, m, shown):
            tokens = next((key for key in shown if key.name == "tokens"), None)
            tensors = tuple(key for key in shown if key.name != "tokens")
            return Call(Recompute(step=step, microbatch=m), tensors, tokens=tokens)
        case CompareTask(step, _, bounds, segments):
            return Call(CompareContribution(step=step, bounds=list(bounds)), segments)
        case UsualNormTask(step, bounds, segment):
            return Call(UsualNorm(step=step, bounds=list(bounds), segment=segment))
        case SumAgainTask(step, _, parts, size, microbatches, usual, reduced):
            again = SumAgain(step=step, size=size, microbatches=list(microbatches), usual=usual)
            return Call(again, (*parts, reduced))
        case _:
            return _round_call(task, place)


def _forward(task: ForwardTask, place: SeatConstants) -> Call:
    step, m = task.step, task.microbatch
    request = Forward(step=step, microbatch=m)
    output = PayloadKey(step, "output", m)
    if place.first:
        return Call(request, results=(output, PayloadKey(step, "tokens", m)))
    return Call(request, (PayloadKey(step, "input", m),), _tokens(step, m, place), (output,))


def _tokens(step: int, microbatch: int, place: SeatConstants) -> PayloadKey | None:
    """Return the tokens that a stage between the first and the last needs, if it does."""
    needed = place.tokens_everywhere and not place.first
    return PayloadKey(step, "tokens", microbatch) if needed else None


def _evaluate(task: EvaluateTask, place: SeatConstants) -> Call:
    request = Evaluate(version=task.step, microbatch=task.microbatch)
    tokens = held_out_key(task.step, "tokens", task.item)
    output = held_out_key(task.step, "output", task.item)
    sources: Sources = () if place.first else (held_out_key(task.step, "input", task.item),)
    if place.last:
        return Call(request, sources, tokens=None if place.first else tokens)
    if place.first:
        return Call(request, sources, results=(output, tokens))
    return Call(request, sources, tokens if place.tokens_everywhere else None, (output,))


def _subtract(task: SubtractTask, place: SeatConstants) -> Call:
    step, m = task.step, task.microbatch
    request = Subtract(step=step, microbatch=m)
    own_input: Sources = () if place.first else (PayloadKey(step, "input", m),)
    if place.last:
        tokens = None if place.first else PayloadKey(step, "tokens", m)
        return Call(request, own_input, tokens=tokens)
    return Call(request, (PayloadKey(step, "grad_in", m), *own_input), _tokens(step, m, place))


def _round_call(
    task: ContributeTask | ReduceTask | DecodeTask | ApplyTask | ApplyLocalTask,
    place: SeatConstants,
) -> Call:
    match task:
        case ContributeTask(step, attempt, bounds, masks, buckets):
            segments = tuple(
                PayloadKey(step, "segment", i, attempt, place.me) for i in range(len(bounds) - 1)
            )
            request = Contribute(
                step=step,
                attempt=attempt,
                bounds=list(bounds),
                masks=list(masks),
                tokens=place.tokens_per_step,
                buckets=list(buckets),
            )
            return Call(request, results=segments)
        case ReduceTask(step, attempt, segment, parts, _, microbatches, buckets):
            own = next(i for i, key in enumerate(parts) if key.peer == place.me)
            reduce = Reduce(
                step=step,
                attempt=attempt,
                segment=segment,
                microbatches=list(microbatches),
                own=own,
                buckets=list(buckets),
            )
            others = tuple(key for key in parts if key.peer != place.me)
            result = PayloadKey(step, "reduced", segment, attempt, place.me)
            return Call(reduce, others, results=(result,))
        case DecodeTask(step, attempt, segment, reduced, sq_norm):
            decode = DecodeSum(step=step, attempt=attempt, segment=segment, squared_norm=sq_norm)
            return Call(decode, (reduced,))
        case ApplyTask(step, attempt, bounds, sums, sq_norms, seeds, rate, buckets, microbatches):
            apply = Apply(
                step=step,
                attempt=attempt,
                bounds=list(bounds),
                squared_norms=list(sq_norms),
                tokens=place.tokens_per_step,
                seeds=list(seeds),
                learning_rate=rate,
                buckets=list(buckets),
                microbatches=list(microbatches),
            )
            return Call(apply, sums)
        case ApplyLocalTask(step, rate):
            local = ApplyLocal(step=step, tokens=place.tokens_per_step, learning_rate=rate)
            return Call(local)


def to_outcome(reply: Reply, payloads: Sequence[bytes]) -> Outcome:
    """Translate a reply."""
    match reply:
        case LossComputed() | Evaluated():
            return Outcome(loss_sum=reply.loss_sum, seconds=reply.seconds)
        case Reduced():
            digests = tuple(map(sealed_digest, payloads))
            return Outcome(sq_norm=reply.squared_norm, digests=digests, seconds=reply.seconds)
        case Applied():
            return Outcome(hash=reply.hash, grad_norm=reply.grad_norm, seconds=reply.seconds)
        case Hashed():
            return Outcome(hash=reply.hash)
        case Recomputed():
            return Outcome(apart=(reply.activation, reply.gradient), seconds=reply.seconds)
        case ContributionCompared():
            return Outcome(apart=(reply.deviation, reply.along), seconds=reply.seconds)
        case UsualNormTold():
            return Outcome(sq_norm=reply.norm, seconds=reply.seconds)
        case SumCompared():
            return Outcome(apart=(reply.deviation, 0.0), seconds=reply.seconds)
        case _:
            return Outcome(seconds=reply.seconds)


def payload_digest(payload: bytes) -> bytes:
    """Return the BLAKE2b-256 of a payload, as transfers compare it."""
    return hashlib.blake2b(payload, digest_size=32).digest()
