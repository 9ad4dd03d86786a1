"""Files for the operating system that the wheel carries: service units and a launchd agent.

Each is complete as it stands, so that the linters of systemd and launchd can read it and an
administrator can copy it. Two things differ between services: where the command is, and the name
of the instance, where a machine runs several; ``service_file`` puts them in. The units with an
``@`` are made of those without by ``packaging/generate.py``. ``packaging/`` links here and
describes what each file is for.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import PurePath
from typing import Final, Literal
from xml.sax.saxutils import escape

Kind = Literal["system", "user", "launchd"]

FILES: Final[dict[Kind, str]] = {
    "system": "system/volunteer.service",
    "user": "user/volunteer.service",
    "launchd": "launchd/org.volunteer.client.plist",
}
COMMANDS: Final[dict[Kind, str]] = {
    "system": "/opt/volunteer/bin/volunteer",
    "user": "%h/.local/bin/volunteer",
    "launchd": '"$HOME/.local/bin/volunteer"',
}
"""The command as it is written in each file."""
SYSUSERS: Final = "system/volunteer.sysusers.conf"
"""Declares the user of the system service (``sysusers.d``)."""
GPU: Final = "system/gpu.conf"
"""Admits graphics cards to the system service (a drop-in)."""
INSTANCE_CHARS: Final = 32
"""Longest name of an instance: the path of its control socket has to fit."""
_INSTANCE = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{INSTANCE_CHARS - 1}}}")
_OF_INSTANCE: Final[dict[Kind, tuple[tuple[str, str], ...]]] = {
    "system": (
        ("/etc/volunteer/swarm", "/etc/volunteer/NAME.swarm"),
        ("/etc/volunteer/environment", "/etc/volunteer/NAME.environment"),
        ("/var/lib/volunteer", "/var/lib/volunteer-NAME"),
        ("StateDirectory=volunteer", "StateDirectory=volunteer-NAME"),
        ("Description=Volunteer:", "Description=Volunteer NAME:"),
    ),
    "user": (
        ("user/volunteer.service", "user/volunteer@.service"),
        ("volunteer/swarm", "volunteer/NAME.swarm"),
        (
            "EnvironmentFile=-%E/volunteer/environment",
            "EnvironmentFile=-%E/volunteer/NAME.environment\n"
            "Environment=VOLUNTEER_HOME=%h/.local/share/volunteer-NAME",
        ),
        ("Description=Volunteer:", "Description=Volunteer NAME:"),
    ),
    "launchd": (
        ("org.volunteer.client", "org.volunteer.client.NAME"),
        ("volunteer/swarm", "volunteer/NAME.swarm"),
        ("volunteer.log", "volunteer-NAME.log"),
        (
            "umask 077; ",
            'umask 077; export VOLUNTEER_HOME="$HOME/Library/Application Support/volunteer-NAME"; ',
        ),
    ),
}
"""Changes of each file for an instance: what is in it, and in its place."""


def text(name: str) -> str:
    """Return one of the carried files by its path below this package."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def service_file(kind: Kind, command: PurePath | None = None, instance: str = "") -> str:
    """Return a service file.

    Args:
        kind: of the service manager.
        command: the program that it runs; None: the one it is written with.
        instance: its name among several; empty: the only one. ``%i`` makes a systemd template.

    Raises:
        ValueError: the command's path is not absolute, or has a character that no unit can hold.
    """
    written = text(FILES[kind])
    for before, after in _OF_INSTANCE[kind] if instance else ():
        written = written.replace(before, after.replace("NAME", instance))
    if command is None:
        return written
    return written.replace(COMMANDS[kind], _quoted(kind, str(command)))


def is_instance(name: str) -> bool:
    """Whether an instance may have this name: lower-case letters, digits, ``-`` and ``_``."""
    return _INSTANCE.fullmatch(name) is not None


def _quoted(kind: Kind, command: str) -> str:
    if not command.startswith("/") or not command.isprintable():
        raise ValueError(f"not the absolute path of a command: {command[:200]!r}")
    if kind == "launchd":  # a word of /bin/sh inside XML
        return escape("'" + command.replace("'", "'\\''") + "'")
    if any(sign in command for sign in "\"'\\"):
        raise ValueError(f"systemd cannot start a command with quotes in its path: {command!r}")
    quoted = command.replace("%", "%%")
    return f'"{quoted}"' if " " in quoted else quoted
