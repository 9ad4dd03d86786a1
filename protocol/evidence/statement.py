"""Statements: what a volunteer signs of the messages that decide a round.

A plan, a Ready and a commitment carry their sender's signature of a *statement*: the stage, era,
step and attempt that they are about, and a digest of what they say. The statement is made anew from
the message, so that only the signature travels with it; with its author's name it is an envelope
that can be shown to others. Pure functions; no state.
"""

import hashlib
from typing import Final

from msgspec.structs import replace

from protocol.decree.decree import READY
from protocol.ids import PeerId
from protocol.wire.envelope import SIGNATURE_BYTES
from protocol.wire.fields import Envelope
from protocol.wire.messages import Commitment, Plan, Ready, encode_message
from protocol.wire.statement import Statement, encode_statement

PLAN: Final = "plan"
COMMITMENT: Final = "commitment"
STATEMENTS: Final = frozenset((PLAN, READY, COMMITMENT))
"""The kinds whose signed body is a ``Statement``. An honest author signs one for each number."""
PASSED_ON: Final = frozenset((PLAN, COMMITMENT))
"""Statements to several peers, which may have been told different things: plans are passed on when
they come, commitments only after an attempt that failed, because every member makes one."""

Decisive = Plan | Ready | Commitment
"""The messages that state something."""


def statement_of(message: Decisive) -> tuple[str, Statement]:
    """Return kind and body of what a message states."""
    match message:
        case Plan() | Commitment():
            kind = PLAN if isinstance(message, Plan) else COMMITMENT
            plain = encode_message(replace(message, signature=b""))
            digest = hashlib.blake2b(plain, digest_size=32).digest()
        case Ready():
            kind, digest = READY, message.digest
    return kind, Statement(message.stage, message.era, message.step, message.attempt, digest)


def envelope_of(author: PeerId, message: Decisive) -> Envelope | None:
    """Return the statement of a message as an envelope of its author; None where the signature is
    missing, which is not checked."""
    if len(message.signature) != SIGNATURE_BYTES:
        return None
    kind, statement = statement_of(message)
    return Envelope(author, kind, encode_statement(statement), message.signature)
