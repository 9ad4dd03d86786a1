"""Where the volunteers are that services of this machine run."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from client.errors import UserError
from client.store.paths import HOME_VARIABLE, SYSTEM_HOME, find_folders, runtime_folder, user_home

AGENT: Final = "org.volunteer.client.plist"
"""Of a Mac."""


def service_sockets() -> list[Path]:
    """Return the folders with the sockets of services: of the machine and of this user, with those
    of instances (``volunteer@NAME``), whose homes end with their name."""
    homes = [SYSTEM_HOME, *_beside(SYSTEM_HOME)]
    found = []
    with suppress(UserError, OSError):  # no home, or one that we may not enter
        homes += _beside(user_home() / ".local" / "share" / SYSTEM_HOME.name)
        if _user_unit().exists():
            usual = {k: v for k, v in os.environ.items() if k != HOME_VARIABLE}
            found = [find_folders(usual).runtime]
    return list(dict.fromkeys([*map(runtime_folder, homes), *found]))


def _user_unit() -> Path:
    """Return the unit of this user's service, which need not be installed; raises ``UserError``
    where the user has no home folder."""
    if sys.platform == "darwin":
        return user_home() / "Library" / "LaunchAgents" / AGENT
    config = Path(os.environ.get("XDG_CONFIG_HOME") or user_home() / ".config")
    return config / "systemd" / "user" / "volunteer.service"


def _beside(home: Path) -> list[Path]:
    try:
        return sorted(home.parent.glob(f"{home.name}-*"))
    except OSError:
        return []
