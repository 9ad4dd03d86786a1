"""``volunteer chaos``: faults on real processes, and what they cost. See ``command``."""

from client.cli.chaos.command import chaos

__all__ = ["chaos"]
