"""Show or change the settings.

Group: this machine

$ volunteer config show --origin  # every setting and where it comes from
$ volunteer config set upload_limit_bytes_per_s 2MB/s  # within seconds where a volunteer runs

The first source that has a value wins: flag, VOLUNTEER_* variable, your file, the
administrator's file, default.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from client.cli.command_table import nested_app
from client.cli.reach.home import find_home
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import json_line
from client.config import LIVE, SETTINGS, Setting, check_setting, resolve
from client.errors import ConfigError, ExitCode, UsageError, system_errors
from client.limits.cores import check_threads
from client.store.atomic import write_atomic
from client.store.paths import find_folders, make_private

app = nested_app("config")
_KEY = re.compile(r"^\s*(?P<key>[A-Za-z0-9_-]+)\s*=")


@app.command
@answered
def show(
    *,
    origin: bool = False,
) -> Answer:
    """Print every setting as a volunteer would use it.

    Args:
        origin: Also say where each value comes from.
    """
    resolved = find_home().resolved
    values = msgspec.to_builtins(resolved.settings)
    lines = []
    for name, setting in SETTINGS.items():
        notes = [setting.zero_words(values[name]), resolved.origins[name] if origin else ""]
        note = f"  # {'; '.join(filter(None, notes))}" if any(notes) else ""
        lines.append(f"{name} = {_with_unit(setting, values[name])}{note}")
    return Answer({"settings": values, "origins": dict(resolved.origins)}, lines)


def _with_unit(setting: Setting, value: object) -> str:
    """Return a value in the notation of the file, amounts with their unit."""
    spelled = setting.words(value)
    with_unit = isinstance(value, int) and value != 0 and not spelled.isdecimal()
    return json_line(spelled if with_unit and not isinstance(value, bool) else value)


@app.command(name="set")
def set_(key: str, value: Annotated[str, Parameter(allow_leading_hyphen=True)], /) -> None:
    """Write a setting into your configuration file; its comments and order stay as they are.

    Limits of traffic and hours count within seconds where a volunteer runs, unless a flag of its
    start says otherwise; all else from the next start.

    Args:
        key: The setting, such as threads.
        value: Its value, with a unit where it has one, such as 2MB/s; several are separated by
            commas.
    """
    path, name = find_folders().config_file, _name(key)
    if name == "threads" and value.strip().isdecimal():
        check_threads(int(value))
    line = f"{name} = {_toml(check_setting(name, value), value)}"
    _write(path, name, line)
    variable = f"VOLUNTEER_{name.upper()}"
    if variable in os.environ:
        print(f"{line} is in {path}, but the variable {variable} is set and takes precedence")
    elif name in LIVE:
        print(f"{line}: within seconds where a volunteer runs, unless a flag of its start says it")
    else:
        print(f"{line}: from the next start")


def _name(key: str) -> str:
    """Return a setting's name, also where it is written like a flag."""
    name = key.removeprefix("--").replace("-", "_")
    try:
        check_setting(name, None)
    except ConfigError as error:
        raise UsageError(error.message, error.next_step) from error
    return name


def _write(path: Path, key: str, line: str) -> None:
    resolve({}, {}, path)  # the file must be valid, otherwise we would hide a fault
    before = path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else []
    kept = _replaced(before, key, line)
    if not _same_but_for(key, before, kept):
        raise ConfigError(
            f"{path} has a form that this command cannot change",
            "change it with an editor; volunteer config show checks it",
        )
    with system_errors(f"cannot write {path}", "make it writable", ExitCode.CONFIG):
        make_private(path.parent, readable=True)
        write_atomic(path, ("\n".join(kept) + "\n").encode())


def _replaced(lines: list[str], key: str, line: str) -> list[str]:
    """Return the lines with the one that sets ``key`` replaced, or ``line`` at the end."""
    first = next((i for i, text in enumerate(lines) if text.lstrip().startswith("[")), len(lines))
    for index, text in enumerate(lines[:first]):
        found = _KEY.match(text)
        if found is not None and found["key"] == key:
            end = _end_of_value(lines, index)
            return [*lines[:index], line, *lines[end:]]
    return [*lines, line]


def _end_of_value(lines: list[str], index: int) -> int:
    """Return the line after a value; arrays and some texts go over several."""
    ends = range(index + 1, len(lines) + 1)
    return next((end for end in ends if _parsed(lines[index:end]) is not None), index + 1)


def _same_but_for(key: str, before: Sequence[str], after: Sequence[str]) -> bool:
    old, new = _parsed(before), _parsed(after)
    return old is not None and new is not None and {**old, key: None} == {**new, key: None}


def _parsed(lines: Sequence[str]) -> dict[str, object] | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None


def _toml(value: object, text: str) -> str:
    """Return a value in the notation of the file, for which JSON's is good; a text and an amount
    with its unit as they were given."""
    plain = isinstance(value, bool | tuple) or text.strip() == str(value)
    return json_line(value if plain else text)
