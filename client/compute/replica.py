"""A replica's state: one stage's parameters, optimizer and the gradient sum of the step.

State: everything of the opened stage that training changes, at `version`. The gradients that
autograd writes (`flat.gradients`) are scratch; a microbatch enters `gradient_sum` only when its
whole backward pass has succeeded, so a failure halfway leaves the sum exact. That, and taking
microbatches out again, costs one more buffer of the parameters' length.

In local rounds the weights move between two versions (`LocalReplica`).

Shapes: N parameters of the stage.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from client.compute.errors import OutOfMemory, ShapeError, StaleRequest
from client.compute.offload import host_vectors, vectors_for
from client.compute.outliers import OutlierFilter
from client.compute.requests import OpenStage
from client.compute.samples import Samples
from client.compute.slot import Slot
from client.compute.wire import Wire
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.muon import USUAL_SIZE
from model_zoo.optimizers.optimizer import FlatOptimizer, flat_optimizer
from model_zoo.specs.local_rounds import OUTER
from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.optimizer import learning_rate, stage_clip
from model_zoo.specs.precision import precision_on
from model_zoo.specs.slices import StageSlice, slices
from model_zoo.specs.state_hash import LEAF_BYTES, leaf_digest, leaves, root
from model_zoo.stages import Stage, blank_stage, build_stage, twin
from model_zoo.vectors import Vectors

NO_VERSION = -1
"""That of a stage whose state could not be loaded completely."""
_CLIP_EPS = 1e-6  # as torch's clip_grad_norm_
_NORM_CHUNK = 1 << 18


@dataclass
class Replica(Slot):
    """The stage that a worker holds, and what the microbatches of step `version` are run with."""

    optimizer: FlatOptimizer
    """It makes the versions."""
    wire: Wire
    peer: str
    """Ours, by which keys name us."""
    graphs_kept: int
    samples: Samples | None
    """The source of the first stage's microbatches; None if the node sends them."""
    version: int = field(default=0, init=False)
    outliers: OutlierFilter = field(init=False)
    """Sizes of the tensors from other stages."""
    sequences_at_once: int = field(init=False)
    """Sequences of a microbatch that are run at a time: all, until memory is short."""

    def __post_init__(self) -> None:
        super().__post_init__()
        run, stage = self.wire.run, self.wire.stage
        self.outliers = OutlierFilter({"forward": stage, "backward": run.stage_count - 1 - stage})
        self.sequences_at_once = run.sequences_per_microbatch

    @property
    def parameters(self) -> Tensor:
        """Those of `version`, (N,); of the leader's, where that makes the versions."""
        return self.optimizer.values

    @property
    def version_stage(self) -> Stage:
        """A module with the parameters of `version`, for passes that count for no step."""
        return self.module

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
        """The tensors of a version: a vector (N,) for each section of its `StateSpec`."""
        return self.parameters, *self.optimizer.vectors

    def check_step(self, step: int) -> None:
        """Refuse what is for another step by `StaleRequest`."""
        if step != self.version:
            raise StaleRequest(f"request is for step {step}, the stage is at {self.version}")

    def count(self, microbatch: int) -> None:
        """See `Slot`."""
        super().count(microbatch)
        self.outliers.count(microbatch)

    def close(self) -> None:
        """Nothing more is counted."""

    def contribution(self, start: int, end: int) -> Tensor:
        """Return these elements of what this replica adds to the step, perhaps the sum's own."""
        return self.gradient_sum[start:end]

    def update(
        self, total: Tensor, squared_norm: float, rate: float | None, stretch: float = 1.0
    ) -> float:
        """Make the next version of the total of the contributions, (N,); return the norm of the
        mean gradient, or of the mean difference. Equal inputs give bit-identical versions at all
        replicas.

        ``rate`` is the learning rate; None: that of the schedule. ``stretch`` is a factor of the
        mean difference of a local round.
        """
        config, tokens = self.optimizer.spec, self.wire.run.tokens_per_step
        rate = learning_rate(config, self.version) if rate is None else rate
        scale = step_scale(squared_norm, tokens, stage_clip(config, self.part.count))
        self.optimizer.step(total, rate, scale * stretch)
        self.begin(self.version + 1)
        return math.sqrt(squared_norm) / tokens

    def begin(self, version: int) -> None:
        """Begin the step of a version with nothing accumulated; its parameters are there, or come
        from the process that makes them."""
        self.clear()
        self.version = version

    def replace_state(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Switch to another version, with nothing accumulated: its tensors (N,), as `state_tensors`
        has them, are copied, unless they are these themselves."""
        for own, new in zip(self.state_tensors, tensors, strict=True):
            if own.data_ptr() != new.data_ptr() or own.device != new.device:
                own.copy_(new)
        self.optimizer.steps_done = version
        self.begin(version)

    def load_base(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what is frozen beside adapters, by name, each on the device and in its type."""
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                parameter.data = tensors[name]

    @property
    def parts(self) -> list[slice]:
        """The slices of the sequences [0, B) that are run one after the other."""
        count, size = self.wire.run.sequences_per_microbatch, self.sequences_at_once
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def halve(self, words: str) -> None:
        """Have a pass that ran out of memory, and changed nothing but scratch, run fewer sequences
        at once; outputs are concatenated and gradients added up. A number that did not fit once
        will not fit reliably, so it only ever falls. Call it when the exception is forgotten, for
        it keeps the failed pass's memory alive.

        Raises:
            OutOfMemory: not even one sequence fits.
        """
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
        if self.sequences_at_once <= 1:
            tokens = self.wire.run.model.context
            raise OutOfMemory(
                f"not even one sequence of {tokens} tokens fits in memory beside stage "
                f"{self.part.index}: {words}"
            )
        self.sequences_at_once = -(-self.sequences_at_once // 2)

    @property
    def is_small(self) -> bool:
        """Whether the state is hashed so soon that asking for it would take as long."""
        return sum(tensor.nbytes for tensor in self.state_tensors) <= LEAF_BYTES

    def state_hash(self) -> str:
        """Hex hash of this version, computed here and now."""
        return hash_tensors(self.version, self.state_tensors, torch.get_num_threads())


@dataclass
class LocalReplica(Replica):
    """A replica in local rounds, which takes optimizer steps of its own between two versions.

    It contributes how far its weights have come, times the tokens that it counts: like a gradient
    sum, that is summed over the replicas and divided by the tokens of all.

    The moments of the inner optimizer are this replica's own, so they are no part of a version;
    they go on from round to round, and a newcomer begins without any. An inner step uses the
    gradient sum up, and the graphs that were kept are dropped: run again, their gradients are those
    of the weights as they are now.

    Fields:
        inner: the optimizer of the weights that passes compute with.
        inner_microbatches: that make an inner step.
        rate: the learning rate of the version's steps by an amendment; None: the schedule's.
        waiting: microbatches in the gradient sum.
    """

    inner: FlatOptimizer = field(kw_only=True)
    inner_microbatches: int = field(kw_only=True)
    rate: float | None = None
    waiting: int = 0
    _version_stage: Stage | None = None

    @property
    def version_stage(self) -> Stage:
        """See `Replica`."""
        if self._version_stage is None:
            self._version_stage = twin(self.module)
            self.flat.bind(self._version_stage, self.parameters.to(self.flat.values.device))
        return self._version_stage

    def count(self, microbatch: int) -> None:
        """See `Replica`. Maybe take an inner step."""
        super().count(microbatch)
        self.waiting += 1
        if self.waiting == self.inner_microbatches:
            self.close()

    def close(self) -> None:
        """Take an inner step with what is in the sum, as much shorter as microbatches are fewer."""
        if not self.waiting:
            return
        tokens, spec = self.waiting * self.wire.run.tokens_per_microbatch, self.inner.spec
        clip = stage_clip(spec, self.part.count)
        scale = step_scale(squared_norm(self.gradient_sum), tokens, clip)
        rate = self._inner_rate() * self.waiting / self.inner_microbatches
        self.inner.step(self.gradient_sum, rate, scale)
        self.gradient_sum.zero_()
        self.graphs.clear()
        self.waiting = 0

    def usual_distance(self, microbatches: int) -> float:
        """Return how far a number comes in a round, root mean square, times the tokens of a
        microbatch: it goes to and fro, for honest rounds are up to some times as long."""
        steps = math.sqrt(microbatches / self.inner_microbatches)
        return USUAL_SIZE * self._inner_rate() * steps * self.wire.run.tokens_per_microbatch

    def _inner_rate(self) -> float:
        return learning_rate(self.inner.spec, self.version) if self.rate is None else self.rate

    def contribution(self, start: int, end: int) -> Tensor:
        """See `Replica`."""
        home = self.gradient_sum.device
        base, values = (each[start:end].to(home) for each in (self.parameters, self.flat.values))
        tokens = len(self.counted) * self.wire.run.tokens_per_microbatch
        return torch.sub(base, values).mul_(tokens)

    def update(
        self, total: Tensor, squared_norm: float, rate: float | None, stretch: float = 1.0
    ) -> float:
        """See `Replica`; the rate is that of the next round's inner steps."""
        self.rate = rate
        return super().update(total, squared_norm, None, stretch)

    def begin(self, version: int) -> None:
        """See `Replica`."""
        super().begin(version)
        self.flat.values.copy_(self.parameters)
        self.waiting, self._version_stage = 0, None

    def replace_state(self, version: int, tensors: Sequence[Tensor]) -> None:
        """See `Replica`. The inner optimizer begins without moments, as a newcomer's."""
        for vector in self.inner.vectors:
            vector.zero_()
        self.inner.steps_done, self.rate = 0, None
        super().replace_state(version, tensors)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device or the host could not give the memory that was needed."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError | OutOfMemory):
        return True
    # The allocators of the CPU and of Apple's GPUs have no exception types of their own.
    words = "allocate memory", "MPS backend out of memory"
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def _is_fast(device: torch.device) -> bool:
    """Whether it is a card that multiplies in bf16 itself; older ones emulate it."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def open_replica(
    request: OpenStage, device: torch.device, leader: Replica | None = None
) -> Replica:
    """A replica at version 0 on a device; a ``leader`` on another one makes the versions for it,
    too.

    Raises:
        ShapeError: in local rounds there is no leader.
    """
    run, spec = request.manifest, request.manifest.model
    part = slices(run.layers_per_stage)[request.stage]
    if run.local_rounds is not None and leader is not None:
        raise ShapeError("in local rounds each device trains alone: start a volunteer for each")
    module = (blank_stage if run.start else build_stage)(spec, part, run.seed).to(device)
    module.precision = precision_on(run.compute, fast_in_bf16=_is_fast(device))
    module.reruns_blocks = request.fit.reruns_blocks
    module.logits_at_once = request.fit.logits_at_once
    flat = FlatParameters(module, home=vectors_for(request, device))
    wire = Wire(run, request.swarm, request.stage, device)
    samples = Samples(request) if request.corpus else None
    rest = wire, request.peer, request.fit.graphs, samples
    if leader is not None:
        return Replica(module, flat, leader.optimizer, *rest)
    home = flat.home
    if run.local_rounds is not None:  # what is touched once a round lies in a GPU's host memory
        home = Vectors(device) if device.type == "cpu" else host_vectors(device)
    own, matrices = flat_optimizer(run.optimizer), hidden_matrices(spec, part)
    optimizer = own(flat.values, flat.decay_size, run.optimizer, matrices, home)
    if run.local_rounds is None:
        return Replica(module, flat, optimizer, *rest)
    base = home.zeros(flat.values.numel()).copy_(flat.values)
    outer, optimizer.alone = flat_optimizer(OUTER)(base, 0, OUTER, home=home), True
    every = run.local_rounds.inner_microbatches
    return LocalReplica(module, flat, outer, *rest, inner=optimizer, inner_microbatches=every)


def step_scale(squared_norm: float, tokens: int, largest_norm: float) -> float:
    """Return the factor of a gradient sum over so many tokens, rounded to fp32 as it is used: 1 /
    tokens, less if the mean gradient's norm would exceed ``largest_norm``; 0: it has no bound."""
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


def digest_of_tensors(parts: Sequence[Tensor]) -> bytes:
    """Digest of a leaf."""
    return leaf_digest(map(host_bytes, parts))


def hash_tensors(
    version: int,
    tensors: Sequence[Tensor],
    threads: int,
    digest: Callable[[Sequence[Tensor]], bytes] = digest_of_tensors,
) -> str:
    """Hex hash of a version with these vectors, made by so many threads; ``digest`` returns that of
    a leaf, which comes in parts."""
    data = [tensor.detach().view(torch.uint8) for tensor in tensors]
    with ThreadPoolExecutor(threads, "hasher") as pool:
        return root(version, pool.map(digest, leaves(data)))
