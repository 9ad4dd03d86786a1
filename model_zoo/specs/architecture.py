"""The numbers of a model of any family, each in its range; families say which of them they have."""

from typing import Annotated, Literal

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from model_zoo.specs.description import Ranged

Layers = Annotated[int, Meta(ge=1, le=1024)]
Width = Annotated[int, Meta(ge=1, le=65_536)]
Many = Annotated[int, Meta(ge=1, le=1 << 20)]
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
MOST_HEAD_DIM = 4096
MAX_EXPERTS_IN_ALL = 1 << 15
"""Of all layers: each has three tensors in a Hugging Face folder."""


class Rope(Ranged, frozen=True):
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
    factor: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
    low: Annotated[float, Meta(gt=0)] = 1.0
    high: Annotated[float, Meta(le=1e6)] = 4.0
    original: Many = 8192
    magnitude: Annotated[float, Meta(gt=0, le=1e3)] | None = None
    dims: Annotated[int, Meta(ge=2, le=MOST_HEAD_DIM)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"rope.low {self.low!r} must lie below rope.high {self.high!r}")
        used = {"default": 0, "linear": 1, "llama3": 4, "yarn": 5}[self.kind]
        unused = (self.factor, self.low, self.high, self.original, self.magnitude)[used:]
        if unused != (1.0, 1.0, 4.0, 8192, None)[used:]:  # one model, one spelling
            raise ValueError(f"rope {self.kind} has numbers that it does not use: leave them out")


class Scales(Ranged, frozen=True):
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

    embedding: Factor = 1.0
    attention: Factor | None = None
    residual: Factor = 1.0
    logits: Factor = 1.0
    attention_cap: Factor | None = None
    logits_cap: Factor | None = None


class Experts(Ranged, frozen=True):
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

    count: Annotated[int, Meta(ge=2, le=512)]
    active: Annotated[int, Meta(ge=1)]
    shares: Literal["chosen", "all"] = "chosen"
    balance: Annotated[float, Meta(ge=0, le=1)] = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > self.count:
            raise ValueError(f"{self.active} active experts are more than {self.count}")


GROUP = 64
"""Numbers of a packed row that share a scale of two bytes."""
PACKED_BITS = {"int8": 8, "nf4": 4}
"""Bits of a number, by how a frozen matrix is packed."""
Base = Literal["bf16", "fp32", "int8", "nf4"]


class Lora(Ranged, frozen=True):
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

    rank: Width
    alpha: Annotated[float, Meta(gt=0, le=1e6)]
    targets: tuple[str, ...]
    base: Base = "bf16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise ValueError("lora.targets names no linear layer: without one nothing is trained")

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


class Shape(Ranged, frozen=True):
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
    layers: Layers
    width: Width
    heads: Annotated[int, Meta(ge=1, le=1024)]
    kv_heads: Annotated[int, Meta(ge=1, le=1024)]
    ffn_width: Many
    context: Many
    vocab: Many = 256
    rope_theta: Annotated[float, Meta(gt=0, le=1e30)] = 10_000.0
    bias: bool = False
    norm_eps: Annotated[float, Meta(gt=0, le=0.1)] = 1e-5
    gelu: Literal["exact", "tanh", "new"] = "exact"
    head_dim: Annotated[int, Meta(ge=1, le=MOST_HEAD_DIM)] | None = None
    rope: Rope = Rope()
    window: Many | None = None
    full_every: Layers | None = None
    local_theta: Annotated[float, Meta(gt=1, lt=1e12)] | None = None
    nope_every: Layers | None = None
    scales: Scales = Scales()
    max_context: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    experts: Experts | None = None
    tied: bool = False
    lora: Lora | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        in_all = self.layers * (0 if self.experts is None else self.experts.count)
        if in_all > MAX_EXPERTS_IN_ALL:
            raise ValueError(f"{in_all} experts in all layers are above {MAX_EXPERTS_IN_ALL}")
        if self.window is None and (self.full_every or self.local_theta) is not None:
            raise ValueError("full_every and local_theta are of models with a window")
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
    def score_scale(self) -> float:
        """Factor of the attention's scores."""
        return self.head_width**-0.5 if self.scales.attention is None else self.scales.attention

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
