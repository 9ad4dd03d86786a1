"""Statements: what a volunteer signs of the messages that decide a round.

A plan, a Ready and a commitment carry their sender's signature of a *statement*: the stage, era,
step and attempt that they are about, and a digest of what they say. The statement is made anew from
the message, so that only the signature travels with it; with its author's name it is an envelope
that can be shown to others. A refusal (Ready without a digest) decides nothing and states nothing.
Pure functions; no state.
"""

import hashlib
from typing import Final

from msgspec.structs import replace

from protocol.decree.decree import READY
from protocol.ids import PeerId
from protocol.rounds.plans import REFUSED
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


def statement_of(message: Decisive) -> tuple[str, Statement] | None:
    """Return kind and body of what a message states; None for a refusal."""
    match message:
        case Plan() | Commitment():
            kind = PLAN if isinstance(message, Plan) else COMMITMENT
            plain = encode_message(replace(message, signature=b""))
            digest = hashlib.blake2b(plain, digest_size=32).digest()
        case Ready():
            kind, digest = READY, message.digest
    if kind == READY and digest == REFUSED:
        return None
    return kind, Statement(message.stage, message.era, message.step, message.attempt, digest)


def envelope_of(author: PeerId, message: Decisive) -> Envelope | None:
    """Return the statement of a message as an envelope of its author; None for a refusal or where
    the signature is missing. The signature is not checked."""
    if (said := statement_of(message)) is None or len(message.signature) != SIGNATURE_BYTES:
        return None
    return Envelope(author, said[0], encode_statement(said[1]), message.signature)
