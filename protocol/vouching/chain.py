"""Chains: the signatures by which a member's key belongs to a swarm.

The founder, whom the manifest names, vouches for the members that it invites, and each of them for
those that it invites. A member shows its chain in its Hello: the first link is the founder's, each
next one is signed by the key that the link before names, and the last one names the member itself.
Everybody who knows the manifest can check it, without asking anybody. Pure functions.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.wire.canonical import FORGED_PENALTY, Canonical
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Envelope, PeerText, UnixSeconds

VOUCH: Final = "vouch"
Chain = tuple[Envelope, ...]
"""At most ``limits.MAX_CHAIN``; empty: the founder's own."""


class Vouch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body: the signer answers for this member."""

    member: PeerText
    issued: UnixSeconds


_bodies = Canonical(Vouch, "vouch")


def vouch(signer: Signer, chain: Chain, member: PeerId, issued: int, swarm: SwarmId) -> Chain:
    """Return the chain of a new member, for whom the owner of a chain vouches at a time (Unix
    seconds)."""
    body = _bodies.encode(Vouch(member, issued))
    return (*chain, signer.sign(VOUCH, body, swarm))


def may_vouch(chain: Chain) -> bool:
    """Whether the owner of a chain is near enough to the founder to vouch for others."""
    return len(chain) < limits.MAX_CHAIN


def members_of(chain: Sequence[Envelope], founder: PeerId, swarm: SwarmId) -> tuple[PeerId, ...]:
    """Return the keys that a chain leads through, after the founder; its owner's is the last.

    Raises:
        RemoteProtocolError: too long, not connected, going in a circle, or a signature that does
            not hold.
    """
    if len(chain) > limits.MAX_CHAIN:
        raise _forged("too long")
    keys = [founder]
    for envelope in chain:
        if envelope.kind != VOUCH or envelope.signer != keys[-1]:
            raise _forged("not signed by the member before")
        named = PeerId(_bodies.parse(envelope.body).member)
        if named in keys:
            raise _forged("it names a member twice")
        verify(envelope, swarm)
        keys.append(named)
    return tuple(keys[1:])


def _forged(words: str) -> RemoteProtocolError:
    return RemoteProtocolError("vouch-forged", words, penalty=FORGED_PENALTY)
