"""Take part in a swarm's training until it is done or you stop.

$ volunteer join --swarm x.swarm  # start in the background and show what it does
$ volunteer join --swarm my-swarm --detach  # a swarm joined before; return when it has started
$ volunteer join --swarm - --headless < invite  # in this process, for services; log on stderr
$ volunteer join --swarm x.swarm --threads 2 --upload-limit 1MB/s  # lend less

Without --swarm the command reads VOLUNTEER_SWARM, or takes the only swarm joined before. Pass an
invite with a secret in a file or on stdin: everybody on this machine can see command lines.

In a terminal it describes the swarm and its costs, asks once per swarm, starts the volunteer in the
background and shows it. The volunteer keeps running when the screen or the terminal is closed.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from client.cli.reach.home import Home, find_home, home_of
from client.cli.reach.target import find_target
from client.cli.serving.background import Handover, read_handover, start
from client.cli.settings.flags import SettingFlags
from client.cli.terminal.answer import of_node
from client.cli.terminal.output import print_json, say
from client.control.client import running_nodes
from client.errors import ExitCode, UsageError
from client.garbage import uncollected
from client.limits.cores import check_threads
from client.store.lock import already_runs, lock_holder
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.invite import SwarmFile, Target

SWARM_VARIABLE = "VOLUNTEER_SWARM"
STDIN = 0


def join(
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    headless: bool = False,
    detach: Annotated[bool, Parameter(alias="-d")] = False,
    yes: Annotated[bool, Parameter(alias="-y")] = False,
    json: bool = False,
    data: Path | None = None,
    exit_when_done: bool = False,
    handed_over: Annotated[bool, Parameter(show=False)] = False,
    flags: SettingFlags = SettingFlags(),  # noqa: B008  (frozen)
) -> int:
    """Take part in a swarm's training until it is done or you stop.

    Args:
        swarm: An invite, a .swarm file, an address, a swarm joined before, or - for stdin.
        headless: Run in this process, without a screen, until it is done or told to stop; for
            services. So it does where there is no terminal.
        detach: Start in the background, wait until it answers, and return.
        yes: Do not ask what may be used.
        json: With --detach: print JSON.
        data: A folder with the swarm's training data, where this machine has one; otherwise they
            are fetched from members.
        exit_when_done: End when the swarm has done its last step, instead of staying to serve the
            model.
        handed_over: Read all that was chosen from stdin, as another process has resolved it.
    """
    if handed_over:
        return serve_here(read_handover(sys.stdin.buffer), quiet=True)
    if headless and detach:
        raise UsageError("--headless and --detach do not go together")
    if data is not None and not data.is_dir():
        raise UsageError(
            f"--data: {data} is no folder",
            "pass one of volunteer data build, or leave it out: members send what is needed",
        )
    home, named = find_home(vars(flags)), swarm or os.environ.get(SWARM_VARIABLE)
    check_threads(home.settings.threads)
    target = find_target(home, named)
    handover = Handover(
        swarm=str(target),
        resolved=home.resolved,
        data=str(data.absolute()) if data else None,
        exit_when_done=exit_when_done,
    )
    if _runs_here(named, headless=headless, detach=detach):
        return serve_here(handover)
    return _in_background(home, target, handover, detach=detach, yes=yes, as_json=json)


def _runs_here(named: str | None, *, headless: bool, detach: bool) -> bool:
    """Tell whether the node runs in this process: that was asked for, or there is no terminal.

    If stdin has given the invite (``named`` is "-"), it becomes the terminal again for questions.
    """
    if headless:
        return True
    if named == "-" and sys.stderr.isatty() and (detach or sys.stdout.isatty()):
        take_terminal_back()
    return not (detach or (sys.stdin.isatty() and sys.stdout.isatty()))


def serve_here(told: Handover, *, quiet: bool = False) -> int:
    """Run the node in this process until it ends; ``quiet``: its log is a file alone."""
    home = home_of(told.resolved)
    refuse_second(home)
    with uncollected():
        from client.cli.serving.foreground import serve

    return serve(home, told, quiet=quiet)


def _in_background(
    home: Home,
    target: Target,
    handover: Handover,
    *,
    detach: bool,
    yes: bool,
    as_json: bool,
) -> int:
    from client.cli.screen import show

    running = None if detach else _running(home, target)
    if running is not None:
        say("it already takes part")
        return show(running, home.folders)
    refuse_second(home)
    agreed = _agreed(home, target, yes=yes)
    if agreed is None:
        say("nothing was started")
        return ExitCode.INTERRUPTED
    home.signer()  # here, where its owner reads what it says
    socket, node = start(home, msgspec.structs.replace(handover, swarm=str(agreed)))
    if not detach:
        return show(socket, home.folders)
    if as_json:
        where = {"socket": str(socket), "log": str(home.folders.logs)}
        print_json(of_node(node, pid=node.pid, **where))
    else:
        say(f"process {node.pid} takes part in {node.swarm_name}")
        say("  volunteer attach shows it, volunteer finish ends it, volunteer logs has its log")
    return ExitCode.OK


def refuse_second(home: Home) -> None:
    """Refuse to start beside a running volunteer of this home, before any slow work.

    Raises:
        UserError: one runs; names its process and how to show it.
    """
    if process := lock_holder(home.folders.data):
        raise already_runs(process)


def _agreed(home: Home, target: Target, *, yes: bool) -> Target | None:
    """Return the swarm, as shown to the owner, if the owner agrees to its use of this machine.

    None: the owner does not. Without a terminal the person who set this up has agreed.

    Raises:
        UserError: the swarm's description must come from a member, and none answers.
    """
    from client.cli import consent

    folder = home.folders.data
    if yes or not sys.stdin.isatty():
        if yes and not isinstance(target, Address):
            consent.remember(folder, target.swarm)
        return target
    if not isinstance(target, Address) and consent.is_agreed(folder, target.swarm):
        return target
    swarm = _with_manifest(home, target)
    if consent.is_agreed(folder, swarm.swarm) or consent.agrees(folder, home.settings, swarm):
        return swarm if isinstance(target, Address) else target  # an id identifies one manifest
    return None


def _with_manifest(home: Home, target: Target) -> SwarmFile:
    """Return a swarm's description, from a member where it is not known here."""
    if isinstance(target, SwarmFile):
        return target
    if not isinstance(target, Address):
        known = SwarmStore(home.folders.swarms).load(target.swarm)
        if known is not None:
            return known
    import trio

    from client.node.gather import read_swarm

    say("asking a member what the swarm is ...")
    return trio.run(partial(read_swarm, target, dial_timeout_s=home.settings.dial_timeout_s))


def take_terminal_back() -> None:
    """Read from the terminal again, after stdin has given the invite; stays if there is none."""
    if sys.stdin.isatty():
        return
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return
    os.dup2(terminal, STDIN)
    os.close(terminal)
    sys.stdin = os.fdopen(STDIN, closefd=False)


def _running(home: Home, target: Target) -> Path | None:
    """Return the socket of the volunteer of this home that is in the swarm already."""
    if isinstance(target, Address):
        return None
    nodes = running_nodes(home.folders.runtime)
    return next((path for path, node in nodes if node.swarm == target.swarm), None)
