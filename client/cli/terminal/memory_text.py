"""What a volunteer takes of a machine's memory, in words that create and join share.

``volunteer status`` shows the same two amounts as they are measured: of the node and of its worker.
"""

from __future__ import annotations

from typing import Final

from client.views.words import size as human_bytes
from protocol.manifest import Manifest

NODE_BYTES: Final = 100_000_000
WORKER_BYTES: Final = 350_000_000
"""What our processes hold before they train, most of it torch: the node, and a worker a stage."""


def memory_words(manifest: Manifest) -> str:
    """Return the memory that a volunteer of the swarm takes at least, for its largest stage."""
    stage = max(stage.memory_bytes for stage in manifest.stages)
    return (
        f"about {human_bytes(NODE_BYTES)} for the program, and "
        f"{human_bytes(WORKER_BYTES + stage)} or more for each stage"
    )
