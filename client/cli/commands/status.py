"""Show what the volunteer on this machine is doing.

$ volunteer status  # once
$ volunteer status --watch  # a line per step, also for screen readers and logs
$ volunteer status peers  # who is near, and how far each is trusted; also stages, members
$ volunteer status matches  # why this volunteer has its stages
$ volunteer status leaderboard  # who contributed how much to steps closed here
$ volunteer status --json | jq .loss  # for programs
"""

import sys

from client.cli.reach.home import running_home
from client.cli.reach.running import connect, find_socket
from client.cli.screen import follow
from client.cli.terminal.output import print_json, shown
from client.errors import ExitCode, UsageError
from client.views.report import Section, report


def status(
    section: Section | None = None,
    /,
    *,
    json: bool = False,
    watch: bool = False,
    socket: bool = False,
) -> int:
    """Show what the volunteer on this machine is doing.

    Args:
        section: Show one thing: peers (who is near, which stages they hold, how far each is trusted
            and why), stages (who serves which, how fast), members (who invited whom), matches (why
            this volunteer has its stages), or leaderboard (who contributed how much to steps closed
            here).
        json: Print JSON, that of the whole status; with --watch one document per line.
        watch: Print a line whenever the step or the state changes, until it ends or you interrupt.
        socket: Print the path of its control socket instead.
    """
    if watch and section:
        words = f"--watch is of the whole status, not of {section}"
        raise UsageError(words, "leave one of them out")
    folders = running_home().folders
    if socket or watch:
        path = find_socket(folders)
        if watch:
            return follow(path, folders, as_json=json)
        print(path)
        return ExitCode.OK
    with connect(folders) as node:
        now = node.status()
    if json:
        print_json(now)
    else:
        print(shown(report(section, now), sys.stdout))
    return ExitCode.OK
