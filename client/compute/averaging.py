"""Averaging inside a stage: contribute, reduce a segment, apply the sums.

Butterfly all-reduce with error feedback (protocol/SPEC.md, section 10). State: the
residual of past rounds and the attempt under way. An attempt changes neither the gradient sum
nor the residual; `apply` settles it, a new attempt forgets it.

The quantisation error of a contribution stays in its sender's residual. The segment's owner adds
the quantisation error of the segment's sum to the same residual: it enters the next sum with the
owner's next contribution, even if the segment has another owner then. So over all members nothing
of what is summed is ever lost, and segments may change owners between rounds. What an owner leaves
out is lost, for its sender takes it for summed. The exact sum is one aggregation rule; another may
forbid either residual (`specs.aggregation`).

Sums are decoded as they come, into the gradients' scratch, where `apply` finds them unless a pass
has used the scratch meanwhile.

Shapes: N parameters of the stage; segment i is [bounds[i], bounds[i+1]).
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low

import torch
from torch import Tensor

from client.compute.aggregation import Aggregation
from client.compute.errors import CodecError, PoisonedTensor, ShapeError, StaleRequest, Unsealed
from client.compute.payload import Buffer, Payloads, sealed_digest
from client.compute.replica import LocalReplica, Replica, squared_norm
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.codec import CODECS
from model_zoo.specs.optimizer import OPTIMIZERS
from protocol.pipeline.effects import ApplyTask, ContributeTask, DecodeTask, Outcome, ReduceTask

_USUAL_STEPS = 16
_ABSURD_PART = 1e4  # times the largest norm of the newest steps; honest spikes were up to 200 times
_ABSURD_SUM = 1e6  # far above any sum of an owner that leaves absurd contributions out
_NORM_TOLERANCE = 1e-6  # machines add squares in different orders


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One replica's part in one attempt of a round."""

    number: int
    bounds: tuple[int, ...]
    counted: frozenset[int]
    sent: list[memoryview]
    norm: float  # of what was sent
    lost_in_sum: dict[int, Tensor] = field(default_factory=dict)  # by segment owned


class Averager:
    """The averaging side of a replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._rule = replica.wire.run.aggregation
        self._attempt: _Attempt | None = None
        self._squares: deque[float] = deque(maxlen=_USUAL_STEPS)  # of the newest gradients
        self.last_norm: float | None = None
        """L2 norm of the sum that made this version; None where it was not applied here."""
        lossy = not CODECS[replica.wire.run.averaging_codec].lossless
        self._residual = replica.optimizer.home.zeros(replica.size) if lossy else None

    def _clear_residual(self) -> None:
        if self._residual is not None:
            self._residual.zero_()

    def contribute(self, task: ContributeTask) -> tuple[Outcome, list[memoryview]]:
        """Encode gradient sum plus residual, segment by segment."""
        replica = self.replica
        replica.check_step(task.step)
        bounds = checked_bounds(task.bounds, replica.size)
        self._attempt = None
        replica.close()
        sent, norms = list[memoryview](), list[float]()
        for a, b in pairwise(bounds):  # one after the other: it is still in the cache then
            total = self._with_residual(a, b)
            norms.append(float(torch.linalg.vector_norm(total)))
            sent.append(replica.wire.segment_out(total))
        counted = frozenset(replica.counted)
        # without a microbatch only the rounding error of taking all out is left
        norm = math.hypot(*norms) if counted else 0.0
        self._attempt = _Attempt(task.attempt, bounds, counted, sent, norm)
        return Outcome(counted=tuple(sorted(replica.counted))), sent

    def reduce(self, task: ReduceTask, payloads: Payloads) -> tuple[Outcome, list[memoryview]]:
        """Aggregate one segment over the members, in their order; remember the encoding error.

        A contribution that does not decode counts for nothing, and so does one that is absurd where
        the rule does not leave it out by itself. The outcome's `parts` are their places, its `part`
        that of one that is not what its seal says.
        """
        attempt = self._current(task.step, task.attempt)
        parts, own = self._parts(attempt, task, payloads)
        scratch = self._scratch(attempt.bounds, task.segment)
        wire, on_cpu = self.replica.wire, scratch.device.type == "cpu"
        self.replica.sums.pop(task.segment, None)
        usual = self.usual_norm(attempt.bounds, task.segment, task.microbatches)
        part = scratch if on_cpu else torch.empty(scratch.shape)
        out, unsealed = set[int](), set[int]()
        while True:
            aggregation, norms = self.added(task, parts, out, part, usual, own, unsealed)
            weighed = [place for place in norms if task.microbatches[place]]
            bounded = RULES[self._rule].robust and len(weighed) > 2
            if not bounded and (absurd := self._absurd(norms, attempt, own)):
                out |= absurd
                continue
            total = aggregation.result()
            try:
                encoded = wire.segment_out(total)
                break
            except PoisonedTensor:  # each can be sent, but not their sum
                out.add(largest_of(norms))
        wire.segment_back(encoded, part)
        if self._residual is not None and not RULES[self._rule].robust:
            attempt.lost_in_sum[task.segment] = total.sub_(part)
        if not on_cpu:
            scratch.copy_(part)
        norm = squared_norm(part)
        digest = sealed_digest(encoded)
        self.replica.sums[task.segment] = digest, norm
        outcome = Outcome(
            sq_norm=norm,
            own_sq_norm=self._typical(norms, task.microbatches),
            digests=(digest,),
            part=min(unsealed, default=None),
            parts=tuple(sorted(out)),
        )
        return outcome, [encoded]

    def added(
        self,
        task: ReduceTask,
        parts: Payloads,
        out: set[int],
        part: Tensor,
        usual: float,
        own: int = -1,
        unsealed: set[int] | None = None,
    ) -> tuple[Aggregation, dict[int, float]]:
        """Add up the contributions to a segment, in the members' order; return their norms by
        place.

        Args:
            out: places that count for nothing; gets those of what does not decode.
            part: (n,) on the CPU, is overwritten.
            usual: see `usual_norm`.
            own: the place of the one that this process has encoded.
            unsealed: gets the places of those that are not what their seals say.

        Raises:
            Unsealed: there is one, and nowhere to note it.
        """
        wire, aggregation = self.replica.wire, Aggregation(self._rule, part.numel(), usual)
        norms = dict[int, float]()
        for place, (payload, microbatches) in enumerate(zip(parts, task.microbatches, strict=True)):
            if place in out:
                continue
            try:
                if place == own:
                    wire.segment_back(payload, part)
                else:
                    wire.segment_in(payload, part, place)
            except CodecError as error:
                out.add(place)
                if isinstance(error, Unsealed):
                    if unsealed is None:
                        raise
                    unsealed.add(place)
                continue
            norms[place] = float(torch.linalg.vector_norm(part))
            aggregation.add(part, microbatches)
        return aggregation, norms

    def _typical(self, norms: Mapping[int, float], microbatches: Sequence[int]) -> float:
        """Return the squared norm of one member's difference in a local round: the mean over the
        microbatches, or the (lower) median member's, which a liar does not move. Else 0."""
        counted = {place: microbatches[place] for place in norms if microbatches[place]}
        if not isinstance(self.replica, LocalReplica) or not counted:
            return 0.0
        squares = {place: (norms[place] / count) ** 2 for place, count in counted.items()}
        if RULES[self._rule].robust:
            return median_low(squares.values())
        weighed = math.fsum(squares[place] * count for place, count in counted.items())
        return weighed / sum(counted.values())

    def usual_norm(
        self, bounds: Sequence[int], segment: int, microbatches: Sequence[int] = ()
    ) -> float:
        """Return the norm that a segment of the mean gradient of a step's microbatches has had
        lately, from the state that all replicas share; 0: the rule or the optimizer has no use for
        it, or it is unknown.

        In local rounds it follows from the schedule, and how far the ``microbatches`` of a member
        go.
        """
        if not RULES[self._rule].robust:
            return 0.0
        replica, optimizer = self.replica, self.replica.optimizer
        start, end = bounds[segment], bounds[segment + 1]
        if isinstance(replica, LocalReplica):
            return replica.usual_distance(max(microbatches, default=0)) * math.sqrt(end - start)
        kept = dict(zip(OPTIMIZERS[optimizer.spec.name].vectors, optimizer.vectors, strict=True))
        if "second_moment" not in kept or not optimizer.steps_done:
            return 0.0
        seen = 1 - optimizer.spec.beta2**optimizer.steps_done
        squares = kept["second_moment"][start:end].sum(dtype=torch.float64)
        return math.sqrt(float(squares) / seen) * replica.wire.run.tokens_per_microbatch

    @property
    def _lately(self) -> float:
        """The largest norm of the newest steps' sums."""
        return math.sqrt(max(self._squares, default=0.0))

    def _absurd(self, norms: Mapping[int, float], attempt: _Attempt, own: int) -> set[int]:
        """Return the places of absurd contributions. Ours is held against what the others' are."""
        others = {place: norm for place, norm in norms.items() if place != own}
        absurd = {p for p, norm in others.items() if self._is_absurd(norm, attempt, _ABSURD_PART)}
        if absurd or not self._lately:
            return absurd
        usual = max([self._lately, *others.values()])
        return set() if norms.get(own, 0.0) <= _ABSURD_PART * usual else {own}

    def _is_absurd(self, norm: float, attempt: _Attempt, times: float) -> bool:
        """Whether a norm, which may be infinite, is that many times what this stage's gradients
        have been lately, and what our own contribution is."""
        if not self._squares:
            times *= _ABSURD_PART  # our own may be of few microbatches
        if norm <= times * self._lately:
            return False
        usual = max(self._lately, attempt.norm)
        return usual > 0 and not norm <= times * usual

    def decode_sum(self, task: DecodeTask, payloads: Payloads) -> Outcome:
        """Check a broadcast sum before it is used, and keep its numbers for `apply`."""
        attempt = self._current(task.step, task.attempt)
        if task.segment >= len(attempt.sent) or len(payloads) != 1:
            raise ShapeError(f"no segment {task.segment}, or not one sum of it")
        self._decode(attempt.bounds, task.segment, payloads[0], task.sq_norm, blamed=0)
        scratch = self._scratch(attempt.bounds, task.segment)
        norm = float(torch.linalg.vector_norm(scratch))
        if self._is_absurd(norm, attempt, _ABSURD_SUM):
            raise CodecError(f"segment {task.segment} has the norm {norm:.3g}, which is absurd", 0)
        return Outcome()

    def apply(self, task: ApplyTask, payloads: Payloads) -> Outcome:
        """Make the next version from the broadcast sums, after checking all of them."""
        replica = self.replica
        replica.check_step(task.step)
        bounds = checked_bounds(task.bounds, replica.size)
        attempt = self._contribution(task, bounds)
        segments = len(bounds) - 1
        if len(payloads) != segments or len(task.sq_norms) != segments:
            raise ShapeError(f"{segments} sums and as many norms were expected")
        if attempt is None:
            replica.sums.clear()  # they are of another attempt, perhaps with other bounds
        for segment, claimed in enumerate(task.sq_norms):
            self._decode(bounds, segment, payloads[segment], claimed, blamed=segment)
        if attempt is not None:
            self._settle(attempt)
        squares = math.fsum(task.sq_norms)
        return self._update(replica.flat.gradients, squares, task)

    def apply_local(self, task: ApplyTask) -> Outcome:
        """Make the next version from this replica's own sum and its residual, if any."""
        self.replica.check_step(task.step)
        self.replica.close()
        total = self._with_residual(0, self.replica.size)
        self._clear_residual()
        squares = squared_norm(total)
        return self._update(total, squares, task)

    def _update(self, total: Tensor, squares: float, task: ApplyTask) -> Outcome:
        self._attempt = None
        self._squares.append(squares)
        self.last_norm = math.sqrt(squares)
        norm = self.replica.update(total, squares, task.rate, task.stretch)
        digest = self.replica.state_hash() if self.replica.is_small else ""
        return Outcome(hash=digest, grad_norm=norm)

    def _with_residual(self, start: int, end: int) -> Tensor:
        """Contribution plus residual from ``start`` to ``end``, in scratch."""
        self.replica.sums.clear()
        scratch = self.replica.flat.gradients[start:end]
        total = self.replica.contribution(start, end)
        if self._residual is None:
            return scratch.copy_(total)
        return torch.add(total, self._residual[start:end].to(total.device), out=scratch)

    def _scratch(self, bounds: Sequence[int], segment: int) -> Tensor:
        """The buffer in which a segment's sum is decoded: gradients, between passes."""
        return self.replica.flat.gradients[bounds[segment] : bounds[segment + 1]]

    def _decode(
        self, bounds: Sequence[int], segment: int, payload: Buffer, claimed: float, *, blamed: int
    ) -> None:
        """Decode a sum into scratch; raises `CodecError` where it or its claimed squared norm is
        wrong."""
        sums, digest = self.replica.sums, sealed_digest(payload)
        if segment not in sums or sums[segment][0] != digest:
            sums.pop(segment, None)
            scratch = self._scratch(bounds, segment)
            self.replica.wire.segment_in(payload, scratch, blamed)
            sums[segment] = digest, squared_norm(scratch)
        norm = sums[segment][1]
        # An owner that lies about its segment's norm would scale everybody's update.
        if not abs(claimed - norm) <= _NORM_TOLERANCE * norm:  # false for NaN as well
            words = f"segment {segment} claims a squared norm of {claimed}, it has {norm}"
            raise CodecError(words, blamed)

    def _current(self, step: int, number: int) -> _Attempt:
        self.replica.check_step(step)
        if self._attempt is None or self._attempt.number != number:
            raise StaleRequest(f"attempt {number} of step {step} is not the one contributed to")
        return self._attempt

    def _parts(
        self, attempt: _Attempt, task: ReduceTask, payloads: Payloads
    ) -> tuple[Payloads, int]:
        """The members' contributions in order, and the place of our own."""
        ours = (i for i, key in enumerate(task.parts) if key.peer == self.replica.peer)
        own = next(ours, None)
        if task.segment >= len(attempt.sent) or own is None or own >= len(task.microbatches):
            raise ShapeError(f"no segment {task.segment} or no member {own}")
        if len(payloads) != len(task.microbatches) - 1:
            raise ShapeError(f"{len(task.microbatches) - 1} contributions were expected")
        return [*payloads[:own], attempt.sent[task.segment], *payloads[own:]], own

    def _contribution(self, task: ApplyTask, bounds: tuple[int, ...]) -> _Attempt | None:
        """This replica's part in the sums; None if it has none in them.

        Gradients accumulated after contributing are not in the sums: their microbatches were
        counted elsewhere. The residual cannot be separated from them, so it is reset.
        """
        attempt = self._attempt
        if attempt is None or attempt.number != task.attempt:
            return None
        if attempt.bounds != bounds:
            raise StaleRequest("the bounds changed after contributing")
        if attempt.counted != self.replica.counted:
            self._attempt = self.last_norm = None
            self._clear_residual()
            return None
        return attempt

    def _settle(self, attempt: _Attempt) -> None:
        """residual <- residual + gradient sum - contribution + encoding error of the owned sums."""
        if self._residual is None:
            return
        for segment, (start, end) in enumerate(pairwise(attempt.bounds)):
            sent = torch.empty(end - start)
            self.replica.wire.segment_back(attempt.sent[segment], sent)
            residual = self._residual[start:end]
            ours = self.replica.contribution(start, end).to(residual.device)
            residual.add_(ours).sub_(sent.to(residual.device))
            if (lost := attempt.lost_in_sum.get(segment)) is not None:
                residual.add_(lost.to(residual.device))


def relative(distance: float, norm: float) -> float:
    """Return a distance relative to what is right; nothing is right where everything is zero."""
    if norm > 0:
        return distance / norm
    return math.inf if distance > 0 else 0.0


def checked_bounds(bounds: Sequence[int], size: int) -> tuple[int, ...]:
    """Bounds that cut [0, size) into segments; raises `ShapeError` where they do not."""
    rising = all(a <= b for a, b in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != size or not rising:
        raise ShapeError(f"segment bounds do not cut {size} parameters")
    return tuple(bounds)


def largest_of(norms: Mapping[int, float]) -> int:
    """Return the place of the longest contribution."""
    return max(norms, key=norms.__getitem__)
