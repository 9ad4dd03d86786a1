"""An amendment: the founder's signed statement about the rest of a run.

It says how many steps the run has in all, and which schedule of the learning rate holds from a step
on. Amendments are numbered from 1. Each restates everything: whoever knows the newest one knows
what holds after it. Pure functions; no state.
"""

import hashlib
from typing import Annotated, Final

from msgspec import Meta, Struct

from model_zoo.specs.optimizer import OptimizerSpec
from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId, short
from protocol.wire.canonical import FORGED_PENALTY, Canonical
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Envelope, StepIndex

AMENDMENT: Final = "amendment"
SCHEDULE_FIELDS: Final = ("lr", "min_lr", "warmup_steps", "decay_steps", "schedule", "decay_from")
"""The fields of an optimizer that may change in the midst of a run."""


class Amendment(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body."""

    number: Annotated[int, Meta(ge=1, le=limits.MAX_AMENDMENTS)]
    from_step: StepIndex
    """The schedule holds from this step on; later in a stage that hears of it later."""
    steps: Annotated[int, Meta(ge=1, le=limits.MAX_STEP)]
    """Of the whole run."""
    optimizer: OptimizerSpec
    """The manifest's, with another schedule or the same."""


_bodies = Canonical(Amendment, AMENDMENT)


def sign_amendment(signer: Signer, amendment: Amendment, swarm: SwarmId) -> Envelope:
    """Return a signed amendment.

    Raises:
        LocalProtocolError: a field is out of range.
    """
    return signer.sign(AMENDMENT, _bodies.encode(amendment), swarm)


def digest_of(envelope: Envelope) -> bytes:
    """Return the digest by which an amendment is named: BLAKE2b-256 of its body."""
    return hashlib.blake2b(envelope.body, digest_size=32).digest()


def parse_amendment(
    envelope: Envelope, swarm: SwarmId, founder: PeerId, optimizer: OptimizerSpec
) -> Amendment:
    """Check and parse an amendment that somebody has brought; ``optimizer`` is the manifest's.

    Raises:
        RemoteProtocolError: of another kind or author, forged, malformed, or it changes what an
            amendment cannot.
    """
    if envelope.kind != AMENDMENT or envelope.signer != founder:
        words = f"{envelope.kind} of {short(envelope.signer)}"
        raise RemoteProtocolError("amendment-not-the-founders", words, FORGED_PENALTY)
    verify(envelope, swarm)
    said = _bodies.parse(envelope.body)
    names = (name for name in optimizer.__struct_fields__ if name not in SCHEDULE_FIELDS)
    if changed := [n for n in names if getattr(optimizer, n) != getattr(said.optimizer, n)]:
        raise _bodies.malformed(f"it changes {', '.join(changed)}")
    return said
