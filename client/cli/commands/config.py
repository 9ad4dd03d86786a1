"""Show or change the settings.

Group: this machine

$ volunteer config show --origin  # every setting and where it comes from
$ volunteer config set upload_limit_bytes_per_s 2MB/s  # within seconds where a volunteer runs
$ volunteer config show --config FILE  # check a file, and what it comes to

The first source that has a value wins: flag, VOLUNTEER_* variable, --config file, your file, the
administrator's file, default.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.home import find_home
from client.cli.settings.config_file import save_setting
from client.cli.settings.flags import Config
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import json_line
from client.config import SETTINGS, Setting, check_setting
from client.errors import ConfigError, ExitCode, UserError

app = nested_app("config")


class Shown(Struct, frozen=True):
    """Answer of ``volunteer config show --json``."""

    settings: dict[str, object]
    origins: dict[str, str]


@app.command
@answered
def show(
    *,
    config: Config = None,
    origin: bool = False,
) -> Answer:
    """Print every setting as a volunteer would use it.

    Parameters
    ----------
    origin
        Also say where each value comes from.
    """
    resolved = find_home(config=config).resolved
    values = msgspec.to_builtins(resolved.settings)
    lines = []
    for name, setting in SETTINGS.items():
        notes = [setting.zero_words(values[name]), resolved.origins[name] if origin else ""]
        note = f"  # {'; '.join(filter(None, notes))}" if any(notes) else ""
        lines.append(f"{name} = {_toml(setting, values[name])}{note}")
    return Answer(Shown(values, dict(resolved.origins)), lines)


def _toml(setting: Setting, value: object) -> str:
    """Return a value in the notation of the file, amounts with their unit."""
    spelled = setting.words(value)
    with_unit = isinstance(value, int) and value != 0 and not spelled.isdecimal()
    return json_line(spelled if with_unit and not isinstance(value, bool) else value)


@app.command(name="set")
def set_(key: str, value: Annotated[str, Parameter(allow_leading_hyphen=True)], /) -> None:
    """Write a setting into your configuration file.

    Limits of traffic and hours count within seconds where a volunteer runs, unless a flag of its
    start says otherwise; all else from the next start.

    Parameters
    ----------
    key
        The setting, such as threads.
    value
        Its value, with a unit where it has one, such as 2MB/s; several are separated by commas.
    """
    print(save_setting(_name(key), value))


def _name(key: str) -> str:
    """Return a setting's name, also where it is written like a flag."""
    name = key.removeprefix("--").replace("-", "_")
    try:
        check_setting(name, None)
    except ConfigError as error:
        raise UserError(error.message, error.next_step, ExitCode.USAGE) from error
    return name
