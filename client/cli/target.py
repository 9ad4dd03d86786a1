"""What ``--swarm`` means: an invite, a ``.swarm`` file, a member's address, or ``-`` for stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from client.errors import ExitCode, UserError
from protocol.errors import RemoteProtocolError
from protocol.invite import MAX_SWARM_FILE_CHARS, SCHEME, InviteError, Target, parse_target


def read_target(text: str) -> Target:
    """Return the swarm that ``--swarm`` names.

    Raises:
        UserError: it cannot be read or understood (usage), or its signature does not hold
            (refused).
    """
    try:
        return parse_target(_contents(text))
    except InviteError as error:
        raise UserError(f"--swarm: {error}", error.next_step, ExitCode.USAGE) from error
    except RemoteProtocolError as error:
        raise UserError(
            f"--swarm: the manifest is not genuine: {error}",
            "ask the founder for the .swarm file or a new invite",
            ExitCode.REFUSED,
        ) from error


def _contents(text: str) -> str:
    if text == "-":
        return sys.stdin.read(MAX_SWARM_FILE_CHARS + 1)
    if text.startswith((SCHEME, "/ip4/", "/dns4/")):
        return text
    return _read_file(Path(text))


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_SWARM_FILE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(
            f"--swarm: cannot read {str(path)[:200]!r}: {reason}",
            "give an invite (volunteer:...), a .swarm file, a member's address, or - for stdin",
            ExitCode.USAGE,
        ) from error
