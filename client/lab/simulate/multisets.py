"""Exact arithmetic for simulated training: a gradient is the multiset of ids it was summed from.

Parameters are a hash chain over the multisets applied to them. So the invariants are checked
without a single floating point number: a step is applied only if every segment contains each of its
ids exactly once (I1), and equal parameters mean an equal history (I2).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from client.lab.simulate.invariants import InvariantViolation, expect
from client.lab.simulate.worker import Payloads, payload_digest
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
from protocol.pipeline.place import Place
from protocol.rounds.shards import SEGMENT

GRADIENT_SIZE = 6 * SEGMENT
"""Shards of two replicas are cut in three, those of three in two."""

INITIAL: Final = bytes(32).hex()
"""Parameters of version 0."""
WRONG: Final = 10.0
"""The relative distance of a contribution that is not what its microbatches make."""
POISON: Final = -1
"""In the place of an id, in a contribution or a sum: it is wrong. Sums and versions leave it
out, so that the rest of the arithmetic stays exact; audits see it."""
ABSURD: Final = -2
"""The same, but out of range: honest ones refuse such a sum, and leave out such a contribution, of
which the other ids count all the same here."""

_decoder = msgspec.msgpack.Decoder(list[tuple[int, int]])


def encode_ids(ids: Counter[int]) -> bytes:
    """Encode a multiset of ids; equal multisets have equal bytes."""
    return msgspec.msgpack.encode(sorted((m, n) for m, n in ids.items() if n))


def decode_ids(payload: bytes) -> Counter[int]:
    """Decode a multiset of ids."""
    return Counter(dict(_decoder.decode(payload)))


class MultisetWorker:
    """A ``SimWorker`` whose gradients are multisets of microbatch ids.

    Args:
        hashes_later: whether a version's hash is said when it is asked for, as the real worker
            does, or with the version itself.
        line: goes into every hash: what two lines of a run make is not the same.
    """

    def __init__(self, place: Place, *, hashes_later: bool = False, line: bytes = b"") -> None:
        self._place, self._hashes_later, self._line = place, hashes_later, line
        self._kept, self._audited = -1, Counter[int]()
        """The step whose version is kept for an audit, and what was computed again of it."""
        self._version = 0
        self.accumulated = Counter[int]()
        """The multiset of the current step's gradient sum."""
        self.parameters = INITIAL

    @property
    def size(self) -> int:
        """Elements of a gradient: a made-up number, the bounds of segments cut it."""
        return GRADIENT_SIZE

    def run(self, task: Task, payloads: Payloads) -> Outcome:
        """See ``SimWorker.run``."""
        match task:
            case ForwardTask() | LossTask() | BackwardTask() if task.step != self._version:
                return Outcome(error="stale")  # as the real worker answers
            case ForwardTask(step, m):
                payloads[PayloadKey(step, "tokens", m)] = b""
                payloads[PayloadKey(step, "output", m)] = _one(m)
            case LossTask() | BackwardTask():
                return self._backward(task, payloads)
            case PassTask(step, m, "less"):
                expect(step == self._version, f"I1: step {step} at version {self._version}")
                expect(self.accumulated[m] == 1, f"I1: {m} is taken out but was not counted")
                self.accumulated[m] -= 1
            case ContributeTask(step, attempt, bounds):
                expect(step == self._version, f"I1: a round of step {step} at {self._version}")
                whole = encode_ids(self.accumulated)
                for i in range(len(bounds) - 1):
                    payloads[PayloadKey(step, "segment", i, attempt, self._place.me)] = whole
            case ReduceTask(compare_to=PayloadKey() as sent):
                ours = _summed(task.parts, payloads)
                return Outcome(apart=(0.0 if payloads[sent] == ours else WRONG, 0.0))
            case ReduceTask():
                return self._reduce(task, payloads)
            case DecodeTask():
                if decode_ids(payloads[task.reduced])[ABSURD]:
                    return Outcome(error="codec", part=0)
            case ApplyTask(step, _, bounds, keys):
                sums = [payloads[key] for key in keys if key]
                return self._apply(step, sums if bounds else [encode_ids(self.accumulated)])
            case HashTask(step):
                expect(step == self._version, f"version {step} is gone before it is hashed")
                return Outcome(hash=self.parameters)
            case KeepVersionTask(step):
                expect(step == self._version, f"step {step} is applied already")
                self._kept, self._audited = step, Counter()
            case PassTask(into="audit") | CompareTask():
                return self._audit(task, payloads)
        return Outcome()

    def save(self, version: int) -> str:
        """See ``SimWorker.save``: the parameters are the name."""
        return self.parameters

    def load(self, version: int, saved: str) -> str:
        """See ``SimWorker.load``."""
        self.parameters, self._version, self.accumulated = saved, version, Counter()
        return saved

    def _audit(self, task: PassTask | CompareTask, payloads: Payloads) -> Outcome:
        if task.step != self._kept:
            return Outcome(error="stale")
        if isinstance(task, PassTask):
            self._audited[task.microbatch] += 1
            exact = _one(task.microbatch)
            shown = [payloads[key] for key in task.shown if key.name != "tokens"]
            return Outcome(apart=(0.0 if all(one == exact for one in shown) else WRONG, 0.0))
        ours = encode_ids(self._audited)
        agree = all(payloads[key] == ours for key in task.segments if key)
        return Outcome(apart=(0.0, 0.0) if agree else (WRONG, WRONG))

    def _backward(self, task: LossTask | BackwardTask, payloads: Payloads) -> Outcome:
        m = task.microbatch
        if isinstance(task, BackwardTask):
            gradient = payloads[PayloadKey(task.step, "grad_in", m)]
            expect(gradient == _one(m), f"microbatch {m} got a foreign gradient")
        expect(not self.accumulated[m], f"I1: {m} is counted twice by one replica")
        self.accumulated[m] += 1
        payloads[PayloadKey(task.step, "grad_out", m)] = _one(m)
        return Outcome(loss_sum=1.0)

    def _reduce(self, task: ReduceTask, payloads: Payloads) -> Outcome:
        reduced = _summed(task.parts, payloads)
        key = PayloadKey(task.step, "reduced", task.segment, task.attempt, self._place.me)
        payloads[key] = reduced
        absurd = (i for i, of in enumerate(task.parts) if decode_ids(payloads[of])[ABSURD])
        return Outcome(digests=(payload_digest(reduced),), parts=tuple(absurd))

    def _apply(self, step: int, segments: Sequence[bytes]) -> Outcome:
        first = step * self._place.per_step
        exact = encode_ids(Counter(range(first, first + self._place.per_step)))
        for segment in segments:
            if _without_poison(decode_ids(segment)) != exact:
                raise InvariantViolation(f"I1: step {step} applies {dict(decode_ids(segment))}")
        chained = self.parameters.encode() + exact + self._line
        self.parameters = hashlib.blake2b(chained, digest_size=32).hexdigest()
        expect(step == self._version, f"I1: step {step} is applied to version {self._version}")
        self._version, self.accumulated = step + 1, Counter()
        return Outcome(hash="" if self._hashes_later else self.parameters)


class LyingWorker(MultisetWorker):
    """A worker that contributes something else than it has computed, broadcasts other sums than
    it has made, or finds fault with all that it audits.

    Args:
        lies: any of "gradients", "sums" and "audits"; others are not its own.
        begins: the step from which it contributes and sums lies.
    """

    def __init__(
        self, place: Place, lies: Collection[str], begins: int, *, hashes_later: bool
    ) -> None:
        super().__init__(place, hashes_later=hashes_later)
        self._lies, self._begins = lies, begins

    def run(self, task: Task, payloads: Payloads) -> Outcome:
        """See ``SimWorker.run``."""
        outcome = super().run(task, payloads)
        again = isinstance(task, ReduceTask) and task.compare_to is not None
        if again or isinstance(task, CompareTask):
            return replace(outcome, apart=(WRONG, WRONG)) if "audits" in self._lies else outcome
        lies = self._lies if task.step >= self._begins else ()
        if isinstance(task, ContributeTask) and "gradients" in lies:
            wrong = encode_ids(self.accumulated + Counter([POISON]))
            for i in range(len(task.bounds) - 1):
                key = PayloadKey(task.step, "segment", i, task.attempt, self._place.me)
                payloads[key] = wrong
        if isinstance(task, ReduceTask) and "sums" in lies:
            key = PayloadKey(task.step, "reduced", task.segment, task.attempt, self._place.me)
            payloads[key] = encode_ids(decode_ids(payloads[key]) + Counter([POISON]))
            return replace(outcome, digests=(payload_digest(payloads[key]),))
        return outcome


def _summed(parts: Sequence[PayloadKey], payloads: Payloads) -> bytes:
    total: Counter[int] = Counter()
    for key in parts:
        total.update(decode_ids(payloads[key]))
    return _without_poison(total)


def _without_poison(ids: Counter[int]) -> bytes:
    del ids[POISON], ids[ABSURD]
    return encode_ids(ids)


def _one(microbatch: int) -> bytes:
    return encode_ids(Counter([microbatch]))
