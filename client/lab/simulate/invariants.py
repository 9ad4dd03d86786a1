"""Ends a simulated run that broke an invariant (protocol/SPEC.md, section 2)."""

import contextlib
from collections.abc import Iterator, Sequence


class InvariantViolation(AssertionError):
    """The run broke an invariant; raised out of a world, the message names the seed."""


def expect(holds: bool, what: str) -> None:
    """Raise ``InvariantViolation`` unless ``holds``."""
    if not holds:
        raise InvariantViolation(what)


@contextlib.contextmanager
def logged(seed: int, log: Sequence[str], lines: int, hint: str = "") -> Iterator[None]:
    """Add to a violation the seed of its run, a hint, and the end of the run's log."""
    try:
        yield
    except InvariantViolation as violation:
        told = (f"seed {seed}: {violation}", *([hint] if hint else []), *log[-lines:])
        raise InvariantViolation("\n".join(told)) from violation
