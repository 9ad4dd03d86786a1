"""The memory that a replica of a stage needs; pure arithmetic, no torch.

The terms are those of this worker: it trains in fp32, adds one scratch gradient (see `replica`),
and keeps whole forward graphs where memory allows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from model_zoo.specs.aggregation import RULES
from model_zoo.specs.codec import CODECS
from model_zoo.specs.matrices import largest_matrix
from model_zoo.specs.model import LOGITS_AT_ONCE, ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.precision import MATRIX_BYTES, POSSIBLE, SAVED_SHARE, Precision
from model_zoo.specs.slices import frozen_bytes, slices, stage_parameters
from model_zoo.specs.state import NUMBER_BYTES
from protocol.manifest import Manifest

# The graph of the block that is run again, and the gradients of the same size on the way back.
_BLOCK_COPIES = 2
LOGIT_BYTES = 4 * NUMBER_BYTES
"""Of a number of logits, its log-softmax and the gradients of both."""
USED_SHARE = 0.85
"""Of the memory that may be used: the rest is for what no estimate knows."""
USUAL_GRAPHS = 2
"""Graphs kept that fill the pipeline; a volunteer with more memory keeps more."""
OFFLOAD_WINDOW = 1 << 20
"""Elements of an offloaded vector that are on the device at a time (4 MiB): enough to hide what a
copy costs."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose."""

    state_bytes: int
    graph_bytes: int
    graphs: int
    head_bytes: int
    block_bytes: int = 0
    """Of the block that is run once more, where graphs keep inputs alone."""
    frozen_bytes: int = 0
    """What is frozen beside adapters, and a matrix of it in fp32 where it is kept smaller."""
    offloaded_bytes: int = 0
    """What lies in a GPU's host memory, and does not count here."""

    @property
    def total_bytes(self) -> int:
        """The peak, with all graphs kept."""
        return self.fixed_bytes + self.graph_bytes * self.graphs

    @property
    def fixed_bytes(self) -> int:
        """The peak without graphs."""
        return self.state_bytes + self.head_bytes + self.block_bytes + self.frozen_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """How a stage fits."""

    graphs: int
    """Forward graphs that can be kept."""
    size_bytes: int = 0
    """Memory it takes at most, with them."""
    reruns_blocks: bool = False
    """Whether graphs keep the blocks' inputs alone: a whole one does not fit."""
    logits_at_once: int = LOGITS_AT_ONCE
    """Numbers of logits that a GPU's loss has at a time: as many as there is memory left for."""
    offloaded_bytes: int = 0
    """Vectors that passes need and that lie with a GPU's host; 0: these lie beside the weights."""


def memory_need(
    manifest: Manifest,
    stage: int,
    graphs_kept: int = 1,
    *,
    reruns_blocks: bool = False,
    offload: bool = False,
    host: bool = False,
) -> MemoryNeed:
    """Return the memory that a replica of a stage needs, without the process itself; where passes
    may compute in several types it is enough for all.

    Args:
        graphs_kept: forward graphs held for their backward; one more is in use.
        reruns_blocks: whether graphs keep the blocks' inputs alone.
        offload: whether all vectors but those that passes are run at lie in a GPU's host memory.
        host: whether a GPU computes, whose host has memory of its own: what a local round or an
            inner step touches once lies there.
    """
    model, cut, batch = manifest.model, manifest.layers_per_stage, manifest.tokens_per_microbatch
    parameters, is_last = stage_parameters(model, cut, stage), stage == len(cut) - 1
    codec = CODECS[manifest.averaging_codec]
    # at most 2 bytes a number, or what is sent and what comes
    sent = math.ceil(2 * min(1.0, codec.bytes_per_number) * parameters) * (not codec.lossless)
    contributions = parameters * NUMBER_BYTES * RULES[manifest.aggregation].robust
    here, away = _vectors(manifest, offload=offload, host=host)
    if away:
        # The host has what is sent, and the contributions, which are compared there.
        averaging = sent * 2 // 3 + min(parameters, OFFLOAD_WINDOW) * NUMBER_BYTES * away
    else:
        averaging = sent + contributions
    scratch = OPTIMIZERS[manifest.optimizer.name].matrix_scratch * largest_matrix(model)
    graph_bytes, block_bytes = _graph_and_block_bytes(manifest, stage, parameters, reruns_blocks)
    return MemoryNeed(
        state_bytes=parameters * NUMBER_BYTES * (1 + here) + averaging + scratch,
        offloaded_bytes=parameters * NUMBER_BYTES * away + (contributions if away else 0),
        graph_bytes=graph_bytes,
        block_bytes=block_bytes,
        graphs=1 if is_last else graphs_kept + 1,
        head_bytes=_head_bytes(model, batch) if is_last else 0,
        frozen_bytes=_frozen_bytes(model, cut, stage),
    )


def _vectors(manifest: Manifest, *, offload: bool, host: bool) -> tuple[int, int]:
    """Return how many vectors as long as the parameters lie beside those that passes are run at,
    and how many lie in the host's memory."""
    passing = 2  # the gradient sum, and the scratch of gradients
    residual = not CODECS[manifest.averaging_codec].lossless
    rounds = len(manifest.state.sections) - 1 + residual
    inner = manifest.inner_optimizer
    if inner is not None:
        rounds += 1 + len(OPTIMIZERS[inner].vectors)  # the version's parameters
    if offload:
        return 0, passing + rounds
    if inner is not None and host:
        return passing, rounds
    return passing + rounds, 0


def _graph_and_block_bytes(
    manifest: Manifest, stage: int, parameters: int, reruns_blocks: bool
) -> tuple[int, int]:
    """Return the bytes of a kept graph, and of the block that is run once more."""
    model, batch = manifest.model, manifest.tokens_per_microbatch
    layers, is_last = manifest.layers_per_stage[stage], stage == manifest.stage_count - 1
    ends = 0
    if model.narrow is not None:  # what came, and what is projected
        numbers = (stage > 0) * model.boundary_width + (not is_last) * model.width
        ends = batch * numbers * NUMBER_BYTES
    whole = ends + max(
        _graph_bytes(model, layers, batch, parameters, precision)
        for precision in POSSIBLE[manifest.compute]
    )
    if not reruns_blocks:
        return whole, 0
    block_bytes = whole * min(_BLOCK_COPIES, layers) // max(1, layers)
    return layers * batch * model.width * NUMBER_BYTES + ends, block_bytes


def _graph_bytes(
    model: ModelSpec, layers: int, batch: int, parameters: int, precision: Precision
) -> int:
    """What autograd keeps of a forward of so many tokens through so many layers."""
    saved = layers * batch * model.facts.saved_per_token(model, precision) * NUMBER_BYTES
    return math.ceil(SAVED_SHARE[precision] * saved) + MATRIX_BYTES[precision] * parameters


def _head_bytes(model: ModelSpec, batch: int) -> int:
    """Logits and what is made of them for a batch of so many tokens; in pieces, the gradients of
    the hidden state and of the head's parameters are held beside them."""
    pieces = LOGIT_BYTES * min(batch * model.vocab, max(LOGITS_AT_ONCE, model.vocab))
    if batch * model.vocab <= LOGITS_AT_ONCE:
        return pieces
    own = sum(map(math.prod, model.head_tensors.values()))
    if model.tied:
        own += model.width * model.vocab
    trained = 0 if model.lora is not None else 2 * own
    return pieces + NUMBER_BYTES * (batch * model.width + trained)


def _frozen_bytes(model: ModelSpec, layers_per_stage: Sequence[int], stage: int) -> int:
    if model.lora is None:
        return 0
    kept = frozen_bytes(model, slices(layers_per_stage)[stage])
    if model.lora.base_bytes == NUMBER_BYTES:
        return kept
    matrices = [math.prod(shape) for shape in model.facts.block(model).values()]
    if stage == len(layers_per_stage) - 1:
        matrices.append(model.width * model.vocab)
    return kept + NUMBER_BYTES * max(matrices)


def graphs_that_fit(need: MemoryNeed, available_bytes: int) -> int:
    """Return the number of graphs that fit; -1 if the stage does not fit."""
    return max(
        -1, (int(USED_SHARE * available_bytes) - need.fixed_bytes) // max(1, need.graph_bytes) - 1
    )
