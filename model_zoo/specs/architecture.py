"""The numbers of a model of any family, each in its range; families say which of them they have."""

from typing import Literal, get_args

from msgspec import NODEFAULT
from msgspec.structs import fields

from model_zoo.specs.description import Description

_LARGEST = {
    "layers": 1024,
    "width": 65_536,
    "heads": 1024,
    "kv_heads": 1024,
    "ffn_width": 1 << 20,
    "context": 1 << 20,
    "vocab": 1 << 20,
}
MOST_HEAD_DIM = 4096
MAX_EXPERTS = 512
"""Of a layer."""
MAX_EXPERTS_IN_ALL = 1 << 15
"""Of all layers: each has three tensors in a Hugging Face folder."""


class Rope(Description, frozen=True):
    """Rotary angles computed in fp32, as `transformers` does, and how they are scaled.

    Fields:
        kind: `default` has the angles as they are; `linear` divides them all by `factor`; `llama3`
            divides those of slow rotations by `factor` and blends in between; so does `yarn`, which
            makes queries and keys longer as well.
        factor: how much longer the context is than in pre-training.
        low, high: `llama3`, `yarn`: rotations within the original context below which an angle is
            divided, and above which it is kept.
        original: `llama3`, `yarn`: context of the pre-training in tokens.
        magnitude: `yarn`: factor of queries and keys; None: 0.1 ln(factor) + 1.
        dims: numbers at the beginning of each head that are rotated; None: all.

    Raises:
        ValueError: a number is out of range, or not used by this kind.
    """

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    magnitude: float | None = None
    dims: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1.0 <= self.factor <= 1e6:
            raise ValueError(f"rope.factor must lie between 1 and 1e6, got {self.factor!r}")
        if not 0.0 < self.low < self.high <= 1e6:
            raise ValueError(f"rope.low {self.low!r} must lie below rope.high {self.high!r}")
        if type(self.original) is not int or not 1 <= self.original <= 1 << 20:
            raise ValueError(f"rope.original must lie between 1 and 2**20, got {self.original!r}")
        if self.magnitude is not None and not 0.0 < self.magnitude <= 1e3:
            raise ValueError(f"rope.magnitude must lie above 0, to 1e3, got {self.magnitude!r}")
        if self.dims is not None and (
            type(self.dims) is not int or not 2 <= self.dims <= MOST_HEAD_DIM
        ):
            raise ValueError(f"rope.dims must lie between 2 and 4096, got {self.dims!r}")
        used = {"default": 0, "linear": 1, "llama3": 4, "yarn": 5}[self.kind]
        unused = (self.factor, self.low, self.high, self.original, self.magnitude)[used:]
        if unused != (1.0, 1.0, 4.0, 8192, None)[used:]:  # one model, one spelling
            raise ValueError(f"rope {self.kind} has numbers that it does not use: leave them out")


class Scales(Description, frozen=True):
    """What a model multiplies with where others do not, and bounds by a tangent.

    Fields:
        embedding: factor of what is looked up.
        attention: factor of scores; None: one by the square root of the head's size.
        residual: factor of what attention and feed-forward add to the residual stream.
        logits: what logits are divided by.
        attention_cap, logits_cap: bounds of scores and of logits; None: they have none.

    Raises:
        ValueError: a number is out of range.
    """

    embedding: float = 1.0
    attention: float | None = None
    residual: float = 1.0
    logits: float = 1.0
    attention_cap: float | None = None
    logits_cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 1e-6 <= value <= 1e6:
                raise ValueError(f"scales.{name} must lie between 1e-6 and 1e6, got {value!r}")


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
        architecture: name of a family of the zoo.
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
        rope: how rotary angles are scaled.
        window: tokens that a token looks back on, itself included; None: all.
        full_every: every so many-th layer has no window.
        local_theta: base of the rotary angles of layers with a window, which are not scaled.
        nope_every: every so many-th layer has no rotary positions.
        scales: factors and bounds.
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
    rope: Rope = Rope()
    window: int | None = None
    full_every: int | None = None
    local_theta: float | None = None
    nope_every: int | None = None
    scales: Scales | None = None
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
        self._check_counts()
        self._check_switches()

    def _check_counts(self) -> None:
        bounds = {"head_dim": MOST_HEAD_DIM, "window": 1 << 20, "max_context": 1 << 24}
        bounds |= {"full_every": 1024, "nope_every": 1024}
        for name, largest in bounds.items():
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 1 <= value <= largest):
                raise ValueError(f"{name} must be an integer from 1 to {largest}, got {value!r}")

    def _check_switches(self) -> None:
        in_all = self.layers * (0 if self.experts is None else self.experts.count)
        if in_all > MAX_EXPERTS_IN_ALL:
            raise ValueError(f"{in_all} experts in all layers are above {MAX_EXPERTS_IN_ALL}")
        if self.window is None and (self.full_every or self.local_theta) is not None:
            raise ValueError("full_every and local_theta are of models with a window")
        if self.local_theta is not None and not 1.0 < self.local_theta < 1e12:
            raise ValueError(f"local_theta must lie between 1 and 1e12, got {self.local_theta!r}")
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

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens a layer looks back on; None: on all."""
        full = self.full_every is not None and (layer + 1) % self.full_every == 0
        return None if full else self.window


SWITCHES = {
    field.name: field.default
    for field in fields(Shape)
    if field.default is not NODEFAULT and field.name not in ("vocab", "rope_theta")
}
"""Fields that not every family has, with their defaults; each family names its own."""
