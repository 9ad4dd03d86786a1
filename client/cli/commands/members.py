"""``volunteer members``: who belongs to the swarm, and who answers for whom."""

from __future__ import annotations

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json, printable, say
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.cli.terminal.table import aligned
from client.control.snapshot import InvitedMember


def members(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """List the members of a swarm that is entered by invitation, each below who invited it."""
    with connect(running_home().folders, swarm) as node:
        found, me, names = node.members(), node.greeting.peer, node.status().names
    if json:
        print_json(found)
        return
    if not found.by_invitation:
        say("anybody who has an invite is a member of this swarm: see volunteer peers")
        return
    rows = [
        [
            _name(one, me),
            names.get(one.peer, "-"),
            "yes" if one.linked else "no",
            _standing(one),
        ]
        for one in found.members
    ]
    for line in aligned(["member", "name", "here", "standing"], rows):
        print(printable(line))


def _name(one: InvitedMember, me: str) -> str:
    return "  " * one.depth + one.peer + (" (you)" if one.peer == me else "")


def _standing(one: InvitedMember) -> str:
    if one.expelled_by:
        why = f": {one.reason}" if one.reason else ""
        return f"expelled by {one.expelled_by[-6:]}{why}"
    if not one.invited_by:
        return "founder"
    return f"invited by {one.invited_by[-6:]}" + (", yours to expel" if one.ours else "")
