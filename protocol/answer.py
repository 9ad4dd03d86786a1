"""Whether a machine may do something, and if not, why not, in words for people.

Every "may I" of a machine returns one: a surface that shows why somebody waits shows ``reason`` as
it is.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Answer:
    """True where it is allowed; else ``reason`` says what is missing."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


YES: Final = Answer(True)


def no(reason: str) -> Answer:
    """Return a refusal."""
    return Answer(False, reason)
