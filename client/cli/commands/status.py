"""Show what the volunteer on this machine is doing.

$ volunteer status  # once
$ volunteer status --watch  # every second
$ volunteer status --watch --plain  # a line per step, for screen readers and logs
$ volunteer status peers  # who is near, and how far each is trusted; also stages, members
$ volunteer status matches  # why this volunteer has its stages
$ volunteer status leaderboard  # who contributed how much to steps closed here
$ volunteer status --json | jq .loss  # for programs
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from client.cli.reach.home import running_home
from client.cli.reach.running import connect, find_socket
from client.cli.screen import follow, say_end
from client.cli.terminal.output import print_moment, printable
from client.cli.terminal.parameters import RunningSwarm
from client.cli.terminal.table import aligned
from client.control.client import ControlClient, NotRunning
from client.control.snapshot import InvitedMember, Membership, Snapshot
from client.errors import ExitCode
from client.views.report import report
from client.views.status import one_line

WATCH_S = 1.0
NO_TREE = "anybody who has an invite is a member of this swarm: see volunteer status peers"
Section = Literal["peers", "stages", "members", "matches", "leaderboard"]


def status(
    section: Section | None = None,
    /,
    *,
    swarm: RunningSwarm = None,
    json: bool = False,
    watch: bool = False,
    plain: bool = False,
    socket: bool = False,
) -> int:
    """Show what the volunteer on this machine is doing.

    Parameters
    ----------
    section
        Show one thing: peers (who is near, which stages they hold, how far each is trusted and
        why), stages (who serves which, how fast), members (who invited whom), matches (why this
        volunteer has its stages), or leaderboard (who contributed how much to steps closed here).
    json
        Print JSON, that of the whole status of all but the members; with --watch one document per
        line.
    watch
        Go on until it ends or you interrupt.
    plain
        One line; with --watch a further one whenever the step or the state changes.
    socket
        Print the path of its control socket instead.
    """
    folders = running_home().folders
    if socket:
        print(find_socket(folders, swarm))
        return ExitCode.OK
    if plain and watch and not json:
        return follow(find_socket(folders, swarm), folders)
    with connect(folders, swarm) as node:
        try:
            while True:
                now = node.status()
                if plain and not json:
                    print(printable(one_line(now)))
                else:
                    data, words = _looked(node, now, section)
                    print_moment(data, words, as_json=json, watch=watch)
                if not watch:
                    break
                time.sleep(WATCH_S)
        except NotRunning:
            if not watch:
                raise
            return say_end(folders, node)
    return ExitCode.OK


def _looked(
    node: ControlClient, now: Snapshot, section: Section | None
) -> tuple[object, Callable[[], str]]:
    """Return what is shown, for programs, and how to say it."""
    if section == "members":
        members = node.members()
        return members, partial(members_text, members, now)
    return now, partial(report, section, now)


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
