"""Files for the operating system that the wheel carries: service units and a launchd agent.

Each is complete as it stands, so that the linters of systemd and launchd can read it and an
administrator can copy it; ``service_file`` puts in where the command is. The units with an ``@``,
of which a machine runs several, are made of those without by ``packaging/generate.py``.
``packaging/`` links here and describes what each file is for.
"""

from __future__ import annotations

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


def text(name: str) -> str:
    """Return one of the carried files by its path below this package."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def service_file(kind: Kind, command: PurePath) -> str:
    """Return a service file that runs ``command``.

    Raises:
        ValueError: the command's path is not absolute, or has a character that no unit can hold.
    """
    return text(FILES[kind]).replace(COMMANDS[kind], _quoted(kind, str(command)))


def _quoted(kind: Kind, command: str) -> str:
    if not command.startswith("/") or not command.isprintable():
        raise ValueError(f"not the absolute path of a command: {command[:200]!r}")
    if kind == "launchd":  # a word of /bin/sh inside XML
        return escape("'" + command.replace("'", "'\\''") + "'")
    if any(sign in command for sign in "\"'\\"):
        raise ValueError(f"systemd cannot start a command with quotes in its path: {command!r}")
    quoted = command.replace("%", "%%")
    return f'"{quoted}"' if " " in quoted else quoted
