"""Ends a simulated run that broke an invariant (protocol/SPEC.md, section 2)."""


class InvariantViolation(AssertionError):
    """The run broke an invariant; raised out of a world, the message names the seed."""


def expect(holds: bool, what: str) -> None:
    """Raise ``InvariantViolation`` unless ``holds``."""
    if not holds:
        raise InvariantViolation(what)
