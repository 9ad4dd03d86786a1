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
    Hashed,
    LossComputed,
    Passed,
    Reduced,
    Reply,
)
from client.compute.requests import (
    Apply,
    Backward,
    CompareContribution,
    Contribute,
    DecodeSum,
    Forward,
    ForwardBackward,
    HashVersion,
    KeepVersion,
    Pass,
    Reduce,
    Request,
)
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    CompareTask,
    ContributeTask,
    DecodeTask,
    ForwardTask,
    HashTask,
    KeepVersionTask,
    LossTask,
    Outcome,
    PassTask,
    PayloadKey,
    ReduceTask,
    Task,
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
        case ForwardTask(step, m):
            return _onwards(Forward(step=step, microbatch=m), place)
        case LossTask(step, m):
            request = ForwardBackward(step=step, microbatch=m, tokens=b"")
            results = () if place.first else (PayloadKey(step, "grad_out", m),)
            return Call(request, _input(step, m, place), _tokens(step, m, place), results)
        case BackwardTask(step, m):
            results = () if place.first else (PayloadKey(step, "grad_out", m),)
            sources = (PayloadKey(step, "grad_in", m), *_input(step, m, place))
            tokens = _tokens(step, m, place)
            return Call(Backward(step=step, microbatch=m), sources, tokens, results)
        case PassTask():
            return _pass(task, place)
        case KeepVersionTask(step, bounds, segment):
            return Call(KeepVersion(step=step, bounds=list(bounds), segment=segment))
        case HashTask(step):
            return Call(HashVersion(version=step))
        case CompareTask(step, bounds, segments):
            return Call(CompareContribution(step=step, bounds=list(bounds)), segments)
        case _:
            return _round_call(task, place)


def _pass(task: PassTask, place: SeatConstants) -> Call:
    step, m = task.step, task.microbatch
    request = Pass(step=step, microbatch=m, into=task.into)
    if task.into == "loss":
        return _onwards(request, place)
    if task.into == "audit":
        shown = [key for key in task.shown if key.name != "tokens"]
        tokens = next((key for key in task.shown if key.name == "tokens"), None)
        return Call(request, tuple(shown), tokens)
    sent: Sources = () if place.last else (PayloadKey(step, "grad_in", m),)
    return Call(request, (*sent, *_input(step, m, place)), _tokens(step, m, place))


def _onwards(request: Forward | Pass, place: SeatConstants) -> Call:
    """Run a microbatch forward, to the next stage or to its loss."""
    step, m = request.step, request.microbatch
    sent: tuple[PayloadKey, ...] = () if place.last else (PayloadKey(step, "output", m),)
    if place.first and not place.last:
        sent = (*sent, PayloadKey(step, "tokens", m))
    return Call(request, _input(step, m, place), _tokens(step, m, place), sent)


def _input(step: int, microbatch: int, place: SeatConstants) -> Sources:
    """Return what comes from the stage before; the first one reads samples."""
    return () if place.first else (PayloadKey(step, "input", microbatch),)


def _tokens(step: int, microbatch: int, place: SeatConstants) -> PayloadKey | None:
    """Return the tokens of a microbatch, where a stage needs them and does not read samples."""
    needed = (place.last or place.tokens_everywhere) and not place.first
    return PayloadKey(step, "tokens", microbatch) if needed else None


def _round_call(
    task: ContributeTask | ReduceTask | DecodeTask | ApplyTask,
    place: SeatConstants,
) -> Call:
    match task:
        case ContributeTask(step, attempt, bounds, masks):
            segments = tuple(
                PayloadKey(step, "segment", i, attempt, place.me) for i in range(len(bounds) - 1)
            )
            request = Contribute(
                step=step,
                attempt=attempt,
                bounds=list(bounds),
                masks=list(masks),
                tokens=place.tokens_per_step,
            )
            return Call(request, results=segments)
        case ReduceTask(step, attempt, segment, parts, _, microbatches, compare_to):
            own = next(i for i, key in enumerate(parts) if key.peer == place.me)
            reduce = Reduce(
                step=step,
                attempt=attempt,
                segment=segment,
                microbatches=list(microbatches),
                own=None if compare_to else own,
            )
            if compare_to:
                return Call(reduce, (*parts, compare_to))
            others = tuple(key for key in parts if key.peer != place.me)
            result = PayloadKey(step, "reduced", segment, attempt, place.me)
            return Call(reduce, others, results=(result,))
        case DecodeTask(step, attempt, segment, reduced, sq_norm):
            decode = DecodeSum(step=step, attempt=attempt, segment=segment, squared_norm=sq_norm)
            return Call(decode, (reduced,))
        case ApplyTask(step, attempt, bounds, sums, sq_norms, seeds, rate):
            apply = Apply(
                step=step,
                attempt=attempt,
                bounds=list(bounds),
                squared_norms=list(sq_norms),
                tokens=place.tokens_per_step,
                seeds=list(seeds),
                learning_rate=rate,
            )
            return Call(apply, sums)


def to_outcome(reply: Reply, payloads: Sequence[bytes]) -> Outcome:
    """Translate a reply."""
    match reply:
        case LossComputed():
            return Outcome(loss_sum=reply.loss_sum, seconds=reply.seconds)
        case Passed():
            apart = reply.activation, reply.gradient
            return Outcome(loss_sum=reply.loss_sum, apart=apart, seconds=reply.seconds)
        case Reduced():
            digests = tuple(map(sealed_digest, payloads))
            apart = reply.deviation, 0.0
            return Outcome(
                "", None, (), 0.0, reply.squared_norm, digests, apart=apart, seconds=reply.seconds
            )
        case Applied():
            return Outcome(hash=reply.hash, grad_norm=reply.grad_norm, seconds=reply.seconds)
        case Hashed():
            return Outcome(hash=reply.hash)
        case ContributionCompared():
            return Outcome(apart=(reply.deviation, reply.along), seconds=reply.seconds)
        case _:
            return Outcome(seconds=reply.seconds)


def payload_digest(payload: bytes) -> bytes:
    """Return the BLAKE2b-256 of a payload, as transfers compare it."""
    return hashlib.blake2b(payload, digest_size=32).digest()
