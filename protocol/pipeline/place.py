"""A replica's place in the pipeline: the constants that its machines need."""

from dataclasses import dataclass

from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Place:
    """A replica's place in the pipeline."""

    me: PeerId
    stage: int
    stages: int
    per_step: int
    """Microbatches per step M."""
    tokens_everywhere: bool = False
    """Whether every stage needs a microbatch's tokens, as `Manifest` says it."""
    era: int = 0
    """Lineage of the seat; messages of another one do not count."""

    @property
    def first(self) -> bool:
        """Stage 0: reads the samples."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Stage S-1: computes the loss."""
        return self.stage == self.stages - 1

    @property
    def max_queue(self) -> int:
        """Forwards a replica takes before it answers ``busy``."""
        return 4 * self.stages + 8
