"""A replica's state: one stage's parameters, optimizer and the gradient sum of the step.

State: everything of the opened stage that training changes, at `version`. The gradients that
autograd writes (`flat.gradients`) are scratch; a microbatch enters `gradient_sum` only when its
whole backward pass has succeeded, so a failure halfway leaves the sum exact. That, and taking
microbatches out again, costs one more buffer of the parameters' length.

With the one-step-delayed update step n + 1 is computed while step n is averaged, so the version
that it will change, n + 1, is not known yet. Its gradient is computed at where that version would
be if the next update were like the last: version n plus (version n minus version n - 1). So at
version n there are the parameters and two slots: one at the point of step n, one at that of step
n + 1, whose microbatches may be run already. Only step n's can be averaged and applied. Source:
Chen et al., arXiv 1809.02839 (weight prediction), with the last update as the prediction.

Shapes: N parameters of the stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from client.compute.departures import Departures
from client.compute.errors import ShapeError, StaleRequest
from client.compute.followed import Followed
from client.compute.offload import vectors_for
from client.compute.outliers import OutlierFilter
from client.compute.requests import OpenStage
from client.compute.samples import Samples
from client.compute.sharding import ShardedSlot, Shards
from client.compute.slot import Slot, open_slots
from client.compute.state_hash import LEAF_BYTES, leaf_digest, leaves, root
from client.compute.team import ALONE, Team
from client.compute.wire import Wire
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.optimizer import FlatOptimizer, flat_optimizer
from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.optimizer import learning_rate, stage_clip
from model_zoo.specs.precision import precision_on
from model_zoo.specs.slices import StageSlice, slices
from model_zoo.specs.state import StateSpec
from model_zoo.stages import Stage, blank_stage, build_stage, twin
from model_zoo.vectors import Vectors

if TYPE_CHECKING:
    from client.compute.full_shards import FullShards

_CLIP_EPS = 1e-6  # as torch's clip_grad_norm_
_NORM_CHUNK = 1 << 18


@dataclass(slots=True)
class Replica:
    """The stage that a worker holds."""

    swarm: str
    slots: list[Slot]
    """One for each step that can be worked at: `version` first, then the one after it."""
    parameters: Tensor
    """Those of `version`, (N,); without delayed updates they are the slot's own buffer."""
    optimizer: FlatOptimizer
    wire: Wire
    graphs_kept: int
    """In all slots together."""
    outliers: OutlierFilter
    """Sizes of the tensors from other stages."""
    home: Vectors
    """Where all vectors (N,) lie but the parameters."""
    team: Team = ALONE
    """Those with which passes are run."""
    samples: Samples | None = None
    """The source of the first stage's microbatches; None if the node sends them."""
    loss_weight: float = 1.0
    """What the loss of a learned token is multiplied with before it is run back."""
    version: int = 0
    known_hash: str | None = None
    """Hash of this version, where it is known already."""
    _version_stage: Stage | None = None
    sequences_at_once: int = 0
    """Sequences of a microbatch that are run at a time: all, until memory is short."""

    def __post_init__(self) -> None:
        self.sequences_at_once = self.sequences_at_once or self.wire.sequences

    @property
    def delayed(self) -> bool:
        """Whether updates are delayed by one step."""
        return len(self.slots) > 1

    @property
    def state(self) -> StateSpec:
        """The layout of a version: the sections of `state_tensors`, in their order."""
        return StateSpec(self.optimizer.spec.name, self.delayed)

    @property
    def module(self) -> Stage:
        """The stage's module, as step `version` runs it."""
        return self.slots[0].module

    @property
    def version_stage(self) -> Stage:
        """A module with the parameters of `version`, for passes that count for no step."""
        if not self.delayed:
            return self.module
        if self._version_stage is None:
            self._version_stage = twin(self.module)
            self.flat.bind(self._version_stage, self.parameters)
        return self._version_stage

    @property
    def flat(self) -> FlatParameters:
        """The parameters that step `version` is computed at, and the scratch of all steps."""
        return self.slots[0].flat

    @property
    def gradient_sum(self) -> Tensor:
        """The gradient sum of step `version`, (N,)."""
        return self.slots[0].gradient_sum

    @property
    def counted(self) -> set[int]:
        """The microbatches of step `version` in the gradient sum."""
        return self.slots[0].counted

    @property
    def part(self) -> StageSlice:
        """The slice of the model that this stage holds."""
        return self.module.part

    @property
    def size(self) -> int:
        """N, the number of parameters."""
        return self.flat.values.numel()

    @property
    def state_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of a version: a vector (N,) for each section of its `state`."""
        points = [slot.flat.values for slot in self.slots] if self.delayed else []
        return self.parameters, *self.optimizer.vectors, *points

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Every tensor (N,) that is held."""
        sums = (slot.gradient_sum for slot in self.slots)
        return *self.state_tensors, *sums, self.flat.gradients

    @property
    def held_bytes(self) -> int:
        """Memory of all that is held, shards included."""
        shards = (slot.shards.nbytes for slot in self.slots if isinstance(slot, ShardedSlot))
        return sum(each.nbytes for each in self.buffers if not each.is_meta) + sum(shards)

    def at(self, step: int) -> Slot:
        """The slot in which the microbatches of a step are run.

        Raises:
            StaleRequest: this version has none for that step.
        """
        ahead = step - self.version
        if not 0 <= ahead < len(self.slots):
            raise StaleRequest(f"request is for step {step}, the stage is at {self.version}")
        return self.slots[ahead]

    def check_step(self, step: int) -> None:
        """Refuse a round of another step.

        Raises:
            StaleRequest: it does.
        """
        if step != self.version:
            raise StaleRequest(f"request is for step {step}, the stage is at {self.version}")

    def drop_graphs(self) -> None:
        """Free all kept graphs: every one can be recomputed."""
        for slot in self.slots:
            slot.graphs.clear()

    def update(
        self, total: Tensor, squared_norm: float, tokens: int, rate: float | None = None
    ) -> float:
        """Make the next version; return the norm of the mean gradient.

        Equal inputs give bit-identical versions at all replicas.

        Args:
            total: gradient sum of the step, (N,).
            squared_norm: of `total`.
            tokens: tokens that it sums over.
            rate: the learning rate; None: that of the schedule.
        """
        config, slot = self.optimizer.spec, self.slots[0]
        rate = learning_rate(config, self.version) if rate is None else rate
        scale = step_scale(squared_norm, tokens, stage_clip(config, self.part.count))
        if self.delayed:
            slot.flat.values.copy_(self.parameters)
        self.optimizer.step(total, rate, scale)
        if self.delayed:  # the point of the step after next: as far again
            last = torch.sub(self.parameters, slot.flat.values, out=slot.flat.values)
            last.add_(self.parameters)
        self.advance()
        return math.sqrt(squared_norm) / tokens

    def advance(self) -> None:
        """Switch to the next version, whose parameters, or the point of the step after it, are in
        the current step's slot."""
        self.slots[0].clear()
        self.slots.append(self.slots.pop(0))
        self.version, self.known_hash = self.version + 1, None

    def follow(self, version: int, *, advanced: bool) -> None:
        """Switch to a version whose parameters will come from the process that makes them.

        Args:
            version: its number.
            advanced: whether an update made it of this one: then what was computed ahead stays.
        """
        if advanced:
            self.advance()
        else:
            for slot in self.slots:
                slot.clear()
            self.version, self.known_hash = version, None

    def replace_state(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Switch to another version, with nothing accumulated.

        The tensors (N,) are those of `state_tensors`, in that order; they are copied, unless they
        are these themselves.
        """
        for own, new in zip(self.state_tensors, tensors, strict=True):
            if own.data_ptr() != new.data_ptr() or own.device != new.device:
                own.copy_(new)
        for slot in self.slots:
            slot.clear()
        self.optimizer.steps_done = version
        self.version, self.known_hash = version, None

    def load_base(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what is frozen beside adapters, by name, each on the device and in its type."""
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:  # all slots have the same
                parameter.data = tensors[name]

    @property
    def is_small(self) -> bool:
        """Whether the state is hashed so soon that asking for it would take as long."""
        return sum(tensor.nbytes for tensor in self.state_tensors) <= LEAF_BYTES

    def state_hash(self) -> str:
        """Hex hash of this version, computed here and now."""
        threads = torch.get_num_threads()
        self.known_hash = hash_tensors(self.version, self.state_tensors, threads)
        return self.known_hash


def _is_fast(device: torch.device) -> bool:
    """Whether it is a card that multiplies in bf16 itself; older ones emulate it."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def open_replica(
    request: OpenStage,
    device: torch.device,
    cutting: FullShards | None = None,
    departures: Departures | None = None,
) -> Replica:
    """A replica at version 0.

    Args:
        request: describes it.
        device: where it is.
        cutting: how it is cut over ranks, if it is.
        departures: by which its boundaries leave, if not at once.

    Raises:
        ShapeError: the request contradicts itself; says how.
    """
    try:
        part = _part(request)
    except ValueError as error:
        raise ShapeError(str(error)) from error
    spec = request.model
    if cutting is None:
        slots, home = _whole_slots(request, part, device)
    else:
        slots, home = _cut_slots(request, part, cutting)
    for slot in slots:
        slot.module.precision = precision_on(request.precision, fast_in_bf16=_is_fast(device))
        slot.module.reruns_blocks = request.reruns_blocks
    flat = slots[0].flat
    wire = Wire(
        request.sequences,
        request.tokens,
        spec.width,
        spec.vocab,
        request.boundary_codec,
        request.averaging_codec,
        device,
        masked=request.masked,
        packed=request.packed,
        departures=departures,
    )
    parameters = flat.values.clone() if request.delayed else flat.values
    make_optimizer = Followed if request.follows else flat_optimizer(request.optimizer)
    optimizer = make_optimizer(
        parameters, flat.decay_size, request.optimizer, hidden_matrices(spec, part), home
    )
    samples = Samples(request) if request.corpus else None
    behind = len(request.layers_per_stage) - 1 - request.stage
    outliers = OutlierFilter({"forward": request.stage, "backward": behind})
    kept = request.graphs_kept
    weight = request.token_data.loss_weight if request.token_data else 1.0
    return Replica(
        request.swarm,
        slots,
        parameters,
        optimizer,
        wire,
        kept,
        outliers,
        home,
        cutting.ring if cutting else ALONE,
        samples,
        weight,
    )


def _whole_slots(
    request: OpenStage, part: StageSlice, device: torch.device
) -> tuple[list[Slot], Vectors]:
    make = blank_stage if request.imported else build_stage
    module = make(request.model, part, request.seed)
    module.to(device)
    home = vectors_for(request, device)
    return open_slots(module, 2 if request.delayed else 1, home), home


def _cut_slots(
    request: OpenStage, part: StageSlice, cutting: FullShards
) -> tuple[list[Slot], Vectors]:
    """The first rank has whole vectors on the processor; the others know what is where in them."""
    ring = cutting.ring
    make = blank_stage if request.imported else build_stage
    at = torch.device("cpu" if ring.leads else "meta")
    home = vectors_for(request, at) if ring.leads else Vectors(at)
    with at:
        whole = (
            make(request.model, part, request.seed) if ring.leads else Stage(request.model, part)
        )
    flat = FlatParameters(whole, vectors=home)
    stage = cutting.cut(request.model, part)
    total = home.zeros(flat.values.numel())
    shards = Shards(stage, cutting, flat.layout, total)
    return [ShardedSlot(stage, flat, total, home, shards=shards)], home


def _part(request: OpenStage) -> StageSlice:
    parts, spec = slices(request.layers_per_stage), request.model
    if sum(request.layers_per_stage) != spec.layers:
        raise ValueError(f"{request.layers_per_stage} do not make {spec.layers} layers")
    if request.stage >= len(parts):
        raise ValueError(f"there is no stage {request.stage} of {len(parts)}")
    if request.tokens > spec.context:
        raise ValueError(f"{request.tokens} tokens exceed the context of {spec.context}")
    return parts[request.stage]


def step_scale(squared_norm: float, tokens: int, largest_norm: float) -> float:
    """Return the factor of a gradient sum: 1 / tokens, less if its norm would exceed the bound.

    Args:
        squared_norm: of the gradient sum.
        tokens: tokens that it sums over.
        largest_norm: bound of the mean gradient's norm; 0: none.

    Returns:
        The factor, rounded to fp32 as it is used.
    """
    scale = 1 / tokens
    if largest_norm > 0:
        scale *= min(1.0, largest_norm / (scale * math.sqrt(squared_norm) + _CLIP_EPS))
    return torch.tensor(scale, dtype=torch.float32).item()


def squared_norm(vector: Tensor) -> float:
    """Sum of squares of a vector, in fp64."""
    chunks = map(Tensor.double, torch.split(vector, _NORM_CHUNK))
    return math.fsum(_listed(torch.dot(wide, wide) for wide in chunks))


def inner_product(one: Tensor, other: Tensor) -> float:
    """Sum of the products of two vectors, in fp64."""
    pairs = zip(torch.split(one, _NORM_CHUNK), torch.split(other, _NORM_CHUNK), strict=True)
    return math.fsum(_listed(torch.dot(a.double(), b.double()) for a, b in pairs))


def _listed(numbers: Iterable[Tensor]) -> list[float]:
    """Numbers of a device, waited for once."""
    found = list(numbers)
    return torch.stack(found).tolist() if found else []


def host_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy if it lies on the CPU."""
    return tensor.detach().cpu().numpy().view(np.uint8).data


def hash_tensors(
    version: int,
    tensors: Sequence[Tensor],
    threads: int,
    digest: Callable[[Sequence[Tensor]], bytes] | None = None,
) -> str:
    """Hex hash of a version.

    Args:
        version: its number.
        tensors: vectors, its data.
        threads: that compute at a time.
        digest: returns the digest of a leaf, which comes in parts; None: as it is defined.
    """
    data = [tensor.detach().view(torch.uint8) for tensor in tensors]
    with ThreadPoolExecutor(threads, "hasher") as pool:
        return root(version, pool.map(digest or digest_of_tensors, leaves(data)))


def digest_of_tensors(parts: Sequence[Tensor]) -> bytes:
    """Digest of a leaf."""
    return leaf_digest(map(host_bytes, parts))
