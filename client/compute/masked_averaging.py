"""Averaging where no replica sees another's contribution, only the sum (`protocol/secrecy`).

As `averaging`, but contributions are integers modulo 2^16 behind masks: those that pairs of members
share cancel in the sum, and the members' own ones are taken out with the seeds that come with
`Apply`. State: as `averaging`, and the contribution before its masks, for its residual.

A contribution cannot be judged, and a sum only by its size, which the integers bound. Where the
members are in buckets, a segment has the sum of each, and these are compared once they are opened
(`bucket_clipping`).

Shapes: as in `averaging`; B buckets, 1 without any.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from client.compute.averaging import Averager, Payloads, checked_bounds
from client.compute.bucket_clipping import clipped_sum
from client.compute.errors import ShapeError, blame
from client.compute.masks import Integers, add_mask
from client.compute.payload import Buffer, Header, check_seal, read_header, seal, write_header
from client.compute.public_scale import BLOCK, exponents, to_integers, to_numbers
from client.compute.replica import Replica
from client.compute.replies import Applied, Contributed, Reduced, SumDecoded
from client.compute.requests import Apply, Contribute, DecodeSum, Reduce
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.optimizer import OPTIMIZERS

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
        self._sums = 1  # of a segment of the attempt

    def contribute(self, request: Contribute) -> tuple[Contributed, list[memoryview]]:
        """Mask gradient sum plus residual, segment by segment."""
        replica, masks = self._replica, request.masks
        replica.at(request.step)
        bounds = _blocks(checked_bounds(request.bounds, replica.size))
        if len(masks) < LEAST_MEMBERS or not request.tokens:
            raise ShapeError(f"{len(masks)} masks hide nothing")
        self._attempt, self._clear = None, []
        self._sums, members = _sums_of(request.buckets or [0] * len(masks))
        self._scale = self._public_scale(request.tokens, members)
        sent = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            numbers = self._with_residual(a, b).cpu()
            integers = to_integers(numbers, _of(self._scale, a, b), members)
            self._clear.append(integers)
            masked = integers.numpy().astype("<u2")
            for seed, adds in masks:
                add_mask(masked, seed, number, subtract=not adds)
            sent.append(_payload(masked))
        self._begin(request.attempt, bounds, sent)
        return Contributed(microbatches=sorted(replica.counted)), sent

    def reduce(self, request: Reduce, payloads: Payloads) -> tuple[Reduced, list[memoryview]]:
        """Add one segment's contributions up by buckets, masked as they are."""
        attempt = self._current(request.step, request.attempt)
        parts = self._parts(attempt, request, payloads)
        a, b = attempt.bounds[request.segment : request.segment + 2]
        buckets = request.buckets or [0] * len(parts)
        total = np.zeros((_sums_of(buckets)[0], b - a), "<u2")
        for bucket, (place, payload) in zip(buckets, parts, strict=True):
            total[bucket] += _body(payload, b - a, place)
        return Reduced(squared_norm=0.0), [_payload(total.ravel())]

    def decode_sum(self, request: DecodeSum, payloads: Payloads) -> SumDecoded:
        """Check that a broadcast sum is one; its numbers are known only when it is opened."""
        attempt = self._current(request.step, request.attempt)
        if request.segment >= len(attempt.sent) or len(payloads) != 1:
            raise ShapeError(f"no segment {request.segment}, or not one sum of it")
        a, b = attempt.bounds[request.segment : request.segment + 2]
        _body(payloads[0], self._sums * (b - a), 0)
        return SumDecoded()

    def apply(self, request: Apply, payloads: Payloads) -> Applied:
        """Open the sums with the members' seeds, and make the next version of them."""
        replica, members = self._replica, len(request.seeds)
        replica.at(request.step)
        bounds = _blocks(checked_bounds(request.bounds, replica.size))
        if members < LEAST_MEMBERS or len(payloads) != len(bounds) - 1:
            raise ShapeError(f"{members} seeds and {len(payloads)} sums do not open a step")
        attempt = self._contribution(request, bounds)
        scale = self._public_scale(request.tokens, _sums_of(request.buckets or [0] * members)[1])
        squares = []
        for number, (a, b) in enumerate(pairwise(bounds)):
            opened = _opened(payloads[number], request, number, b - a)
            squares.append(self._open(_added(opened, request, _of(scale, a, b)), scale, a, b))
        if attempt is not None:
            self._keep_the_rest(bounds)
        self._clear = []
        rate = request.learning_rate
        return self._update(replica.flat.gradients, sum(squares), request.tokens, rate)

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

    def _public_scale(self, tokens: int, members: int) -> Tensor:
        optimizer = self._replica.optimizer
        kept = dict(zip(OPTIMIZERS[optimizer.spec.name].vectors, optimizer.vectors, strict=True))
        moment, beta2 = kept["second_moment"], optimizer.spec.beta2
        return exponents(moment, optimizer.steps_done, beta2, tokens, members)


def _sums_of(buckets: Sequence[int]) -> tuple[int, int]:
    """The number of buckets and the members of the largest, on which the scale depends.

    Raises:
        ShapeError: one of them hides nothing.
    """
    counts = np.bincount(np.asarray(buckets, np.int64))
    if counts.min() < LEAST_MEMBERS:
        raise ShapeError(f"a bucket of {counts.min()} hides nothing")
    return len(counts), int(counts.max())


def _opened(payload: Buffer, request: Apply, segment: int, size: int) -> Tensor:
    """The sums of a segment's buckets without the members' own masks, (B, n) int16."""
    buckets = request.buckets or [0] * len(request.seeds)
    sums, _ = _sums_of(buckets)
    total = _body(payload, sums * size, segment).reshape(sums, size).copy()
    for bucket, seed in zip(buckets, request.seeds, strict=True):
        if seed:
            add_mask(total[bucket], seed, segment, subtract=True)
    return torch.from_numpy(total.astype(np.uint16).view(np.int16))


def _added(sums: Tensor, request: Apply, scale: Tensor) -> Tensor:
    """What a segment's sums (B, n) come to, (n,) integers."""
    if not request.buckets:
        return sums[0]
    counts = [0] * len(sums)
    for bucket, count in zip(request.buckets, request.microbatches, strict=True):
        counts[bucket] += count
    return clipped_sum(sums, scale, counts) if sums.numel() else sums[0]


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
