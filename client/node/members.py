"""The members of a swarm that is entered by invitation, for the control interface."""

from __future__ import annotations

from collections.abc import Collection

from client.control.snapshot import InvitedMember
from protocol.ids import PeerId
from protocol.vouching.register import Register


def describe_members(register: Register, linked: Collection[PeerId]) -> list[InvitedMember]:
    """Return the members met and those expelled, as a tree: each below its inviter.

    Args:
        register: of this node.
        linked: the peers that are here now, ourselves included.
    """
    paths = {peer: register.path(peer) for peer in register.known()}
    ordered = sorted(paths, key=lambda peer: paths[peer])
    return [_member(register, peer, paths[peer], peer in linked) for peer in ordered]


def _member(
    register: Register, peer: PeerId, path: tuple[PeerId, ...], linked: bool
) -> InvitedMember:
    above = (register.founder, *path)[:-1] if path else ()
    entry = register.why_out(peer)
    return InvitedMember(
        peer=peer,
        invited_by=above[-1] if above else "",
        depth=len(path),
        linked=linked,
        ours=register.may_expel(peer),
        expelled_by="" if entry is None else entry.by,
        reason="" if entry is None else entry.said.reason,
    )
