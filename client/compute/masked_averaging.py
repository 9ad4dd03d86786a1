"""Averaging where no replica sees another's contribution, only the sum (`protocol/secrecy`).

As `averaging`, but contributions are integers modulo 2^16 behind masks: those that pairs of members
share cancel in the sum, and the members' own ones are taken out with the seeds that come with
`Apply`. State: as `averaging`, and the contribution before its masks, for its residual.

A contribution cannot be judged, and a sum only by its size, which the integers bound.

Shapes: as in `averaging`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from client.compute.averaging import Averager, Payloads, checked_bounds
from client.compute.errors import ShapeError, blame
from client.compute.masks import Integers, add_mask
from client.compute.payload import (
    Buffer,
    Header,
    check_seal,
    read_header,
    seal,
    sealed_digest,
    write_header,
)
from client.compute.public_scale import BLOCK, exponents, to_integers, to_numbers
from client.compute.replica import Replica
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.optimizer import OPTIMIZERS
from protocol.pipeline.effects import ApplyTask, ContributeTask, DecodeTask, Outcome, ReduceTask

LEAST_MEMBERS = 3
_CODEC: Final = "ring16"


def new_averager(replica: Replica, rule: str) -> Averager:
    """Return the averaging side of a replica."""
    return MaskedAverager(replica, rule) if RULES[rule].secret else Averager(replica, rule)


class MaskedAverager(Averager):
    """See the module's docstring."""

    def __init__(self, replica: Replica, rule: str) -> None:
        super().__init__(replica, rule)
        self._clear: list[Tensor] = []  # int16, by segment of the attempt
        self._scale = torch.empty(0)

    def contribute(self, task: ContributeTask) -> tuple[Outcome, list[memoryview]]:
        """Mask gradient sum plus residual, segment by segment."""
        replica, masks = self._replica, task.masks
        replica.at(task.step)
        bounds = _blocks(checked_bounds(task.bounds, replica.size))
        if len(masks) < LEAST_MEMBERS:
            raise ShapeError(f"{len(masks)} masks hide nothing")
        self._attempt, self._clear = None, []
        members = len(masks)
        self._scale = self._public_scale(members)
        sent = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            numbers = self._with_residual(a, b).cpu()
            integers = to_integers(numbers, _of(self._scale, a, b), members)
            self._clear.append(integers)
            masked = integers.numpy().astype("<u2")
            for seed, adds in masks:
                add_mask(masked, seed, number, subtract=not adds)
            sent.append(_payload(masked))
        self._begin(task.attempt, bounds, sent)
        return Outcome(counted=tuple(sorted(replica.counted))), sent

    def reduce(self, task: ReduceTask, payloads: Payloads) -> tuple[Outcome, list[memoryview]]:
        """Add one segment's contributions up, masked as they are."""
        attempt = self._current(task.step, task.attempt)
        parts = self._parts(attempt, task, payloads)
        a, b = attempt.bounds[task.segment : task.segment + 2]
        total = np.zeros(b - a, "<u2")
        for place, payload in parts:
            total += _body(payload, b - a, place)
        payload = _payload(total)
        return Outcome(digests=(sealed_digest(payload),)), [payload]

    def decode_sum(self, task: DecodeTask, payloads: Payloads) -> Outcome:
        """Check that a broadcast sum is one; its numbers are known only when it is opened."""
        attempt = self._current(task.step, task.attempt)
        if task.segment >= len(attempt.sent) or len(payloads) != 1:
            raise ShapeError(f"no segment {task.segment}, or not one sum of it")
        a, b = attempt.bounds[task.segment : task.segment + 2]
        _body(payloads[0], b - a, 0)
        return Outcome()

    def apply(self, task: ApplyTask, payloads: Payloads) -> Outcome:
        """Open the sums with the members' seeds, and make the next version of them."""
        replica, members = self._replica, len(task.seeds)
        replica.at(task.step)
        bounds = _blocks(checked_bounds(task.bounds, replica.size))
        if members < LEAST_MEMBERS or len(payloads) != len(bounds) - 1:
            raise ShapeError(f"{members} seeds and {len(payloads)} sums do not open a step")
        attempt = self._contribution(task, bounds)
        scale = self._public_scale(members)
        squares = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            opened = _opened(payloads[number], task.seeds, number, b - a)
            squares.append(self._open(opened, scale, a, b))
        if attempt is not None:
            self._keep_the_rest(bounds)
        self._clear = []
        return self._update(replica.flat.gradients, sum(squares), task.rate)

    def _open(self, integers: Tensor, scale: Tensor, a: int, b: int) -> float:
        """Decode a segment's sum into scratch; return its squared norm."""
        if a == b:
            return 0.0
        scratch = self._replica.flat.gradients[a:b]
        on_cpu = scratch.device.type == "cpu"
        numbers = scratch if on_cpu else torch.empty(b - a)
        square = to_numbers(integers, _of(scale, a, b), numbers)
        if not on_cpu:
            scratch.copy_(numbers)
        return square

    def _keep_the_rest(self, bounds: Sequence[int]) -> None:
        """residual <- residual + gradient sum - contribution."""
        if self._residual is None:
            return
        for integers, (a, b) in zip(self._clear, pairwise(bounds), strict=True):
            if a < b:
                sent = torch.empty(b - a)
                to_numbers(integers, _of(self._scale, a, b), sent)
                residual = self._residual[a:b].add_(self._replica.gradient_sum[a:b])
                residual.sub_(sent.to(residual.device))

    def _public_scale(self, members: int) -> Tensor:
        optimizer = self._replica.optimizer
        kept = dict(zip(OPTIMIZERS[optimizer.spec.name].vectors, optimizer.vectors, strict=True))
        moment, beta2 = kept["second_moment"], optimizer.spec.beta2
        return exponents(moment, optimizer.steps_done, beta2, self._replica.step_tokens, members)


def _opened(payload: Buffer, seeds: Sequence[bytes], segment: int, size: int) -> Tensor:
    """The sum of a segment without the members' own masks, (n,) int16."""
    total = _body(payload, size, segment).copy()
    for seed in filter(None, seeds):
        add_mask(total, seed, segment, subtract=True)
    return torch.from_numpy(total.astype(np.uint16).view(np.int16))


def _blocks(bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Bounds that cut no block.

    Raises:
        ShapeError: they do.
    """
    if any(bound % BLOCK for bound in bounds[:-1] if bound != bounds[-1]):
        raise ShapeError("segment bounds cut a block")
    return bounds


def _of(scale: Tensor, a: int, b: int) -> Tensor:
    return scale[a // BLOCK : -(-b // BLOCK)]


def _payload(integers: Integers) -> memoryview:
    """A sealed payload of integers; empty if there are none."""
    if not len(integers):
        return memoryview(b"")
    header = Header(_CODEC, "average", (len(integers),))
    payload = memoryview(bytearray(header.size_bytes))
    write_header(payload, header)
    np.frombuffer(payload, "<u2", offset=header.body_start)[:] = integers
    seal(payload)
    return payload


def _body(payload: Buffer, size: int, part: int | None) -> Integers:
    """The integers of a payload; `part` is blamed if it has none (None: it is our own).

    Raises:
        CodecError: it is no such payload.
    """
    if size == 0 and len(payload) == 0:
        return np.empty(0, "<u2")
    with blame(-1 if part is None else part):
        if part is not None:
            check_seal(payload)
        header = read_header(payload, (size,), _CODEC, "average")
    return np.frombuffer(payload, "<u2", offset=header.body_start)
