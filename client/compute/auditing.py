"""Audits: recompute what another replica of the stage has contributed to a step, and compare.

State: a copy of the parameters that the audited step was computed at, the sum of what has been
recomputed, and the norm that is usual for the segment whose sum is made again. The step under way
is not touched: an audit is one more slot that no round knows of.

A contribution is the member's gradient sum plus the residual of its last round, encoded. The
residual is the member's own word, and whoever lies may hide the lie in it, so nobody is asked for
it. It is what encoding took from the member's last contribution and from the sums that it owned, so
its size is known: what rounding explains is the most that it and this encoding can make of a
difference, from what the codec takes from the recomputed sum itself. A lossless codec explains
nothing.

Rounding has hardly anything in common with the gradient; work that is missing, doubled, turned
round or scaled has. So the difference is also measured along the recomputed sum: there a coarse
codec hides little. What rounding has in common with it by chance grows with the step: the rounding
of a whole step's sum comes back in one member's contribution, however small its share is.

Shapes: N parameters of the stage; segment i is [bounds[i], bounds[i+1]).
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from client.compute.averaging import Averager, checked_bounds, largest_of, relative
from client.compute.errors import CodecError, PoisonedTensor, StaleRequest
from client.compute.passes import exactly, run_again
from client.compute.payload import Buffer, Direction, Payloads
from client.compute.readings import Readings
from client.compute.replica import inner_product, squared_norm
from client.compute.slot import Slot
from model_zoo.specs.codec import CODECS
from protocol.pipeline.effects import CompareTask, KeepVersionTask, Outcome, PassTask, ReduceTask

USUAL_ALONG = 1e-2
"""What rounding may make along the sum of any contribution, within the tolerance there."""
MARGIN = 1.25
"""Of what rounding explains: one step's gradient is rounded less well than the next one's. Honest
distances were up to 1.07 times what is explained without it, in stages of 3,000 parameters."""
CHANCE = 8.0
"""Times the deviation that independent roundings would have there. Honest ones were up to about 6,
after a step ten times as large in stages of 3,000 parameters; in large stages it hardly counts."""
GROUP, ROUNDING = 128, 2.0**-7
"""Numbers that a boundary codec rounds together, and how far, of their norm."""
LARGEST_OF_GROUP = 2.7
"""Usual one of 128 Gaussian numbers, in root mean squares."""
DOUBTED_PART = 5e3
"""Times the norm of the sum of the step before: a longer contribution may have been absurd to the
owner. It is less than what is, because machines add in different orders."""


@dataclass(frozen=True, slots=True)
class _Kept:
    step: int
    slot: Slot
    sum_before: float
    """L2 norm of the sum of the step before, whose rounding may come back in a contribution."""


class Auditor:
    """The auditing side of a replica; one audit at a time."""

    def __init__(self, averager: Averager) -> None:
        self.averager, self.replica = averager, averager.replica
        self._kept: _Kept | None = None
        self._segment = (-1, 0, 0.0, 0.0)
        """Step, size and usual norm of the segment whose sum is made again, and the norm of the
        sum of the step before."""

    def keep(self, task: KeepVersionTask) -> Outcome:
        """Copy the step's parameters.

        Raises:
            StaleRequest: it is another step's, or the sum before it is not known here, so that
                nobody can say what its rounding explains.
        """
        self.replica.check_step(task.step)
        before = self.averager.last_norm
        if before is None and task.step > 0:
            raise StaleRequest(f"the sum before step {task.step} was not applied here")
        self._kept = None  # free the copy before
        if task.segment is not None:
            bounds = checked_bounds(task.bounds, self.replica.size)
            size = bounds[task.segment + 1] - bounds[task.segment]
            usual = self.averager.usual_norm(bounds, task.segment)
            self._segment = task.step, size, usual, before or 0.0
        self._kept = _Kept(task.step, self.replica.copy(), before or 0.0)
        return Outcome()

    def recompute(self, task: PassTask, payloads: Payloads) -> Outcome:
        """Add a microbatch to the audit's sum; compare what the member has sent of it."""
        slot, part = self._audited(task.step).slot, self.replica.part
        slot.check_counted(task.microbatch, counted=False)
        directions: list[Direction] = ["forward"] * (not part.has_head)
        directions += ["backward"] * (not part.embeds)
        given = payloads[: len(payloads) - len(directions)]
        claimed = exactly(payloads[len(given) :], len(directions))
        given = self._needed(task.microbatch, given)
        loss_sum, sent = run_again(self.replica, slot, task, given)
        ours = [each.ready() for each in sent]
        apart = {"forward": 0.0, "backward": 0.0}
        for place, direction in enumerate(directions):
            there = len(payloads) - len(directions) + place
            apart[direction] = self._apart(claimed[place], ours[place], direction, there)
        slot.count(task.microbatch)
        return Outcome(loss_sum=loss_sum, apart=(apart["forward"], apart["backward"]))

    def _needed(self, microbatch: int, given: Payloads) -> Payloads:
        """Return what the stage computes with, of the inputs that a member shows. What the first
        stage shows as tokens must be its samples; raises `CodecError`."""
        part, wire, samples = self.replica.part, self.replica.wire, self.replica.samples
        if part.embeds and not part.has_head and samples is not None:
            tokens = exactly(given, 2)[1]
            if bytes(tokens) != bytes(samples.read(microbatch)):
                raise CodecError("the tokens are not those of the samples", 1)
        unused = not (part.embeds or part.has_head or wire.run.tokens_everywhere)
        return given[:-1] if unused else given

    def compare(self, task: CompareTask, payloads: Payloads) -> Outcome:
        """Compare the contribution with the sum; the audit is over, unless a payload is bad.

        Returns what rounding does not explain of the distance, and of its part along the sum, both
        relative to the sum.
        """
        kept = self._audited(task.step)
        bounds = checked_bounds(task.bounds, self.replica.size)
        exactly(payloads, len(bounds) - 1)
        apart, lost, squares, common, chances = [], [], [], [], []
        for place, (start, end) in enumerate(pairwise(bounds)):
            ours = kept.slot.gradient_sum[start:end].cpu()
            theirs = torch.empty(end - start)
            self.replica.wire.segment_in(payloads[place], theirs, place)
            rounding = self._as_sent(ours) - ours
            apart.append(squared_norm(theirs - ours))
            lost.append(squared_norm(rounding))
            squares.append(squared_norm(ours))
            common.append(inner_product(theirs - ours, ours))
            chances.append(squared_norm(rounding * ours))
        norm, distance, rounded, chance = (
            math.sqrt(math.fsum(of)) for of in (squares, apart, lost, chances)
        )
        # of this sum; of the member's last one, no larger than all's; and of all's, where it owned
        explained = MARGIN * _share(rounded, norm) * (norm + 2 * kept.sum_before)
        along = _share(math.fsum(common), norm**2)
        chance = chance * CHANCE * (1 + _share(kept.sum_before, norm))
        beyond = max(0.0, abs(along) - max(0.0, _share(chance, norm**2) - USUAL_ALONG))
        self._kept = None
        deviation = relative(max(0.0, distance - explained), norm)
        return Outcome(apart=(deviation, math.copysign(beyond, along)))

    def sum_again(self, task: ReduceTask, payloads: Payloads) -> Outcome:
        """Sum a segment as its owner had to, of the members' contributions in their order, and
        compare what it has broadcast, which comes last. Whatever the owner has left out as absurd
        is longer than all the rest: that is tried, too.

        Every owner of a segment that has seen any step has seen the sum of the one before: what was
        absurd to it is as far above that.

        Raises:
            CodecError: the sum does not decode, or something is not what its seal says.
        """
        step, size, usual, before = self._segment
        if step != task.step:
            raise StaleRequest(f"no segment is kept to audit step {task.step}")
        *parts, claimed = exactly(payloads, len(task.microbatches) + 1)
        wire, ours, theirs = self.replica.wire, torch.empty(size), torch.empty(size)
        wire.segment_in(claimed, theirs, len(parts))
        out, apart = set[int](), list[float]()
        while True:
            aggregation, norms = self.averager.added(task, parts, out, ours, usual)
            with suppress(PoisonedTensor):
                wire.segment_back(wire.segment_out(aggregation.result()), ours)
                distance = math.sqrt(squared_norm(theirs - ours))
                apart.append(relative(distance, math.sqrt(squared_norm(ours))))
            if apart and max(norms.values(), default=0.0) <= DOUBTED_PART * before:
                return Outcome(apart=(min(apart), 0.0))
            out.add(largest_of(norms))

    def _audited(self, step: int) -> _Kept:
        if self._kept is None or self._kept.step != step:
            raise StaleRequest(f"no version is kept to audit step {step}")
        return self._kept

    def _apart(self, claimed: Buffer, ours: Buffer, direction: Direction, place: int) -> float:
        """Return the relative distance of a tensor that was sent from ours, before both were coded.

        One group of numbers may be rounded otherwise, which is more than the tolerance in a tensor
        of few groups: sums that other threads make differ in their last bits, and so may what lies
        between two steps of the codec, or the scale of a group.
        """
        theirs, expected = (
            self._boundary(sent, direction, place).flatten() for sent in (claimed, ours)
        )
        step = CODECS[self.replica.wire.run.boundary_codec].step
        padded = torch.nn.functional.pad(expected, (0, -len(expected) % GROUP)).view(-1, GROUP)
        allowed = max(ROUNDING, step) * float(torch.linalg.vector_norm(padded, dim=1).max())
        distance = math.sqrt(max(0.0, squared_norm(theirs - expected) - allowed**2))
        coded = relative(distance, math.sqrt(squared_norm(expected)))
        return before_coding(coded, step * LARGEST_OF_GROUP)

    def _boundary(self, payload: Buffer, direction: Direction, place: int) -> Tensor:
        """Return what a payload holds: (B, T, K)."""
        readings = Readings()
        tensor = self.replica.wire.boundary_in(payload, direction, place, readings)
        readings.read()
        return tensor

    def _as_sent(self, ours: Tensor) -> Tensor:
        """Return our sum as it would arrive."""
        out = torch.empty(ours.shape)
        self.replica.wire.segment_back(self.replica.wire.segment_out(ours), out)
        return out


def before_coding(distance: float, step: float) -> float:
    """Return how far tensors were apart that are so far apart now, all in root mean squares.

    A number that differs by d is rounded to another of the values that are a ``step`` apart with
    the chance d / step, and then differs by the step: squares of d become d times the step. Of
    Gaussian differences, mean magnitudes are sqrt(2 / pi) of the root mean square.
    """
    coded = step * math.sqrt(2 / math.pi)
    return (math.sqrt(coded**2 + 4 * distance**2) - coded) / 2


def _share(part: float, whole: float) -> float:
    """Return part of the whole; of nothing, 0."""
    return part / whole if whole > 0 else 0.0
