"""The settings of a node as flags: one for each declaration of ``client.config``.

None means that the flag was not given, so that the environment or a file decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

from cyclopts import Group, Parameter

from client.config import SETTINGS, Settings

TITLES: Final[dict[str, tuple[str, ...]]] = {
    "limits": (
        "threads",
        "compute_share",
        "seats",
        "memory_limit_bytes",
        "vram_share",
        "upload_limit_bytes_per_s",
        "download_limit_bytes_per_s",
        "daily_quota_bytes",
        "relay",
    ),
    "hours": ("only_when_idle", "idle_after_minutes", "not_on_battery", "schedule"),
    "devices": ("device", "offload", "compile"),
    "disk": ("data_dir", "checkpoint_keep", "data_cache_bytes"),
    "logging": (
        "log_level",
        "log_format",
        "metrics_port",
        "metrics_host",
    ),
}
"""Settings by the panel of the help that lists them."""
OTHERS: Final = "network and name"
COMPUTING: Final = frozenset(
    {
        *("threads", "compute_share", "seats", "memory_limit_bytes", "vram_share"),
        *TITLES["hours"],
        *TITLES["devices"],
        *(name for name in TITLES["disk"] if name != "data_dir"),
    }
)
"""What a volunteer that only relays has no use for."""
GROUPS: Final = {
    title: Group(f"Settings: {title}", sort_key=9 + place)
    for place, title in enumerate((*TITLES, OTHERS))
}
_TITLE: Final = {name: title for title, names in TITLES.items() for name in names}


def _flags(names: Iterable[str]) -> Iterator[tuple[str, Any, None]]:
    """Yield name, type and default of the settings' flags; an amount with a unit is a text."""
    types = get_type_hints(Settings)
    for name in names:
        setting = SETTINGS[name]
        kind = types[name] if setting.form.parse is None else str
        parameter = Parameter(
            help=setting.about.help,
            alias=setting.about.short_flag or None,
            group=GROUPS[_TITLE.get(name, OTHERS)],
        )
        yield name, Annotated[kind | None, parameter], None


if TYPE_CHECKING:

    class SettingFlags:
        """Flags that override settings; names and units are those of the settings."""

    RelayFlags = SettingFlags
else:

    def _class(name: str, settings: Iterable[str]) -> type:
        own = {"__module__": __name__}  # cyclopts takes the classes of a library for plain values
        made = make_dataclass(name, _flags(settings), namespace=own, frozen=True, kw_only=True)
        return Parameter(name="*")(made)

    SettingFlags = _class("SettingFlags", SETTINGS)
    RelayFlags = _class("RelayFlags", [name for name in SETTINGS if name not in COMPUTING])
