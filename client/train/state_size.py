"""How large the file of a stage's state is, and so whether an offer of one can be it."""

from __future__ import annotations

from client.compute.checkpoint import MAX_HEADER_BYTES, sections
from client.compute.memory import stage_parameters
from client.train.opening import model_fields
from protocol.manifest import Manifest
from protocol.wire.messages import BlobOffer


def data_bytes(manifest: Manifest, stage: int) -> int:
    """Return the bytes of a checkpoint's tensors."""
    parameters = stage_parameters(model_fields(manifest), manifest.layers_per_stage, stage)
    return 4 * len(sections(delayed=manifest.delayed)) * parameters


def is_plausible(manifest: Manifest, offer: BlobOffer) -> bool:
    """Whether an offer of a state is as large as the checkpoints of its stage are."""
    if not 0 <= offer.stage < manifest.stage_count:
        return False
    data = data_bytes(manifest, offer.stage)
    return data < offer.size_bytes <= data + MAX_HEADER_BYTES
