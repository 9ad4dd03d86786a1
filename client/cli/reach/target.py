"""Parses ``--swarm``: an invite, a ``.swarm`` file, a member's address, or ``-`` for stdin."""

import sys
from pathlib import Path

from client.cli.reach.home import Home
from client.cli.terminal.output import say
from client.control.client import running_nodes
from client.errors import ExitCode, UsageError, UserError
from client.store.swarms import SwarmStore
from protocol.address import KINDS
from protocol.errors import RemoteProtocolError
from protocol.invite import (
    MAX_SWARM_FILE_CHARS,
    SCHEME,
    Invite,
    InviteError,
    SwarmFile,
    Target,
    parse_target,
    unwrapped,
)
from protocol.manifest import is_of_another_version

OTHER_VERSION = "run the version of this program that its members run"


def read_target(text: str) -> Target:
    """Return the swarm that ``--swarm`` names.

    Raises:
        UserError: it cannot be read or parsed (usage), or its signature is invalid (refused).
    """
    try:
        target = parse_target(_contents(text))
        secret = isinstance(target, Invite) and target.ticket is not None
        if secret and unwrapped(text).startswith(SCHEME):
            say("everybody on this machine can read the invite's secret on the command line.")
            say("  Use --swarm FILE, or --swarm - to read it from stdin")
        return target
    except InviteError as error:
        raise UsageError(str(error), error.next_step) from error
    except RemoteProtocolError as error:
        if is_of_another_version(error):
            raise UserError(str(error), OTHER_VERSION, ExitCode.REFUSED) from error
        raise UserError(
            f"the swarm's manifest is not genuine: {error}",
            "ask the founder for the .swarm file or a fresh invite",
            ExitCode.REFUSED,
        ) from error


def find_target(home: Home, text: str | None) -> Target:
    """Return a swarm by a value of ``--swarm``, or by name or beginning of the id if remembered.

    None means the one that runs, or else the only one remembered.

    Raises:
        UserError: no swarm matches, or several do.
    """
    known = SwarmStore(home.folders.swarms).all()
    if text is not None:
        known = [s for s in known if s.swarm.startswith(text) or s.manifest.name == text]
    if len(known) > 1 and text is None:
        running = {node.swarm for _, node in running_nodes(home.folders.runtime)}
        known = [one for one in known if one.swarm in running] if len(running) == 1 else known
    if len(known) > 1:
        names = ", ".join(sorted(f"{one.manifest.name} ({one.swarm[:12]})" for one in known))
        problem = f"several swarms are known on this machine: {names}"
        choose = "choose one with --swarm; volunteer forget SWARM removes one"
        raise UsageError(problem, choose if text is None else "name one by the beginning of its id")
    if known:
        return known[0]
    if text is None:
        raise UsageError(
            "no swarm is known on this machine",
            "pass an invite, a .swarm file, or the name of a swarm joined before with --swarm",
        )
    return read_target(text)


def find_swarm(home: Home, text: str | None) -> Target:
    """Return the same as `find_target`, with its manifest if this volunteer knows it."""
    target = find_target(home, text)
    store = SwarmStore(home.folders.swarms)
    return (store.load(target.swarm) or target) if isinstance(target, Invite) else target


def with_manifest(target: Target) -> SwarmFile:
    """Return a swarm whose manifest is at hand.

    Raises:
        UserError: there is an invite or an address only.
    """
    if isinstance(target, SwarmFile):
        return target
    problem = "an invite does not contain the swarm's model, and it is not known on this machine"
    raise UsageError(problem, "join it once, or pass its .swarm file")


def _contents(text: str) -> str:
    if unwrapped(text).startswith((SCHEME, *(f"/{kind}/" for kind in KINDS))):
        return text
    try:
        if text == "-":
            return sys.stdin.read(MAX_SWARM_FILE_CHARS + 1)
        with Path(text).open(encoding="utf-8") as file:
            return file.read(MAX_SWARM_FILE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file, and no swarm of this name is known here"
        raise UsageError(
            f"cannot read {text[:200]!r}: {reason}",
            "pass an invite (volunteer:...), a .swarm file, a member's address, or - for stdin",
        ) from error
