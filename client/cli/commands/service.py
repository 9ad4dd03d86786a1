"""Run as a service of this user: write its unit.

Group: this machine

$ volunteer service install --swarm x.swarm  # starts nothing; says how to start and remove it
$ volunteer service install --dry-run  # print the unit and where it would be

A service of the machine, or several beside each other, are files to copy: see packaging/README.md.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from client.cli.command_table import nested_app
from client.cli.reach.services import user_unit
from client.cli.reach.target import read_target
from client.cli.terminal.output import say
from client.errors import UsageError, UserError, system_errors
from client.packaging_data import Kind, service_file
from client.store.atomic import write_atomic
from client.store.paths import user_home
from protocol.address import Address
from protocol.errors import ProtocolError
from protocol.invite import MAX_SWARM_FILE_CHARS, Target, parse_target

app = nested_app("service")


@dataclass(frozen=True)
class Service:
    """The files of the service, and what to say to its manager."""

    kind: Kind
    unit: Path
    invite: Path
    lines: dict[str, str]
    """Commands by what each is for. What is started also starts by itself at the next login."""


@app.command
def install(
    *,
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    dry_run: bool = False,
) -> None:
    """Write the unit (on a Mac: the agent), and print the commands that start and stop it.

    Parameters
    ----------
    swarm
        Keep this invite where the service reads it: a .swarm file, an invite, or - for stdin.
    dry_run
        Print the unit and what would be written, and do nothing.
    """
    service, verb = _service(), "would write" if dry_run else "wrote"
    unit = service_file(service.kind, _command())
    files = [(service.unit, unit, "the unit", 0o644)]
    if swarm is not None:
        target = read_target(swarm)
        _check_swarm(service, target)
        files.insert(0, (service.invite, str(target), "the invite", 0o600))
    for path, text, words, mode in files:
        if not dry_run:
            with system_errors(f"cannot write {path}", "make it writable"):
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                write_atomic(path, text.encode(), mode)
        say(f"{verb} {path}: {words}")
    print(unit if dry_run else service.unit, end="" if dry_run else "\n")
    if swarm is None and not service.invite.exists():
        say(f"put the invite or .swarm file at {service.invite} (mode 0600) before you start it")
    for purpose, line in service.lines.items():
        say(f"to {purpose}: {line}")


def _service() -> Service:
    unit = user_unit()
    if sys.platform == "darwin":
        domain = f"gui/{os.getuid()}"
        library = user_home() / "Library"
        stop = f"launchctl bootout {domain}/{unit.stem}"
        lines = {
            "start it": f"launchctl bootstrap {domain} {unit}",
            "stop it": stop,
            "see its state": f"launchctl print {domain}/{unit.stem}",
            "read its log": f"tail -f {library / 'Logs' / 'volunteer.log'}",
            "remove it": f"{stop}; rm {quote(str(unit))}",
        }
        invite = library / "Application Support" / "volunteer" / "swarm"
        return Service("launchd", unit, invite, lines)
    name = unit.name
    lines = {
        "start it": f"systemctl --user enable --now {name}",
        "stop it": f"systemctl --user stop {name}",
        "see its state": f"systemctl --user status {name}",
        "read its log": f"journalctl --user -u {name} -f",
        "remove it": f"systemctl --user disable --now {name}; rm {quote(str(unit))}",
    }
    invite = unit.parents[2] / "volunteer" / "swarm"
    return Service("user", unit, invite, lines)


def _check_swarm(service: Service, target: Target) -> None:
    """Check that an invite is of the swarm that the service is installed for, if it is.

    Raises:
        UserError: the service is installed for another swarm, which must not be lost.
    """
    try:
        with service.invite.open(encoding="utf-8") as file:
            before = parse_target(file.read(MAX_SWARM_FILE_CHARS + 1))
    except (OSError, UnicodeDecodeError, ProtocolError):
        return
    if isinstance(before, Address) or isinstance(target, Address) or not service.unit.exists():
        return
    if before.swarm != target.swarm:
        raise UsageError(
            f"{service.unit.name} is installed for another swarm ({before.swarm[:12]}); nothing "
            "was changed",
            f"remove that one first: {service.lines['remove it']}",
        )


def _command() -> Path:
    """Return the absolute path of this program.

    Raises:
        UserError: it does not run as an installed command.
    """
    for found in (Path(sys.argv[0]).absolute(), Path(sys.executable).with_name("volunteer")):
        if found.name == "volunteer" and os.access(found, os.X_OK):
            return found
    located = shutil.which("volunteer")
    if located is None:
        raise UserError("the volunteer command is not installed", "pipx install volunteer")
    return Path(located).absolute()
