"""Sizes of the payloads of a run: the state of a stage, boundary tensors, segments."""

from client.compute.payload import Encoding
from client.config import GIB
from model_zoo.specs.slices import stage_parameters
from protocol.audit.commitment import largest_list
from protocol.limits import CHUNK_BYTES, MAX_SEGMENT_ELEMENTS
from protocol.manifest import Manifest
from protocol.rounds.shards import largest_segment

TRANSIT_DISK_BYTES = 4 * GIB
"""Disk for tensors in transit, of all but very large stages."""
_TOKEN_BYTES = 16
"""A token and its target, for any integer type."""
_MARGIN = 64 * 1024
"""Seals of payloads, vectors of scales, the last block's padding."""


def data_bytes(manifest: Manifest, stage: int) -> int:
    """Return the bytes of a checkpoint's tensors."""
    parameters = stage_parameters(manifest.model, manifest.layers_per_stage, stage)
    return manifest.state.bytes_per_parameter * parameters


def round_bytes(manifest: Manifest) -> int:
    """Return the bytes of the largest stage's gradient, as it is averaged."""
    codec = manifest.averaging_codec
    return Encoding(codec, "average", (_most_parameters(manifest),)).size_bytes


def transit_disk_bytes(manifest: Manifest) -> int:
    """Return the most disk for tensors in transit: half of it holds all that a single sibling sends
    of a round."""
    return max(TRANSIT_DISK_BYTES, 2 * round_bytes(manifest))


def largest_payload(manifest: Manifest) -> int:
    """Return the most bytes of any payload: a boundary with its tokens, or the largest segment of a
    stage's gradient, each in fp32, or an audit's list."""
    segment = 4 * min(_most_parameters(manifest), MAX_SEGMENT_ELEMENTS)
    listed = largest_list(manifest.microbatches_per_step) if manifest.audits else 0
    return max(_boundary_bytes(manifest), segment, CHUNK_BYTES, listed) + _MARGIN


def usual_payload(manifest: Manifest) -> int:
    """Return the bytes of the largest tensor that honest peers send."""
    segment = largest_segment(_most_parameters(manifest))
    return max(_boundary_bytes(manifest), 4 * segment) + _MARGIN


def _boundary_bytes(manifest: Manifest) -> int:
    tokens = manifest.sequences_per_microbatch * (manifest.model.context + 1)
    return tokens * (4 * manifest.model.boundary_width + _TOKEN_BYTES)


def _most_parameters(manifest: Manifest) -> int:
    spec, layers = manifest.model, manifest.layers_per_stage
    return max(stage_parameters(spec, layers, stage) for stage in range(manifest.stage_count))
