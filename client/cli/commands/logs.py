"""Print the volunteer's log, whether it runs or not.

$ volunteer logs -n 50  # the last 50 lines
$ volunteer logs -f --level warning  # follow warnings and errors
$ volunteer logs --since 2h  # the lines of the last two hours
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from client.cli.logging.log_file import NAME, Line, lines_of, log_files, read_lines
from client.cli.reach.home import running_home
from client.cli.terminal.output import json_line, versioned, with_level
from client.cli.terminal.parameters import Duration
from client.errors import ExitCode, UserError
from client.events import at_least
from protocol.effects import Level

LOOK_S = 0.3


def logs(
    *,
    follow: Annotated[bool, Parameter(alias="-f")] = False,
    since: Duration = None,
    level: Level = "info",
    lines: Annotated[int, Parameter(alias="-n")] = 0,
    json: bool = False,
) -> None:
    """Print the log, oldest first; it is there whether the volunteer runs or not.

    Args:
        follow: Go on with what comes, until you interrupt.
        since: Only what was said in the last 10m, or another time of this form.
        level: Least important lines to print.
        lines: Only the last so many; 0: all.
        json: Print one JSON document per line.
    """
    folder = running_home().folders.logs
    if not log_files(folder) and not follow:
        words = f"no log in {folder}"
        raise UserError(words, "it is created by volunteer join", ExitCode.NOT_RUNNING)
    earliest = 0.0 if since is None else time.time() - since

    def wanted(line: Line) -> bool:
        return line.time >= earliest and at_least(line.level, level)

    end = _end(folder)
    old = [line for line in read_lines(folder) if wanted(line)]
    for line in old[-lines:] if lines else old:
        print(_json(line) if json else _text(line), flush=True)
    for line in _coming(folder, end) if follow else ():
        if wanted(line):
            print(_json(line) if json else _text(line), flush=True)


def _end(folder: Path) -> int:
    try:
        return (folder / NAME).stat().st_size
    except OSError:
        return 0


def _coming(folder: Path, start: int) -> Iterator[Line]:
    """Yield lines as they are written, through changes of the file, without end."""
    path = folder / NAME
    while True:
        try:
            with path.open("rb") as file:
                file.seek(start)
                inode = path.stat().st_ino
                while path.exists() and path.stat().st_ino == inode:
                    yield from lines_of(file)
                    time.sleep(LOOK_S)
                yield from lines_of(file)
        except FileNotFoundError:
            time.sleep(LOOK_S)
        start = 0


def _json(line: Line) -> str:
    return json_line(versioned(line))


def _text(line: Line) -> str:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time))
    return f"{clock} {with_level(line.level, line.words)}"
