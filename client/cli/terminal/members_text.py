"""The members of a swarm that is entered by invitation, as a tree of text."""

from __future__ import annotations

from client.cli.terminal.table import aligned
from client.control.snapshot import InvitedMember, Membership, Snapshot

NO_TREE = "anybody who has an invite is a member of this swarm: see volunteer status peers"


def members_text(found: Membership, now: Snapshot) -> str:
    """Return the members, each below who invited it."""
    if not found.by_invitation:
        return NO_TREE
    rows = [
        [
            "  " * one.depth + one.peer + (" (you)" if one.peer == now.peer else ""),
            now.names.get(one.peer, "-"),
            "yes" if one.linked else "no",
            _standing(one),
        ]
        for one in found.members
    ]
    return "\n".join(aligned(["member", "name", "here", "standing"], rows))


def _standing(one: InvitedMember) -> str:
    if one.expelled_by:
        why = f": {one.reason}" if one.reason else ""
        return f"expelled by {one.expelled_by[-6:]}{why}"
    if not one.invited_by:
        return "founder"
    return f"invited by {one.invited_by[-6:]}" + (", yours to expel" if one.ours else "")
