"""What a family of models is: the shapes it accepts, its tensors, and what others call all that.

A family is a file of `model_zoo.specs.families`, and one of `model_zoo.models` if it computes what
none before it did. `transformers` and llama.cpp are described here as well, in names and numbers;
`model_zoo.huggingface` and `model_zoo.llama_cpp` read and write files by them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from model_zoo.specs.architecture import Shape
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.settings import Config

Tensors = dict[str, tuple[int, ...]]
"""Shapes of parameters by name, in the order of the module's own parameters."""
Value = bool | int | float | str | list[str] | list[int] | list[float]
Keys = dict[str, Value]
"""Metadata of a GGUF file."""
OUTPUT = "lm_head"
"""Name of the output projection."""


class Size(NamedTuple):
    """A published model, and how long runs of its size begin.

    Fields:
        layers, width, heads, kv_heads, ffn_width, vocab, theta: of its `Shape`.
        lr: highest learning rate.
        tied: whether its output projection is the embedding.
        context: longest sequence; models that read longer ones do so after a later phase.
        sequences, microbatches: of a microbatch, and of a step.
        switches: other fields of its `Shape`.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocab: int
    theta: float
    lr: float
    tied: bool = True
    context: int = 2048
    sequences: int = 1
    microbatches: int = 64
    switches: Mapping[str, Any] = {}


class Family(ABC):
    """The facts of one family, whose parameters have the names that they have in `transformers`;
    holds no state."""

    name: ClassVar[str]
    """In manifests; its file has the same one."""

    model: ClassVar[str]
    """The file of `model_zoo.models` that computes it."""

    switches: ClassVar[frozenset[str]] = frozenset()
    """Those of `SWITCHES` that such a model may have."""

    sizes: ClassVar[Mapping[str, Size]] = {}
    """Published models, by the presets' names."""

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

    first_gain: ClassVar[float] = 1.0
    """What norms begin with."""

    learned_positions: ClassVar[bool] = False
    """Whether a model has no other context than its own."""

    # --- in transformers

    model_type: ClassVar[str]
    class_name: ClassVar[str]

    tied_by_default: ClassVar[bool] = False
    """What a file means that does not say."""

    output: ClassVar[str] = OUTPUT
    """Name of the output projection in files."""

    transposed: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of the matrices that files have transposed."""

    expert_names: ClassVar[tuple[str, str, str, str]] = ("mlp", "gate_proj", "up_proj", "down_proj")
    """Names in files of a mixture of experts, and of an expert's gate, up and down matrices."""

    # --- in llama.cpp

    gguf: ClassVar[str]
    """The architecture that computes what these models do."""

    rotates_neighbours: ClassVar[bool] = False
    """Whether it rotates the pairs (2i, 2i + 1) of a head, and not (i, i + D/2) as we."""

    knows_windows: ClassVar[bool] = False
    """Whether a window is computed there, too."""

    always_tied: ClassVar[bool] = False
    """Whether it has no output projection but the embedding."""

    by_heads: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of parameters in which each head has its query, key and value together;
    there all queries come first."""

    @abstractmethod
    def problem(self, shape: Shape) -> str | None:
        """Say in words why no such model has this shape, or None."""

    def embedding(self, shape: Shape) -> Tensors:
        """Return the parameters of the embedding, by their names in the decoder."""
        return {self.tokens: (shape.vocab, shape.width)}

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

    def fused(self, shape: Shape) -> Mapping[str, tuple[int, ...]]:
        """Return the rows of the matrices that are below one another in a layer's parameter, where
        it is not one."""
        return {}

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

    @abstractmethod
    def read(self, config: Config, context: int | None) -> Shape:
        """Return the shape that a `config.json` of this type describes.

        What the file says about the mathematics is either in the shape or refused: a setting that
        is overlooked would give a model that computes something else.

        Args:
            config: the parsed file, from anywhere.
            context: longest sequence to train, tokens; None: the model's own.

        Raises:
            ValueError: a setting is missing, out of range or not supported.
        """

    @abstractmethod
    def write(self, shape: Shape) -> dict[str, Any]:
        """Return the `config.json` of a shape, without what all models have.

        Raises:
            ValueError: `transformers` has no such model.
        """

    def gguf_problem(self, shape: Shape) -> str | None:
        """Say in words what llama.cpp's architecture does otherwise, or None."""
        return None

    @abstractmethod
    def gguf_keys(self, shape: Shape) -> Keys:
        """Return the numbers that only some architectures of llama.cpp read, by their keys."""


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
