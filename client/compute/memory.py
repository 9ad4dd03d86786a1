"""How much memory a replica of a stage needs; pure arithmetic, no torch.

Source: RECIPES.md, "Memory of a replica", with the terms of this worker: it trains in fp32, adds
one scratch gradient (see `replica`), and keeps whole forward graphs instead of one per layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from client.compute.payload import CodecName
from client.compute.requests import ModelFields
from model_zoo.specs.model import ModelSpec

_FP32 = 4
# Buffers as long as the parameters: parameters, two moments, gradient sum, scratch gradient.
_STATE_BUFFERS = 5
_SNAPSHOT_BUFFERS = 3
# With delayed updates: a second slot's parameters and gradient sum; of these a version has the
# parameters.
_MORE_STATE_BUFFERS = 2
_MORE_SNAPSHOT_BUFFERS = 1
# Vectors of width C and of the feed-forward width that a block saves per token for backward;
# counted from what autograd keeps, rounded up.
_SAVED_WIDTHS = {"gpt": 9, "llama": 14}
_SAVED_FFN = {"gpt": 2, "llama": 4}
# Logits, their log-softmax and the gradients of both.
_LOGIT_COPIES = 4


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose; `snapshot_bytes` is taken from the first checkpoint on."""

    state_bytes: int
    snapshot_bytes: int
    graph_bytes: int
    graphs: int
    head_bytes: int

    @property
    def total_bytes(self) -> int:
        """The peak, with all graphs kept and a checkpoint written."""
        graphs = self.graph_bytes * self.graphs
        return self.state_bytes + self.snapshot_bytes + graphs + self.head_bytes


def required_bytes(
    model: ModelFields,
    *,
    layers_per_stage: Sequence[int],
    stage: int,
    sequences: int,
    tokens: int,
    graphs_kept: int,
    averaging_codec: CodecName,
    delayed: bool = False,
) -> MemoryNeed:
    """What a replica of this stage needs, above the process itself.

    Args:
        sequences, tokens: B and T of a microbatch.
        graphs_kept: forward graphs held for their backward; one more is at work.
        delayed: whether updates are delayed by one step.

    Raises:
        ValueError: the model's fields contradict each other.
    """
    layers, is_last = layers_per_stage[stage], stage == len(layers_per_stage) - 1
    parameters = stage_parameters(model, layers_per_stage, stage)
    saved_widths, saved_ffn = _SAVED_WIDTHS[model.architecture], _SAVED_FFN[model.architecture]
    per_token = saved_widths * model.width + saved_ffn * model.ffn_width
    batch = sequences * tokens
    # With a lossy codec: the residual (fp32) and the encoded contribution (at most 2 bytes).
    averaging = 0 if averaging_codec == "fp32" else parameters * (_FP32 + 2)
    state = _STATE_BUFFERS + _MORE_STATE_BUFFERS * delayed
    snapshot = _SNAPSHOT_BUFFERS + _MORE_SNAPSHOT_BUFFERS * delayed
    return MemoryNeed(
        state_bytes=parameters * _FP32 * state + averaging,
        snapshot_bytes=parameters * _FP32 * snapshot,
        graph_bytes=layers * batch * per_token * _FP32,
        graphs=1 if is_last else graphs_kept + 1,
        head_bytes=_LOGIT_COPIES * _FP32 * batch * model.vocab if is_last else 0,
    )


def stage_parameters(model: ModelFields, layers_per_stage: Sequence[int], stage: int) -> int:
    """N, the number of parameters of a stage.

    Raises:
        ValueError: the model's fields contradict each other.
    """
    spec = ModelSpec(**msgspec.structs.asdict(model))
    count = layers_per_stage[stage] * spec.layer_parameter_count
    if stage == 0:
        count += spec.embedding_parameter_count
    if stage == len(layers_per_stage) - 1:
        count += spec.head_parameter_count
    return count


def graphs_that_fit(need: MemoryNeed, available_bytes: int) -> int:
    """How many graphs may be kept within 85 % of the memory; -1 if the stage does not fit."""
    fixed = need.state_bytes + need.snapshot_bytes + need.head_bytes
    return max(-1, (int(0.85 * available_bytes) - fixed) // max(1, need.graph_bytes) - 1)
