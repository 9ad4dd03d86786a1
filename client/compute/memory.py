"""How much memory a replica of a stage needs; pure arithmetic, no torch.

Source: RECIPES.md, "Memory of a replica", with the terms of this worker: it trains in fp32, adds
one scratch gradient (see `replica`), and keeps whole forward graphs instead of one per layer.
"""

from dataclasses import dataclass

from client.compute.payload import CodecName
from client.compute.requests import ModelFields

_FP32 = 4
# Buffers as long as the parameters: parameters, two moments, gradient sum, scratch gradient.
_STATE_BUFFERS = 5
_SNAPSHOT_BUFFERS = 3
# Numbers of width C and of the feed-forward width that a block saves per token for backward.
_SAVED_WIDTHS = 9
_SAVED_FFN = {"gpt": 2, "llama": 4}
# Logits, their log-softmax and its gradient.
_LOGIT_COPIES = 3


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose; `snapshot_bytes` is taken only while a checkpoint is written."""

    state_bytes: int
    snapshot_bytes: int
    graph_bytes: int
    graphs: int
    head_bytes: int

    @property
    def total_bytes(self) -> int:
        """The peak, with all graphs kept and a checkpoint under way."""
        graphs = self.graph_bytes * self.graphs
        return self.state_bytes + self.snapshot_bytes + graphs + self.head_bytes


def required_bytes(
    model: ModelFields,
    *,
    parameters: int,
    layers: int,
    is_last: bool,
    sequences: int,
    tokens: int,
    graphs_kept: int,
    averaging_codec: CodecName,
) -> MemoryNeed:
    """What a replica of a stage with so many parameters and layers needs.

    Args:
        sequences, tokens: B and T of a microbatch.
        graphs_kept: forward graphs held for their backward; one more is at work.
    """
    per_token = _SAVED_WIDTHS * model.width + _SAVED_FFN[model.architecture] * model.ffn_width
    batch = sequences * tokens
    # With a lossy codec: the residual (fp32) and the encoded contribution.
    averaging = 0 if averaging_codec == "fp32" else parameters * (_FP32 + 2)
    return MemoryNeed(
        state_bytes=parameters * _FP32 * _STATE_BUFFERS + averaging,
        snapshot_bytes=parameters * _FP32 * _SNAPSHOT_BUFFERS,
        graph_bytes=layers * batch * per_token * _FP32,
        graphs=1 if is_last else graphs_kept + 1,
        head_bytes=_LOGIT_COPIES * _FP32 * batch * model.vocab if is_last else 0,
    )


def graphs_that_fit(need: MemoryNeed, available_bytes: int) -> int:
    """How many graphs may be kept within 85 % of the memory; -1 if the stage does not fit."""
    fixed = need.state_bytes + need.snapshot_bytes + need.head_bytes
    return max(-1, (int(0.85 * available_bytes) - fixed) // max(1, need.graph_bytes) - 1)
