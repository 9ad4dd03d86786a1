"""Changes the user's settings file line by line, so that comments and order stay as they are."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from client.config import LIVE, check_setting, resolve
from client.errors import ConfigError, ExitCode, system_errors
from client.limits.cores import check_threads
from client.store.atomic import write_atomic
from client.store.paths import find_folders, make_own

_KEY = re.compile(r"^\s*(?P<key>[A-Za-z0-9_-]+)\s*=")


def save_setting(key: str, text: str) -> str:
    """Write a setting into this user's file; return a message.

    Raises:
        ConfigError: no such setting, an invalid value, or a file that was invalid before.
    """
    path = find_folders().config_file
    if key == "threads" and text.strip().isdecimal():
        check_threads(int(text))
    line = f"{key} = {_toml(check_setting(key, text), text)}"
    _write(path, key, line)
    variable = f"VOLUNTEER_{key.upper()}"
    if variable in os.environ:
        return f"{line} is in {path}, but the variable {variable} is set and takes precedence"
    if key in LIVE:
        return f"{line}: within seconds where a volunteer runs, unless a flag of its start says it"
    return f"{line}: from the next start"


def _write(path: Path, key: str, line: str) -> None:
    resolve({}, {}, None, path)  # the file must be valid, otherwise we would hide a fault
    before = path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else []
    kept = _replaced(before, key, line)
    if not _same_but_for(key, before, kept):
        raise ConfigError(
            f"{path} has a form that this command cannot change",
            "change it with an editor; volunteer config show checks it",
        )
    with system_errors(f"cannot write {path}", "make it writable", ExitCode.CONFIG):
        make_own(path.parent)
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
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_quoted(str(one)) for one in value) + "]"
    if isinstance(value, int | float) and text.strip() == str(value):
        return str(value)
    return _quoted(text)


def _quoted(text: str) -> str:
    """Return a basic string; JSON's escapes are TOML's."""
    return msgspec.json.encode(text).decode()
