"""Tickets: the secrets that invites carry until their bearers are vouched for.

The member that makes an invite draws 32 random bytes, keeps them and writes them into the invite.
The bearer proves that it has them, without showing them, to that one member, which then vouches for
the bearer's key. So an invite can be good for one use, it expires, and an invite that gets into
wrong hands later is worth nothing. Pure functions; times are Unix seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol.answer import YES, Answer, no
from protocol.ids import PeerId, SwarmId
from protocol.wire.fields import Hash32, PeerText, UnixSeconds

TICKET_BYTES: Final = 32
PROOF_BYTES: Final = 32
TICKET_LIFE_S: Final = 7 * 24 * 3600.0
"""Whoever is invited comes within a week, or asks again."""
MAX_USES: Final = 64
MAX_TICKETS: Final = 256
"""The most tickets that one member keeps at a time."""
_PERSON: Final = b"volunteer/1/tkt"


class Ticket(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A ticket as its maker keeps it."""

    secret: Hash32
    expires: UnixSeconds
    uses: Annotated[int, Meta(ge=1, le=MAX_USES)] = MAX_USES
    """How many members it lets in."""
    used_by: Annotated[tuple[PeerText, ...], Meta(max_length=MAX_USES)] = ()

    def lets_in(self, peer: PeerId, now: float) -> Answer:
        """Whether it lets a peer in now; one that it has let in may show it again."""
        if peer not in self.used_by and len(self.used_by) >= self.uses:
            return no("the invite was used already")
        return YES if peer in self.used_by or now < self.expires else no("the invite has expired")

    def used(self, peer: PeerId) -> Ticket:
        """Return the ticket after it has let a peer in."""
        if peer in self.used_by:
            return self
        return replace(self, used_by=(*self.used_by, peer))


def ticket_proof(secret: bytes, swarm: SwarmId, bearer: PeerId, maker: PeerId) -> bytes:
    """Return the 32 bytes by which ``bearer`` proves to ``maker`` that it has the ticket."""
    parts = "\x1f".join((swarm, bearer, maker)).encode()
    return hashlib.blake2b(parts, key=secret, digest_size=PROOF_BYTES, person=_PERSON).digest()


def with_ticket(tickets: Iterable[Ticket], ticket: Ticket, now: float) -> tuple[Ticket, ...]:
    """Return the tickets with one more, or a newer state of one; expired ones are left out, and of
    too many those that expire first."""
    others = [one for one in tickets if one.secret != ticket.secret and now < one.expires]
    latest = sorted(others, key=lambda one: one.expires)[-(MAX_TICKETS - 1) :]
    return (*latest, ticket)
