"""Chains: the signatures by which a member's key belongs to a swarm.

The founder, whom the manifest names, vouches for the members that it invites, and each of them for
those that it invites. A member shows its chain in its Hello: the first link is the founder's, each
next one is signed by the key that the link before names, and the last one names the member itself.
Everybody who knows the manifest can check it, without asking anybody.

A link is a vouch or a *rotation*: a member's old key hands its place to a new key, and the new key
signs that it takes it. The rotation says for whom the old key had vouched, and whom it had
expelled; whatever else the old key signs counts for nothing (``rotations.py``). Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.wire.canonical import FORGED_PENALTY, Canonical
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Envelope, PeerText, UnixSeconds

VOUCH: Final = "vouch"
ROTATE: Final = "rotate"
TAKE: Final = "take-place"
Chain = tuple[Envelope, ...]
"""At most ``limits.MAX_CHAIN``; empty: the founder's own."""
_Names = Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ROTATED_NAMES)]


class Vouch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body: the signer answers for this member."""

    member: PeerText
    issued: UnixSeconds


class Succession(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What both keys of a rotation sign."""

    old: PeerText
    new: PeerText
    issued: UnixSeconds
    members: _Names = ()
    """For whom the old key has vouched: they stay."""
    expelled: _Names = ()
    """Whom it has expelled: they stay out."""


class Rotated(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body that the old key signs."""

    succession: Succession
    taken: Annotated[bytes, Meta(min_length=64, max_length=64)]
    """The new key's signature of the succession."""


class Rotation(Struct, frozen=True):
    """A rotation that holds."""

    said: Succession
    chain: Chain
    """The new key's: it ends with the rotation."""

    @property
    def depth(self) -> int:
        """How many links lead from the founder to the old key."""
        return len(self.chain) - 1


class Followed(Struct, frozen=True):
    """What a chain says that holds."""

    path: tuple[PeerId, ...]
    """The keys that it leads through, after the founder; its owner's is the last."""
    rotations: tuple[Rotation, ...] = ()


_bodies = Canonical(Vouch, "vouch")
_successions = Canonical(Succession, "rotation")
_rotated = Canonical(Rotated, "rotation")


def vouch(signer: Signer, chain: Chain, member: PeerId, issued: int, swarm: SwarmId) -> Chain:
    """Return the chain of a new member.

    Args:
        signer: who vouches.
        chain: the signer's own chain.
        member: for whom.
        issued: now, Unix seconds.
        swarm: where it is valid.
    """
    body = _bodies.encode(Vouch(member, issued))
    return (*chain, signer.sign(VOUCH, body, swarm))


def rotate(
    old: Signer,
    new: Signer,
    chain: Chain,
    members: Collection[PeerId],
    expelled: Collection[PeerId],
    issued: int,
    swarm: SwarmId,
) -> Chain:
    """Return the chain of a new key that takes the place of an old one.

    Args:
        old: the key that counts for nothing from now on.
        new: the key that takes its place.
        chain: the old key's.
        members: those that it has vouched for and that stay.
        expelled: those that it has expelled.
        issued: now, Unix seconds.
        swarm: where it is valid.

    Raises:
        LocalProtocolError: there are more names than a rotation holds.
    """
    said = Succession(old.peer, new.peer, issued, tuple(members), tuple(expelled))
    taken = new.sign(TAKE, _successions.encode(said), swarm).signature
    return (*chain, old.sign(ROTATE, _rotated.encode(Rotated(said, taken)), swarm))


def may_vouch(chain: Chain) -> bool:
    """Whether the owner of a chain is near enough to the founder to vouch for others."""
    return _count(chain, VOUCH) < limits.MAX_VOUCHES


def why_no_rotation(chain: Chain, names: int) -> str:
    """Return why the owner of a chain cannot hand its place to a new key; empty: it can.

    Args:
        chain: its own.
        names: the members that the rotation would name.
    """
    if not chain:
        return "the founder's key is in the manifest, so it stays as long as the swarm"
    if _count(chain, ROTATE) >= limits.MAX_ROTATIONS:
        return f"{limits.MAX_ROTATIONS} keys above you, or of yours, were replaced, the most"
    names += sum(_names(_rotated.parse(one.body).succession) for one in chain if _is_rotation(one))
    if names > limits.MAX_ROTATED_NAMES:
        most = limits.MAX_ROTATED_NAMES
        return f"{names} members were vouched for or expelled by such keys, more than {most}"
    return ""


def members_of(chain: Sequence[Envelope], founder: PeerId, swarm: SwarmId) -> tuple[PeerId, ...]:
    """Return the path of a chain; see ``follow``."""
    return follow(chain, founder, swarm).path


def follow(chain: Sequence[Envelope], founder: PeerId, swarm: SwarmId) -> Followed:
    """Return the keys that a chain leads through, and the rotations among its links.

    Args:
        chain: as it was shown.
        founder: the founder, from the manifest.
        swarm: id of the swarm.

    Raises:
        RemoteProtocolError: too long, not connected, going in a circle, or a signature that does
            not hold.
    """
    links = tuple(chain)
    if len(links) > limits.MAX_CHAIN or _count(links, VOUCH) > limits.MAX_VOUCHES:
        raise _forged("too long")
    keys, rotations, names = [founder], list[Rotation](), 0
    for number, envelope in enumerate(links, 1):
        if envelope.kind not in (VOUCH, ROTATE) or envelope.signer != keys[-1]:
            raise _forged("not signed by the member before")
        if _is_rotation(envelope):
            said = _succession(envelope, swarm)
            names += _names(said)
            rotations.append(Rotation(said, links[:number]))
            named = PeerId(said.new)
        else:
            named = PeerId(_bodies.parse(envelope.body).member)
        if named in keys:
            raise _forged("it names a member twice")
        verify(envelope, swarm)
        keys.append(named)
    if len(rotations) > limits.MAX_ROTATIONS or names > limits.MAX_ROTATED_NAMES:
        raise _forged("too many rotations")
    if rotations and rotations[0].said.old == founder:
        raise _forged("nobody takes the founder's place")
    return Followed(tuple(keys[1:]), tuple(rotations))


def _succession(envelope: Envelope, swarm: SwarmId) -> Succession:
    """Return what a rotation says, if the new key has signed it, too."""
    rotated = _rotated.parse(envelope.body)
    said = rotated.succession
    if said.old != envelope.signer:
        raise _forged("a rotation of another key")
    verify(Envelope(said.new, TAKE, _successions.encode(said), rotated.taken), swarm)
    return said


def _is_rotation(envelope: Envelope) -> bool:
    return envelope.kind == ROTATE


def _count(chain: Chain, kind: str) -> int:
    return sum(envelope.kind == kind for envelope in chain)


def _names(said: Succession) -> int:
    return len(said.members) + len(said.expelled)


def _forged(words: str) -> RemoteProtocolError:
    return RemoteProtocolError("vouch-forged", words, penalty=FORGED_PENALTY)
