"""The exception that ends a simulated run which broke an invariant of DESIGN.md section 9."""

from __future__ import annotations


class InvariantViolation(AssertionError):
    """The run broke an invariant; raised out of a world, the message names the seed."""


def expect(holds: bool, what: str) -> None:
    """Raise ``InvariantViolation`` unless ``holds``."""
    if not holds:
        raise InvariantViolation(what)
