"""The settings of a node as flags: one for each declaration of ``client.config``.

None means that the flag was not given, so that the environment or a file decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Group, Parameter

from client.config import SETTINGS, Settings

GROUP = Group("Settings (also in the configuration file and as VOLUNTEER_* variables)", sort_key=9)
Config = Annotated[
    Path | None,
    Parameter(name="--config", group=GROUP, help="Configuration file, besides the user's own."),
]


def _flags() -> Iterator[tuple[str, Any, None]]:
    """Yield name, type and default of every flag; an amount with a unit is a text."""
    types = get_type_hints(Settings)
    for name, setting in SETTINGS.items():
        kind = types[name] if setting.form.parse is None else str
        alias = setting.about.short_flag or None
        yield name, Annotated[kind | None, Parameter(help=setting.about.help, alias=alias)], None


if TYPE_CHECKING:

    class SettingFlags:
        """Flags that override settings; names and units are those of the settings."""
else:
    own = {"__module__": __name__}  # cyclopts takes the classes of a library for plain values
    SettingFlags = Parameter(name="*", group=GROUP)(
        make_dataclass("SettingFlags", _flags(), namespace=own, frozen=True, kw_only=True)
    )


def given(flags: SettingFlags) -> dict[str, object]:
    """Return the flags by setting; those not given are None."""
    return dict(vars(flags))
