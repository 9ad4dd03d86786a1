"""On which held-out text a model's loss is measured here, and how that is said."""

from __future__ import annotations

from typing import Final

from protocol.manifest import Manifest

HELD_OUT_BATCHES: Final = 16
HELD_OUT_SEQUENCES: Final = 8
"""Of each batch."""


def held_out_words(manifest: Manifest, loss: float) -> str:
    """Return a loss in nats and the text that it is the mean of, which is not the one that members
    measure the same version on while they train."""
    sequences = HELD_OUT_BATCHES * HELD_OUT_SEQUENCES
    words = f"{loss:.4f} nats a token, on {sequences} sequences of {manifest.model.context} tokens"
    if (terms := manifest.evaluation) is not None:
        words += f"; members tell theirs of {terms.tokens:,} tokens"
    return words
