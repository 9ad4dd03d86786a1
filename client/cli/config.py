"""``volunteer config``: show, locate or check the configuration."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from cyclopts import App, Parameter
from msgspec import Struct

from client.cli.flags import Config, SettingFlags, given
from client.cli.home import find_home
from client.cli.output import print_json
from client.config import FIELDS, resolve
from client.store.paths import find_folders

app = App(name="config", default_parameter=Parameter(negative=()))


class Shown(Struct, frozen=True):
    """Answer of ``volunteer config show --json``."""

    settings: dict[str, object]
    origins: dict[str, str]
    schema_version: int = 1


@app.command
def show(
    *,
    flags: SettingFlags = SettingFlags(),  # noqa: B008  (frozen)
    config: Config = None,
    origin: bool = False,
    json: bool = False,
) -> None:
    """Print every setting as a volunteer would use it.

    Parameters
    ----------
    origin
        Also say where each value comes from.
    json
        Print JSON.
    """
    resolved = find_home(given(flags), config).resolved
    values = msgspec.to_builtins(resolved.settings)
    if json:
        print_json(Shown(values, dict(resolved.origins)))
        return
    for name in FIELDS:
        value = msgspec.json.encode(values[name]).decode()
        print(f"{name} = {value}" + (f"  # {resolved.origins[name]}" if origin else ""))


@app.command
def path() -> None:
    """Print where the user's configuration file is, or would be."""
    print(find_folders().config_file)


@app.command
def validate(file: Path | None = None, /) -> None:
    """Check a configuration file (default: the user's own) and the environment.

    Parameters
    ----------
    file
        The TOML file.
    """
    chosen = file or find_folders().config_file
    resolve({}, os.environ, file, chosen)
    print(f"{chosen} is fine" if chosen.exists() else f"{chosen} is not there: defaults apply")
