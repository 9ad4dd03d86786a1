"""List all volunteers of this machine, also those of services and of other users.

Group: watch

$ volunteer list  # swarm, stages, state, speed, memory, threads, device and home of each
$ volunteer list --json | jq '.volunteers[].now.state'  # for programs

One of another home is reached with VOLUNTEER_HOME=HOME volunteer status. Of those that cannot be
opened only the socket is known: root sees all. Those that run in containers are not seen. Services
that do not run: systemctl list-units --all 'volunteer*'.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

from client.cli.reach.machine import Volunteer, find_volunteers, user_name
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import one_line
from client.cli.terminal.table import aligned
from client.errors import ExitCode
from client.views.words import count_rate as human_rate
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes

HEAD = ("swarm", "stage", "state", "tokens", "memory", "threads", "device", "up", "where")


@answered
def list() -> Answer:
    """List the volunteers of this machine: swarm, stages, state, speed, memory, home."""
    found = find_volunteers()
    problems = (f"{_where(one)}: {one_line(one.problem)}" for one in found if one.problem)
    rows = tuple(aligned(HEAD, [_row(one) for one in found])) if found else ()
    answer = Answer({"volunteers": found}, (*rows, *problems))
    if found:
        return answer
    nobody = "no volunteer runs on this machine\n  start one: volunteer join --swarm X"
    return replace(answer, notes=[nobody], code=ExitCode.NOT_RUNNING)


def _row(one: Volunteer) -> Sequence[str]:
    if (now := one.now) is None:
        return ("-", "-", "silent", *"-----", _where(one))
    return (
        one_line(now.swarm_name),
        ",".join(str(seat.stage) for seat in now.seats) or "-",
        now.state,
        human_rate(now.own_tokens_per_s),
        human_bytes(now.rss_bytes + sum(worker.rss_bytes for worker in now.workers)),
        str(now.limits.threads_now or "-"),
        now.limits.device or "-",
        human_duration(now.uptime_s),
        _where(one),
    )


def _where(one: Volunteer) -> str:
    """Return the home, with the user where it is another one."""
    home = one.home or ("usual home" if one.now else one.socket)
    another = one.user not in ("", user_name(os.geteuid()))
    return one_line(f"{home} (user {one.user})" if another else home)
