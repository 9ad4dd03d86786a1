"""Statements: the signed bodies of the messages that decide a round."""

from typing import Final

from msgspec import Struct

from protocol.wire.canonical import Canonical
from protocol.wire.fields import Attempt, Era, Hash32, StageIndex, StepIndex


class Statement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body; an author makes one of a kind for each (stage, era, step, attempt)."""

    stage: StageIndex
    era: Era
    step: StepIndex
    attempt: Attempt
    digest: Hash32
    """Of the message; or the one that a Ready names."""


_bodies = Canonical(Statement, "statement")
encode_statement: Final = _bodies.encode
parse_statement: Final = _bodies.parse
