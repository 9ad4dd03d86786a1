"""Floating-point operations that a model needs for a token: the one place of that formula. Pure.

What is counted is what the model needs, however it is computed: work that is done twice, because a
graph was not kept, counts once. Model FLOP utilisation (MFU) is these operations per second over
what the device multiplies per second (Chowdhery et al., arXiv 2204.02311, appendix B).
"""

from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.slices import StageSlice, boundary_ends

_BACKWARD_AND_FORWARD = 3  # a backward pass multiplies with weights and with inputs: 2 x forward
_FROZEN = 2  # with weights only, beside adapters, which are small
_NEWTON_SCHULZ = 5  # iterations that make a matrix orthogonal


def flops_per_token(spec: ModelSpec, part: StageSlice) -> int:
    """Floating-point operations of one token, forward and backward, at full context.

    Backward counts twice forward (Kaplan et al., arXiv 2001.08361, section 2.1), or once where all
    weights are frozen.
    """
    passes = _BACKWARD_AND_FORWARD if spec.lora is None else _FROZEN
    return passes * forward_flops_per_token(spec, part)


def forward_flops_per_token(spec: ModelSpec, part: StageSlice) -> int:
    """Floating-point operations of one token forward, at full context.

    Two per weight of a matrix that the token is multiplied with, plus attention over what a token
    looks back on: half the context on average, less in a window. Lookups count nothing.
    """
    layers = part.last_layer - part.first_layer
    # scores and mix: two operations each for every number of a head and every token looked at
    looked_at_twice = sum(_looked_at_twice(spec, layer) for layer in part.layers)
    attention = 2 * looked_at_twice * spec.joined_width
    forward = layers * 2 * spec.layer_matrix_size + attention
    if part.has_head:
        forward += 2 * spec.width * spec.vocab
    return forward + len(boundary_ends(spec, part)) * 2 * spec.width * spec.boundary_width


def _looked_at_twice(spec: ModelSpec, layer: int) -> int:
    """Twice the tokens that one attends to on average: T, or in a window W less."""
    context, window = spec.context, spec.window_of(layer)
    if window is None or window >= context:
        return context
    return 2 * window - window**2 // context


def update_flops(spec: ModelSpec, part: StageSlice, optimizer: str) -> int:
    """Floating-point operations of one step of an optimizer on a stage.

    Of a matrix, with r its shorter side and c its longer one, each iteration makes the product with
    its transpose (2 r^2 c), squares that (2 r^3) and multiplies the matrix with it (2 r^2 c).
    Optimizers that treat numbers one by one count nothing.
    """
    if not OPTIMIZERS[optimizer].by_matrix:
        return 0
    sides = (sorted((each.rows, each.columns)) for each in hidden_matrices(spec, part))
    return _NEWTON_SCHULZ * sum(4 * r * r * c + 2 * r**3 for r, c in sides)
