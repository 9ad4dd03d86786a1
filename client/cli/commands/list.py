"""List all volunteers of this machine, also those of services and of other users.

Group: watch

$ volunteer list  # swarm, stages, state, speed, memory, threads, device and home of each
$ volunteer list --json | jq '.volunteers[].state'  # for programs

One of another home is reached with VOLUNTEER_HOME=HOME volunteer status. Of those that cannot be
opened only the socket is known: root sees all. Those that run in containers are not seen. Services
that do not run: systemctl list-units --all 'volunteer*'.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import Struct

from client.cli.reach.machine import Volunteer, find_volunteers, user_name
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import one_line
from client.cli.terminal.table import aligned
from client.errors import ExitCode
from client.views.words import count_rate as human_rate
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes

HEAD = ("swarm", "stage", "state", "tokens", "memory", "threads", "device", "up", "where")


class Listing(Struct, frozen=True):
    """Answer of ``volunteer list --json``."""

    volunteers: tuple[Volunteer, ...]


@answered
def list() -> Answer:
    """List the volunteers of this machine: swarm, stages, state, speed, memory, home."""
    found = find_volunteers()
    problems = (
        f"{one_line(one.home or one.socket)}: {one_line(one.problem)}"
        for one in found
        if one.problem
    )
    answer = Answer(Listing(tuple(found)), (*_table(found), *problems))
    if found:
        return answer
    nobody = "no volunteer runs on this machine\n  start one: volunteer join --swarm X"
    return replace(answer, notes=[nobody], code=ExitCode.NOT_RUNNING)


def _table(found: Sequence[Volunteer]) -> Iterator[str]:
    """Yield the lines of the table; where a terminal is too narrow for the homes, they have lines
    of their own."""
    rows = [_row(one) for one in found]
    whole = tuple(aligned(HEAD, rows)) if rows else ()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    if all(len(line) <= width for line in whole):
        yield from whole
        return
    head, *lines = aligned(HEAD[:-1], [row[:-1] for row in rows])
    yield head
    for line, row in zip(lines, rows, strict=True):
        yield line
        yield f"  {row[-1]}"


def _row(one: Volunteer) -> tuple[str, ...]:
    if one.problem:
        return ("-", "-", "silent", *"-----", _where(one))
    return (
        one_line(one.swarm_name),
        ",".join(map(str, one.stages)) or "-",
        one.state,
        human_rate(one.tokens_per_s),
        human_bytes(one.memory_bytes),
        str(one.threads or "-"),
        one.device or "-",
        human_duration(one.uptime_s),
        _where(one),
    )


def _where(one: Volunteer) -> str:
    """Return the home, with the user where it is another one."""
    home = one.home or ("usual home" if not one.problem else one.socket)
    another = one.user not in ("", user_name(os.geteuid()))
    return one_line(f"{home} (user {one.user})" if another else home)
