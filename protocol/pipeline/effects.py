"""The effects of pipeline and rounds, besides plain messages.

Payloads (tensors, tokens) never enter a machine. A machine names them by ``PayloadKey``; the driver
holds the bytes, in memory or on disk. A task is the worker's request as it stands, and an outcome
is its reply.
"""

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.wire.messages import Message

PayloadName = Literal[
    "tokens", "input", "output", "grad_in", "grad_out", "segment", "reduced", "list"
]


@dataclass(frozen=True, slots=True)
class PayloadKey:
    """Names bytes that the driver holds.

    ``tokens``, ``input`` (boundary in, wire form), ``output`` (boundary out), ``grad_in`` (gradient
    received from the next stage) and ``grad_out`` (gradient sent to the previous one) belong to a
    microbatch; ``segment`` and ``reduced`` belong to a round: ``item`` is the segment index.
    """

    step: int
    name: PayloadName
    item: int
    attempt: int = 0
    peer: str = ""


def held_out(item: int) -> int:
    """Return the number of a held-out microbatch, which are negative; or its item, from that."""
    return -1 - item


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the payload of the message in hand under these keys (tokens first, if there are any)."""

    keys: tuple[PayloadKey, ...]


@dataclass(frozen=True, slots=True)
class SendPayload:
    """Send a message whose payload is the concatenation of what the keys name."""

    peer: PeerId
    message: Message
    keys: tuple[PayloadKey, ...]


@dataclass(frozen=True, slots=True)
class DropStep:
    """Free every payload of a step: no peer can ask for it any more."""

    step: int


class ForwardTask(Struct, frozen=True, tag=True):
    """Run the stage forward on ``input`` (stage 0: on its samples); yields ``output``."""

    step: int
    microbatch: int


class LossTask(Struct, frozen=True, tag=True):
    """Last stage: forward, loss and backward in one; yields ``grad_out`` and the loss."""

    step: int
    microbatch: int


class BackwardTask(Struct, frozen=True, tag=True):
    """Run the stage backward on ``grad_in``; yields ``grad_out`` (nothing at stage 0)."""

    step: int
    microbatch: int


Into = Literal["less", "audit", "loss"]
"""What becomes of a pass beside those of the step: it is taken out of the step's sum again; it goes
into the sum of an audit, and what a member has sent of it is compared; or it is run forward only,
for the loss on held-out text."""


class PassTask(Struct, frozen=True, tag=True):
    """Run a microbatch once more, or a held-out one, which has a negative number; see ``Into``."""

    step: int
    microbatch: int
    into: Into
    shown: tuple[PayloadKey, ...] = ()
    """In an audit: what the member shows, in the order of its list."""


class ContributeTask(Struct, frozen=True, tag=True):
    """Cut the accumulated gradient into segments; yields ``segment`` 0..n-1 of our own."""

    step: int
    attempt: int
    bounds: tuple[int, ...]


class ReduceTask(Struct, frozen=True, tag=True):
    """Aggregate one segment over the members' parts, in order, by the manifest's rule; yields
    ``reduced`` and its squared norm.

    Our own part is the worker's: it stands in ``parts`` at our place under our own peer id.
    """

    step: int
    attempt: int
    segment: int
    parts: tuple[PayloadKey, ...]
    microbatches: tuple[int, ...]
    """How many each part is the sum of."""
    compare_to: PayloadKey | None = None
    """In an audit of the version that is kept: what its owner has broadcast. Nothing is yielded but
    the relative distance."""


class DecodeTask(Struct, frozen=True, tag=True):
    """Decode an owner's broadcast of a segment ahead of ``ApplyTask``, and check it."""

    step: int
    attempt: int
    segment: int
    reduced: PayloadKey
    sq_norm: float
    """As the owner claims."""


class ApplyTask(Struct, frozen=True, tag=True):
    """Apply the broadcast bytes: version ``step`` becomes ``step + 1``. Without segments we are the
    stage's only replica, and apply our own gradient."""

    step: int
    attempt: int = 0
    bounds: tuple[int, ...] = ()
    reduced: tuple[PayloadKey | None, ...] = ()
    """One per segment; None for a segment without elements."""
    sq_norms: tuple[float, ...] = ()
    rate: float | None = None
    """The learning rate by an amendment; None: the manifest's."""
    stretch: float = 1.0
    """Factor of the mean difference of a local round."""


class HashTask(Struct, frozen=True, tag=True):
    """Compute the hash of version ``step``, beside the tasks that come after this one."""

    step: int


class KeepVersionTask(Struct, frozen=True, tag=True):
    """Copy the parameters that a step is computed at, before the step is applied, for an audit; and
    note the norm that a segment of the mean gradient usually has there, whose sum is made again."""

    step: int
    bounds: tuple[int, ...] = ()
    segment: int | None = None


class CompareTask(Struct, frozen=True, tag=True):
    """Compare the recomputed sum with the member's contribution; None: a segment of nothing."""

    step: int
    bounds: tuple[int, ...]
    segments: tuple[PayloadKey | None, ...] = ()


AuditTask = KeepVersionTask | PassTask | CompareTask | ReduceTask

Task = (
    ForwardTask
    | LossTask
    | BackwardTask
    | PassTask
    | ContributeTask
    | ReduceTask
    | DecodeTask
    | ApplyTask
    | HashTask
    | KeepVersionTask
    | CompareTask
)


@dataclass(frozen=True, slots=True)
class Compute:
    """Give a task to the worker; its outcome comes back through ``Seat.computed``."""

    task: Task


class Outcome(Struct, frozen=True, tag=True):
    """The worker's answer about a finished task; ``error`` is empty when it went well."""

    error: str = ""
    """``poisoned`` (non-finite numbers), ``codec`` (malformed tensor), ``oom``, ``internal``."""
    part: int | None = None
    """The malformed payload, if one from another peer was; of ``ReduceTask`` a contribution that is
    not what its seal says."""
    parts: tuple[int, ...] = ()
    """Of ``ReduceTask``: the places of the contributions that count for nothing."""
    loss_sum: float = 0.0
    sq_norm: float = 0.0
    own_sq_norm: float = 0.0
    """Of ``ReduceTask`` in a local round: of one member's difference, on the mean."""
    digests: tuple[bytes, ...] = ()
    """Of each payload the task yielded, as in its seal."""
    counted: tuple[int, ...] = ()
    """The microbatches in what ``ContributeTask`` yielded."""
    graph_kept: bool = False
    """Of ``ForwardTask``: the worker needs the gradient alone to run it back."""
    hash: str = ""
    """Of the version: from ``HashTask``, or with a small version itself."""
    grad_norm: float = 0.0
    apart: tuple[float, float] = (0.0, 0.0)
    """Of an audit: how far what the member sent on and back is from ours; or how far its
    contribution is, in all and along our sum."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Committed:
    """Version ``version`` of the stage is in force (applied and hashed)."""

    stage: int
    version: int
    hash: str
    loss: float | None
    """Mean token loss of the step (last stage only)."""
    grad_norm: float
    counted: int
    """Our microbatches in this step."""
    attempt: int
    """Attempt of the round that closed it; 1 where nothing went wrong."""
    own_loss: float | None = None
    """Mean token loss of our own microbatches in it; None: there were none."""
    era: int = 0
    """Of the seat."""
    roll: tuple[PeerId, ...] = ()
    """Members of the plan that made it."""
    shares: tuple[int, ...] = ()
    """Microbatches that the plan counts for each of them."""
    electors: tuple[PeerId, ...] = ()
    """That the plan names."""
    with_whom: frozenset[PeerId] = frozenset()
    """The peers whose work is in it, as far as it came to us: contributions and sums of the round,
    activations and gradients of what we counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something the machine cannot go on from; the driver decides (stop, or rejoin the stage)."""

    kind: Literal["poisoned", "diverged", "behind", "differs", "memory", "internal"]
    """``differs``: most of those that made our version have another state of it; ``poisoned``:
    numbers run away, by others' tensors or by our own state; ``diverged``: on our own samples, so
    that no other peer's tensors can be at fault."""
    words: str


@dataclass(frozen=True, slots=True)
class Rerouted:
    """A microbatch was sent to another replica; ``cause`` in words. Feeds recovery figures."""

    step: int
    microbatch: int
    lost_peer: PeerId
    cause: str
    replayed: bool
    """Its gradient had come back already; it is run again for the count alone."""


PipelineEffect = Effect | Keep | SendPayload | DropStep | Compute | Fault | Rerouted
