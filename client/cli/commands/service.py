"""``volunteer service``: run as a service of this machine or this user.

Installing writes a file and says what to do with it; nothing starts by itself unless asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.target import read_target
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.packaging_data import SYSUSERS, Kind, service_file, text
from client.store.atomic import write_atomic

app = nested_app("service")

Scope = Literal["user", "system"]
User = Annotated[bool, Parameter(help="Of this user; runs while you are logged in (the default).")]
System = Annotated[bool, Parameter(help="Of the machine; needs root.")]
NAME = "volunteer.service"
LABEL = "org.volunteer.client"
SYSUSERS_FILE = Path("/etc/sysusers.d/volunteer.conf")


@dataclass(frozen=True)
class ServicePlace:
    """The unit file of one kind of service, and the commands that control it."""

    kind: Kind
    unit: Path
    invite: Path
    start: str
    stop: str
    manager: tuple[str, ...]


class ServiceStatus(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer service status --json``."""

    scope: Scope
    unit: str
    installed: bool
    enabled: str
    """The service manager's answer: ``enabled``, ``disabled``, or empty without one."""
    active: str
    invite: str
    invite_there: bool
    schema_version: int = 1


@app.command
def install(
    *,
    user: User = False,
    system: System = False,
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    start: bool = False,
) -> None:
    """Write the unit (on a Mac: the agent); start it only with --start.

    Parameters
    ----------
    swarm
        Keep this invite where the service reads it: a .swarm file, an invite, or - for stdin.
    start
        Also start it, now and at every login (with --system: at every boot).
    """
    place = _place(_scope(user, system))
    _check_rights(place)
    if swarm is not None:
        _write(place.invite, str(read_target(swarm)), 0o600)
        say(f"wrote {place.invite}")
    command = _command()
    if place.kind == "system":
        _check_visible(command)
        _make_user()
    _write(place.unit, service_file(place.kind, command), 0o644)
    print(place.unit)
    if not place.invite.exists():
        say(f"put the invite or .swarm file at {place.invite} (mode 0600) before you start it")
    if not start:
        say(f"start it with: {place.start}")
        return
    if not place.invite.exists():
        raise UserError("there is no invite yet", "give --swarm, too", ExitCode.USAGE)
    _manage(place, place.start)


@app.command
def uninstall(*, user: User = False, system: System = False) -> None:
    """Stop the service and remove its unit; what the volunteer has learned and keeps stays."""
    place = _place(_scope(user, system))
    if not _remove(place):
        say(f"{place.unit} does not exist")
        return
    print(place.unit)
    say(
        f"service removed; the invite {place.invite} is kept"
        if place.invite.exists()
        else "removed"
    )


@app.command
def status(*, user: User = False, system: System = False, json: AsJson = False) -> int:
    """Say whether the service is installed, starts by itself, and runs now."""
    scope = _scope(user, system)
    place = _place(scope)
    found = ServiceStatus(
        scope=scope,
        unit=str(place.unit),
        installed=place.unit.exists(),
        enabled=_ask(place, "is-enabled"),
        active=_ask(place, "is-active"),
        invite=str(place.invite),
        invite_there=_there(place.invite),
    )
    if json:
        print_json(found)
    else:
        print(f"unit     {found.unit}: {'installed' if found.installed else 'not installed'}")
        print(f"enabled  {found.enabled or 'unknown'}")
        print(f"active   {found.active or 'unknown'}")
        print(f"invite   {found.invite}: {'there' if found.invite_there else 'not there'}")
    return ExitCode.OK if found.installed else ExitCode.NOT_RUNNING


def remove_own() -> Path | None:
    """Stop and remove this user's service; return its unit, None if there was none."""
    place = _place("user")
    return place.unit if _remove(place) else None


def _remove(place: ServicePlace) -> bool:
    if not place.unit.exists():
        return False
    _check_rights(place)
    _manage(place, place.stop, ignore=True)
    place.unit.unlink()
    return True


def _scope(user: bool, system: bool) -> Scope:
    if user and system:
        raise UserError("--user and --system do not go together", exit_code=ExitCode.USAGE)
    return "system" if system else "user"


def _place(scope: Scope) -> ServicePlace:
    home = Path.home()
    if sys.platform == "darwin":
        if scope == "system":
            raise UserError("on a Mac volunteer has no system service", "leave out --system")
        unit = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        invite = home / "Library" / "Application Support" / "volunteer" / "swarm"
        domain = f"gui/{os.getuid()}"
        start = f"launchctl bootstrap {domain} {unit}"
        stop = f"launchctl bootout {domain}/{LABEL}"
        return ServicePlace("launchd", unit, invite, start, stop, ())
    if scope == "system":
        unit = Path("/etc/systemd/system") / NAME
        start, stop = (f"systemctl {word} --now {NAME}" for word in ("enable", "disable"))
        return ServicePlace(
            "system", unit, Path("/etc/volunteer/swarm"), start, stop, ("systemctl",)
        )
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    unit = config / "systemd" / "user" / NAME
    start, stop = (f"systemctl --user {word} --now {NAME}" for word in ("enable", "disable"))
    manager = ("systemctl", "--user")
    return ServicePlace("user", unit, config / "volunteer" / "swarm", start, stop, manager)


def _command() -> Path:
    """Return the absolute path of this program.

    Raises:
        UserError: it does not run as an installed command.
    """
    found = Path(sys.argv[0]).absolute()
    if found.name != "volunteer" or not os.access(found, os.X_OK):
        found = Path(sys.executable).with_name("volunteer")
    if not os.access(found, os.X_OK):
        located = shutil.which("volunteer")
        if located is None:
            raise UserError("the volunteer command is not installed", "pipx install volunteer")
        found = Path(located).absolute()
    return found


def _check_rights(place: ServicePlace) -> None:
    if place.kind == "system" and os.geteuid() != 0:
        raise UserError("a system service needs root", "use sudo, or --user", ExitCode.REFUSED)


def _check_visible(command: Path) -> None:
    """Refuse a program below ``/home`` or ``/root``, where pyenv and pipx install: the system
    service sees neither.

    Raises:
        UserError: the command or its interpreter is there.
    """
    for needed in (command, Path(sys.executable).resolve()):
        if needed.is_relative_to("/home") or needed.is_relative_to("/root"):
            raise UserError(
                f"a system service cannot see {needed}",
                "install it into /opt/volunteer, with a Python outside of /home and /root",
                ExitCode.CONFIG,
            )


def _make_user() -> None:
    """Declare the user that the system service runs as, and have systemd make it."""
    _write(SYSUSERS_FILE, text(SYSUSERS), 0o644)
    try:
        subprocess.run(["systemd-sysusers", str(SYSUSERS_FILE)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            "cannot make the user volunteer", f"make it by hand; see {SYSUSERS_FILE}"
        ) from error


def _write(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(path, text.encode(), mode)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "make it writable") from error


def _manage(place: ServicePlace, command: str, *, ignore: bool = False) -> None:
    if place.manager:
        subprocess.run([*place.manager, "daemon-reload"], check=False, capture_output=True)
    try:
        done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"there is no {command.split()[0]} here", f"later: {command}") from error
    if done.returncode != 0 and not ignore:
        raise UserError(f"{command} failed: {done.stderr.strip()[-300:]}", "see journalctl -e")


def _ask(place: ServicePlace, question: str) -> str:
    if not place.manager:
        return ""
    try:
        command = [*place.manager, question, NAME]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # not readable by us
