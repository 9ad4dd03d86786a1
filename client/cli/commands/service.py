"""Run as a service: install or remove it.

Group: this machine

$ volunteer service install --swarm x.swarm  # write the unit of this user; starts nothing
$ volunteer service install --swarm x.swarm --start  # also start it, now and at every login
$ volunteer service install --system --dry-run  # print the unit and what would be done
$ volunteer service install --system --instance gpu1 --device cuda:1 --swarm x.swarm
  # one of several, each with its own swarm, home and graphics card
$ volunteer service uninstall --instance gpu1  # stops it; its home stays

--system makes it a service of the machine, which needs root. Installing prints the commands of
systemctl or launchctl that start and stop it, and show its state and log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from client.cli.command_table import nested_app
from client.cli.reach.services import ServicePlace, installed_services, service_place
from client.cli.reach.target import read_target
from client.cli.terminal.output import say
from client.config import check_setting
from client.errors import ExitCode, UserError
from client.packaging_data import GPU, SYSUSERS, service_file, text
from client.store.atomic import write_atomic
from protocol.address import Address
from protocol.errors import ProtocolError
from protocol.invite import MAX_SWARM_FILE_CHARS, Target, parse_target

app = nested_app("service")

User = Annotated[bool, Parameter(help="Of this user; runs while you are logged in (the default).")]
System = Annotated[bool, Parameter(help="Of the machine; needs root.")]
Instance = Annotated[
    str, Parameter(help="Name of one of several services, such as gpu0; without it: the only one.")
]
SYSUSERS_FILE = Path("/etc/sysusers.d/volunteer.conf")
BY_BUS: Final = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
"""Has CUDA number the cards as nvidia-smi does."""


@dataclass(frozen=True)
class Written:
    """A file that an installation writes."""

    path: Path
    text: str
    words: str
    """What it is."""
    mode: int


@app.command
def install(
    *,
    user: User = False,
    system: System = False,
    instance: Instance = "",
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    device: str | None = None,
    start: bool = False,
    dry_run: bool = False,
) -> None:
    """Write the unit (on a Mac: the agent); start it only with --start.

    Parameters
    ----------
    swarm
        Keep this invite where the service reads it: a .swarm file, an invite, or - for stdin.
    device
        Where to compute: auto, cpu, cuda, cuda:N by the number in nvidia-smi, or mps.
    start
        Also start it, now and at every login (with --system: at every boot).
    dry_run
        Print the unit and what else would be done, and do nothing; needs no root.
    """
    place = _place(user, system, instance)
    if not dry_run:
        _check_rights(place)
    command = _command()
    if place.kind == "system":
        _check_visible(command)
    files = list(_files(place, command, swarm, device))
    if dry_run:
        for file in files:
            say(f"would write {file.path}: {file.words}")
        if place.kind == "system":
            say(f"would make the user volunteer, by {SYSUSERS_FILE}")
        if start:
            say(f"would run {place.commands['start it']}")
        print(files[-1].text, end="")
        return
    if place.kind == "system":
        _make_user()
    for file in files:
        _write(file.path, file.text, file.mode)
        say(f"wrote {file.path}: {file.words}")
    print(place.unit)
    if not place.invite.exists():
        say(f"put the invite or .swarm file at {place.invite} (mode 0600) before you start it")
    if start:
        _start(place)
    for purpose, line in place.commands.items():
        say(f"to {purpose}: {line}")


def _files(
    place: ServicePlace, command: Path, swarm: str | None, device: str | None
) -> Iterator[Written]:
    """Yield what an installation writes, the unit last."""
    if swarm is not None:
        target = read_target(swarm)
        _check_swarm(place, target)
        yield Written(place.invite, str(target), "the invite", 0o600)
    if device is not None:
        yield from _device_files(place, str(check_setting("device", device)))
    unit = service_file(place.kind, command, place.instance)
    yield Written(place.unit, unit, "the unit", 0o644)


@app.command
def uninstall(*, user: User = False, system: System = False, instance: Instance = "") -> None:
    """Stop the service and remove its unit; what the volunteer has learned and keeps stays."""
    place = _place(user, system, instance)
    if not _remove(place):
        say(f"{place.unit} does not exist{_others_words(place)}")
        return
    print(place.unit)
    kept = [str(path) for path in (place.invite, place.environment) if path and _there(path)]
    words = f"; kept: {', '.join(kept)}" if kept else ""
    home = f"; its home {place.home} is kept, too" if place.home else ""
    say(f"service removed{words}{home}{_others_words(place)}")


def _place(user: bool, system: bool, instance: str) -> ServicePlace:
    if user and system:
        raise UserError("--user and --system do not go together", exit_code=ExitCode.USAGE)
    return service_place("system" if system else "user", instance)


def _others(place: ServicePlace) -> list[ServicePlace]:
    found = installed_services(place.scope)
    return [other for other in found if other.instance != place.instance]


def _others_words(place: ServicePlace) -> str:
    names = ", ".join(other.instance or "the one without a name" for other in _others(place))
    return f"; still installed: {names}" if names else ""


def _remove(place: ServicePlace) -> bool:
    if not place.unit.exists():
        return False
    _check_rights(place)
    _manage(place, place.end, ignore=True)
    place.unit.unlink()
    if _there(place.drop_in):
        place.drop_in.unlink()
        _remove_if_empty(place.drop_in.parent)
    _reload(place)
    return True


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # the administrator's own files are in it


def _start(place: ServicePlace) -> None:
    if not place.invite.exists():
        again = f"volunteer service install{place.flags} --swarm x.swarm --start"
        raise UserError(f"there is no invite at {place.invite} yet", again, ExitCode.USAGE)
    _manage(place, place.commands["start it"])


def _check_swarm(place: ServicePlace, target: Target) -> None:
    """Check that an invite is of the swarm that the service is installed for, if it is.

    Raises:
        UserError: the service is installed for another swarm, which must not be lost.
    """
    before = _swarm_of(place.invite)
    after = None if isinstance(target, Address) else target.swarm
    if place.unit.exists() and before is not None and after not in (None, before):
        raise UserError(
            f"{place.name} is installed for another swarm ({before[:12]}); nothing was changed",
            "add --instance NAME to have both, or remove that one first: "
            f"volunteer service uninstall{place.flags}",
            ExitCode.USAGE,
        )


def _swarm_of(invite: Path) -> str | None:
    """Return the swarm of an invite; None if there is none, or it names a member only."""
    try:
        with invite.open(encoding="utf-8") as file:
            found = parse_target(file.read(MAX_SWARM_FILE_CHARS + 1))
    except (OSError, UnicodeDecodeError, ProtocolError):
        return None
    return None if isinstance(found, Address) else found.swarm


def _device_files(place: ServicePlace, device: str) -> Iterator[Written]:
    """Yield the service's variables with the device, and what admits a system one to graphics
    cards.

    Raises:
        UserError: this service reads no variables, or they cannot be read.
    """
    if place.environment is None:
        home = f"VOLUNTEER_HOME='{place.home}' " if place.home else ""
        problem = "on a Mac the device is a setting of the volunteer"
        raise UserError(problem, f"{home}volunteer config set device {device}", ExitCode.USAGE)
    on_gpu = device.startswith("cuda")
    lines = [f"VOLUNTEER_DEVICE={device}", *([BY_BUS] if on_gpu else [])]
    names = tuple(f"{line.partition('=')[0]}=" for line in (*lines, BY_BUS))
    try:
        before = place.environment.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        before = []
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot read {place.environment}: {error}"
        raise UserError(problem, "mend or move it", ExitCode.CONFIG) from error
    kept = [line for line in before if not line.startswith(names)]
    content = "\n".join([*kept, *lines]) + "\n"
    yield Written(place.environment, content, ", ".join(lines), 0o600)
    if place.kind == "system" and on_gpu:
        yield Written(place.drop_in, text(GPU), "lets it use graphics cards", 0o644)


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


def _reload(place: ServicePlace) -> None:
    """Have systemd read its unit files again."""
    if not place.manager:
        return
    try:
        subprocess.run([*place.manager, "daemon-reload"], check=False, capture_output=True)
    except FileNotFoundError:
        return  # nothing reads them


def _manage(place: ServicePlace, command: str, *, ignore: bool = False) -> None:
    _reload(place)
    try:
        done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        if ignore:
            return
        raise UserError(f"there is no {command.split()[0]} here", f"later: {command}") from error
    if done.returncode != 0 and not ignore:
        problem = f"{command} failed: {done.stderr.strip()[-300:]}"
        raise UserError(problem, place.commands["read its log"])


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # not readable by us
