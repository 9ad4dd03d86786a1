"""What volunteers tell of the steps that they closed."""

from __future__ import annotations

from client.lab.local_swarm import Member


class ClosedSteps:
    """What members have told of the steps that they closed."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self._counted: dict[int, dict[str, int]] = {}

    def hear(self, members: list[Member]) -> None:
        """Take the members' events since the last call."""
        for member in members:
            for event in member.new_events():
                if event.kind == "StepCommitted":
                    self.losses[int(str(event.data["step"]))] = float(str(event.data["loss"]))
                elif event.kind == "StageClosed":
                    counted = self._counted.setdefault(int(str(event.data["version"])), {})
                    counted[member.name] = int(str(event.data["counted"]))

    def with_others(self, members: list[Member], since: int, microbatches: int) -> list[int]:
        """Return the later versions into which work of others than all these members has gone.

        Args:
            members: those that tell.
            since: the newest version of no interest.
            microbatches: of a step.
        """
        return [
            version
            for version, counted in self._counted.items()
            if version > since
            and len(counted) == len(members)
            and sum(counted.values()) < microbatches
        ]

    def last_losses(self, count: int, end: int) -> list[float]:
        """Return the losses of the last steps before ``end``."""
        return [self.losses[step] for step in sorted(self.losses) if step < end][-count:]
