"""An architecture's description without torch: the shapes it accepts, and its tensors.

`Shape` has the numbers of a model of any architecture. An `Architecture` is a file of
`model_zoo.specs.architectures`; its modules are in the file of the same name in `model_zoo.models`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from msgspec import NODEFAULT
from msgspec.structs import fields

from model_zoo.specs.description import Description
from model_zoo.specs.precision import DEFAULT, Precision

Tensors = dict[str, tuple[int, ...]]
"""Shapes of parameters by name, in the order of the module's own parameters."""

_LARGEST = {
    "layers": 1024,
    "width": 65_536,
    "heads": 1024,
    "kv_heads": 1024,
    "ffn_width": 1 << 20,
    "context": 1 << 20,
    "vocab": 1 << 20,
}
OUTPUT = "lm_head"
"""Name of the output projection."""
MAX_EXPERTS = 512
"""Of a layer."""
MAX_EXPERTS_IN_ALL = 1 << 15
"""Of all layers: each has three tensors in a Hugging Face folder."""


class Rope(Description, frozen=True):
    """Rotary angles computed in fp32, as `transformers` does, and how they are scaled.

    Fields:
        kind: `default` has the angles as they are; `linear` divides them all by `factor`; `llama3`
            divides those of slow rotations by `factor` and blends in between.
        factor: how much longer the context is than in pre-training.
        low, high: `llama3`: rotations within the original context below which an angle is divided,
            and above which it is kept.
        original: `llama3`: context of the pre-training in tokens.

    Raises:
        ValueError: a number is out of range, or not used by this kind.
    """

    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1.0 <= self.factor <= 1e6:
            raise ValueError(f"rope.factor must lie between 1 and 1e6, got {self.factor!r}")
        if not 0.0 < self.low < self.high <= 1e6:
            raise ValueError(f"rope.low {self.low!r} must lie below rope.high {self.high!r}")
        if type(self.original) is not int or not 1 <= self.original <= 1 << 20:
            raise ValueError(f"rope.original must lie between 1 and 2**20, got {self.original!r}")
        used = {"default": 0, "linear": 1, "llama3": 4}[self.kind]
        unused = (self.factor, self.low, self.high, self.original)[used:]
        if unused != (1.0, 1.0, 4.0, 8192)[used:]:  # one model, one spelling
            raise ValueError(f"rope {self.kind} has numbers that it does not use: leave them out")


class Experts(Description, frozen=True):
    """A feed-forward part of many experts, of which a router chooses a few for each token.

    Fields:
        count: experts of a layer.
        active: experts that each token passes.
        shares: an expert's weight is its share of the probability of the token's `chosen` experts,
            or of `all`.
        balance: weight of the loss that keeps the experts equally busy, beside the mean
            cross-entropy; the mean over layers and sequences. 0: none.

    Raises:
        ValueError: a number is out of range.
    """

    count: int
    active: int
    shares: Literal["chosen", "all"] = "chosen"
    balance: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.count) is not int or not 2 <= self.count <= MAX_EXPERTS:
            raise ValueError(f"experts.count must lie between 2 and {MAX_EXPERTS}: {self.count!r}")
        if type(self.active) is not int or not 1 <= self.active <= self.count:
            raise ValueError(f"experts.active must lie between 1 and count, got {self.active!r}")
        if self.shares not in ("chosen", "all"):
            raise ValueError(f"experts.shares must be chosen or all, got {self.shares!r}")
        if not 0.0 <= self.balance <= 1.0:
            raise ValueError(f"experts.balance must lie between 0 and 1, got {self.balance!r}")


GROUP = 64
"""Numbers of a packed row that share a scale of two bytes."""
PACKED_BITS = {"int8": 8, "nf4": 4}
"""Bits of a number, by how a frozen matrix is packed."""
Base = Literal["bf16", "fp32", "int8", "nf4"]
BASES: tuple[str, ...] = get_args(Base)


class Lora(Description, frozen=True):
    """Adapters of low rank beside frozen weights: x W^T + (x A^T B^T) alpha / rank.

    Only A (rank, columns) and B (rows, rank) are trained. Source: Hu et al., arXiv 2106.09685.

    Fields:
        rank: of every adapter.
        alpha: numerator of the adapters' factor.
        targets: linear layers of every block that have one, by their names within it, in the
            architecture's order.
        base: type in which the frozen matrices are kept. They are multiplied in fp32. Packed ones
            (`int8`, `nf4`) are those of the blocks; embeddings and the head are then in bf16.

    Raises:
        ValueError: a number is out of range, or there is no target.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: Base = "bf16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.rank) is not int or not 1 <= self.rank <= 1 << 16:
            raise ValueError(f"lora.rank must lie between 1 and 65536, got {self.rank!r}")
        if not 0.0 < self.alpha <= 1e6:
            raise ValueError(f"lora.alpha must lie above 0, to 1e6, got {self.alpha!r}")
        if not self.targets:
            raise ValueError("lora.targets names no linear layer: without one nothing is trained")
        if self.base not in BASES:
            raise ValueError(f"lora.base must be one of {', '.join(BASES)}, got {self.base!r}")

    @property
    def scale(self) -> float:
        """Factor of what an adapter adds."""
        return self.alpha / self.rank

    @property
    def base_bytes(self) -> float:
        """Of a number of a block's frozen matrix."""
        if self.base in PACKED_BITS:
            return PACKED_BITS[self.base] / 8 + 2 / GROUP
        return self.ends_bytes

    @property
    def ends(self) -> Literal["bf16", "fp32"]:
        """Type in which the frozen embeddings and the head are kept."""
        return "fp32" if self.base == "fp32" else "bf16"

    @property
    def ends_bytes(self) -> int:
        """Of a number of them."""
        return 4 if self.ends == "fp32" else 2


class Shape(Description, frozen=True):
    """The numbers of a decoder-only transformer, each in its range.

    Fields:
        architecture: name of an architecture of the zoo.
        layers, width: number of blocks and size C of the residual stream.
        heads, kv_heads: query heads and key/value heads.
        ffn_width: inner size of the feed-forward part.
        context: longest sequence in tokens.
        vocab: number of tokens.
        rope_theta: base of the rotary angles, where the architecture has them.
        bias: whether linear layers and norms have biases.
        norm_eps: what norms add to the variance.
        gelu: `exact`, by erf; `tanh`, the approximation by a tangent; or `new`, the same in GPT-2's
            own steps, whose last bits differ.
        head_dim: size D of one attention head, where it is not width / heads.
        rope: rotary angles as `transformers` computes them; None: angles computed in fp64.
        qk_norm: queries and keys are normalised, each `head` by itself or the whole `projection`.
        qkv_bias: whether queries, keys and values have biases.
        window: tokens that a token looks back on, itself included; None: all.
        nope_every: every so many-th layer has no rotary positions.
        post_norm: whether what attention and feed-forward return is normalised, not what they
            take.
        max_context: longest sequence that an imported model takes, in tokens, where it is trained
            on shorter ones.
        experts: the feed-forward part is a mixture of them, each of inner size ffn_width.
        tied: whether the output projection is the embedding's own matrix; one stage then has
            both.
        lora: the weights are frozen, and adapters beside them are trained.

    Raises:
        ValueError: a field is out of range.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    context: int
    vocab: int = 256
    rope_theta: float = 10_000.0
    bias: bool = False
    norm_eps: float = 1e-5
    gelu: Literal["exact", "tanh", "new"] = "exact"
    head_dim: int | None = None
    rope: Rope | None = None
    qk_norm: Literal["head", "projection"] | None = None
    qkv_bias: bool = False
    window: int | None = None
    nope_every: int | None = None
    post_norm: bool = False
    max_context: int | None = None
    experts: Experts | None = None
    tied: bool = False
    lora: Lora | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} must be an integer from 1 to {largest}, got {value!r}")
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not 0 < self.rope_theta <= 1e30:
            raise ValueError(f"rope_theta must lie above 0, got {self.rope_theta!r}")
        self._check_switches()

    def _check_switches(self) -> None:
        bounds = {"head_dim": 4096, "window": 1 << 20, "nope_every": 1024, "max_context": 1 << 24}
        for name, largest in bounds.items():
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 1 <= value <= largest):
                raise ValueError(f"{name} must be an integer from 1 to {largest}, got {value!r}")
        in_all = self.layers * (0 if self.experts is None else self.experts.count)
        if in_all > MAX_EXPERTS_IN_ALL:
            raise ValueError(f"{in_all} experts in all layers are above {MAX_EXPERTS_IN_ALL}")
        if not 0 < self.norm_eps <= 0.1:
            raise ValueError(f"norm_eps must lie between 0 and 0.1, got {self.norm_eps!r}")
        if self.max_context is not None and self.max_context <= self.context:
            raise ValueError("max_context must be above context, or left out")
        if self.head_dim == self.width / self.heads:  # one model has one spelling
            raise ValueError("head_dim width / heads is the usual: leave it out")

    @property
    def longest(self) -> int:
        """The longest sequence that the model takes, in tokens."""
        return self.context if self.max_context is None else self.max_context

    @property
    def head_width(self) -> int:
        """Size D of one attention head."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def joined_width(self) -> int:
        """Columns of the attention's output projection: all heads side by side."""
        return self.heads * self.head_width

    @property
    def experts_per_layer(self) -> int:
        """Feed-forward parts of a layer: its experts, or one."""
        return 1 if self.experts is None else self.experts.count

    @property
    def experts_per_token(self) -> int:
        """Feed-forward parts of a layer that a token passes."""
        return 1 if self.experts is None else self.experts.active

    def has_positions(self, layer: int) -> bool:
        """Whether a layer has rotary positions."""
        return self.nope_every is None or (layer + 1) % self.nope_every != 0


SWITCHES = {
    field.name: field.default
    for field in fields(Shape)
    if field.default is not NODEFAULT and field.name not in ("vocab", "rope_theta")
}
"""Fields that not every architecture has, with their defaults; each architecture names its own."""


class Architecture(ABC):
    """The facts of one architecture, whose parameters have the names that they have in
    `transformers`; holds no state."""

    switches: ClassVar[frozenset[str]] = frozenset()
    """Those of `SWITCHES` that such a model may have."""

    decoder: ClassVar[str]
    """Name of all but the output projection, which is `OUTPUT`."""

    layers: ClassVar[str]
    """Name of the layers within it."""

    tokens: ClassVar[str]
    """Name of the token embedding's matrix."""

    usual_targets: ClassVar[tuple[str, ...]]
    """The linear layers that have adapters where nothing is chosen: as in `peft`."""

    residual_outputs: ClassVar[tuple[str, ...]]
    """Endings of the names of the matrices that write into the residual stream: they start
    smaller, by the square root of twice the layers."""

    fused: ClassVar[dict[str, int]] = {}
    """How many matrices are below one another in a layer's parameter, where it is not one."""

    transposed: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of the matrices that `transformers` has transposed."""

    @abstractmethod
    def problem(self, shape: Shape) -> str | None:
        """Say in words why no such model has this shape, or None."""

    @abstractmethod
    def embedding(self, shape: Shape) -> Tensors:
        """Return the parameters of the embedding, by their names in the decoder."""

    @abstractmethod
    def block(self, shape: Shape) -> Tensors:
        """Return the parameters of one layer, by their names within it."""

    @abstractmethod
    def final_norm(self, shape: Shape) -> Tensors:
        """Return the parameters of the final norm, by their names in the decoder."""

    def linears(self, shape: Shape) -> Tensors:
        """Return the shapes of a layer's linear layers, in its order, by their names within it."""
        matrices = {name: each for name, each in self.block(shape).items() if len(each) == 2}
        return {name.removesuffix(".weight"): each for name, each in matrices.items()}

    def idle_per_token(self, shape: Shape) -> int:
        """Return how many of a layer's parameters a token does not pass."""
        return 0

    @abstractmethod
    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        """Return how many numbers a layer keeps per token for its backward pass, which computes in
        ``precision``; what they take on average is `SAVED_SHARE`.

        Counted from what autograd keeps, rounded up.
        """

    @abstractmethod
    def usual_ffn_width(self, width: int) -> int:
        """Return the inner size that such models usually have at a width."""


def linear(name: str, rows: int, columns: int, *, bias: bool = False) -> Tensors:
    """Return the parameters of linear layer ``name``, from ``columns`` to ``rows`` numbers, with a
    ``bias`` or not."""
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, width: int, *, bias: bool = False) -> Tensors:
    """Return the parameters of normalisation ``name`` of ``width`` numbers: gain and, with
    ``bias``, shift."""
    gain: Tensors = {f"{name}.weight": (width,)}
    return gain | ({f"{name}.bias": (width,)} if bias else {})


def prefixed(prefix: str, tensors: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return the same tensors under longer names."""
    return {prefix + name: shape for name, shape in tensors.items()}
