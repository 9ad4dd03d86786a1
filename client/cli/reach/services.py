"""Where the services of this machine are: unit, invite, settings, home and manager of each.

A service is the only one of its kind (``volunteer.service``) or an instance among several
(``volunteer@NAME.service``); an instance has a unit file, an invite, settings and a home of its
own, so that installing, changing and removing one leaves the others as they are. The files in the
folder of units are the only list of what is installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from client.errors import ExitCode, UserError
from client.packaging_data import INSTANCE_CHARS, Kind, is_instance
from client.store.paths import (
    HOME_VARIABLE,
    SYSTEM_HOME,
    Folders,
    find_folders,
    home_folders,
    runtime_folder,
    user_home,
)

Scope = Literal["user", "system"]
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
SYSTEM_SETTINGS: Final = Path("/etc/volunteer")
LABEL: Final = "org.volunteer.client"


@dataclass(frozen=True)
class ServicePlace:
    """One service, installed or not."""

    kind: Kind
    scope: Scope
    instance: str
    """Empty: the only one of its kind."""
    name: str
    """As its manager calls it."""
    unit: Path
    invite: Path
    environment: Path | None
    """``VOLUNTEER_*`` lines for this service; None: the manager reads no such file."""
    home: Path | None
    """``VOLUNTEER_HOME``; None: the user's usual folders."""
    manager: tuple[str, ...]
    """``systemctl`` with its scope; empty on a Mac."""

    @property
    def drop_in(self) -> Path:
        """The file that admits graphics cards to a system service."""
        return self.unit.with_name(f"{self.name}.d") / "gpu.conf"

    @property
    def folders(self) -> Folders:
        """The folders of its volunteer."""
        if self.home is not None:
            return home_folders(self.home)
        return find_folders({k: v for k, v in os.environ.items() if k != HOME_VARIABLE})

    @property
    def commands(self) -> dict[str, str]:
        """The commands of its manager, by what each is for. What is started also starts by itself
        at the next login or boot; what is stopped starts again then."""
        if self.kind == "launchd":
            domain = f"gui/{os.getuid()}"
            log = f"volunteer-{self.instance}.log" if self.instance else "volunteer.log"
            return {
                "start it": f"launchctl bootstrap {domain} {self.unit}",
                "stop it": f"launchctl bootout {domain}/{self.name}",
                "see its state": f"launchctl print {domain}/{self.name}",
                "read its log": f"tail -f {user_home() / 'Library' / 'Logs' / log}",
            }
        systemctl = " ".join(self.manager)
        user = "--user " if self.scope == "user" else ""
        return {
            "start it": f"{systemctl} enable --now {self.name}",
            "stop it": f"{systemctl} stop {self.name}",
            "see its state": f"{systemctl} status {self.name}",
            "read its log": f"journalctl {user}-u {self.name} -f",
        }

    @property
    def end(self) -> str:
        """The command that stops it for good."""
        if self.kind == "launchd":
            return self.commands["stop it"]
        return " ".join([*self.manager, "disable", "--now", self.name])

    @property
    def flags(self) -> str:
        """The flags by which ``volunteer service`` finds it; begins with a blank if not empty."""
        system = " --system" if self.scope == "system" else ""
        return system + (f" --instance {self.instance}" if self.instance else "")


def service_place(scope: Scope, instance: str = "") -> ServicePlace:
    """Return where a service is, or would be.

    Raises:
        UserError: no instance may have this name, or this system has no such services.
    """
    if instance and not is_instance(instance):
        raise UserError(
            f"--instance: {instance[:80]!r} cannot be a name",
            f"use at most {INSTANCE_CHARS} lower-case letters, digits, - and _",
            ExitCode.USAGE,
        )
    if sys.platform == "darwin":
        return _agent(scope, instance)
    name = f"volunteer@{instance}.service" if instance else "volunteer.service"
    beside = f"-{instance}" if instance else ""
    manager: tuple[str, ...] = ("systemctl",)
    if scope == "system":
        units, settings = SYSTEM_UNITS, SYSTEM_SETTINGS
        home: Path | None = SYSTEM_HOME.with_name(SYSTEM_HOME.name + beside)
    else:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or user_home() / ".config")
        units, settings = config / "systemd" / "user", config / "volunteer"
        manager = ("systemctl", "--user")
        home = user_home() / ".local" / "share" / f"volunteer{beside}" if instance else None
    return ServicePlace(
        kind=scope,
        scope=scope,
        instance=instance,
        name=name,
        unit=units / name,
        invite=settings / (f"{instance}.swarm" if instance else "swarm"),
        environment=settings / (f"{instance}.environment" if instance else "environment"),
        home=home,
        manager=manager,
    )


def _agent(scope: Scope, instance: str) -> ServicePlace:
    if scope == "system":
        raise UserError("on a Mac volunteer has no system service", "leave out --system")
    name = f"{LABEL}.{instance}" if instance else LABEL
    library = user_home() / "Library"
    support = library / "Application Support"
    return ServicePlace(
        kind="launchd",
        scope=scope,
        instance=instance,
        name=name,
        unit=library / "LaunchAgents" / f"{name}.plist",
        invite=support / "volunteer" / (f"{instance}.swarm" if instance else "swarm"),
        environment=None,
        home=support / f"volunteer-{instance}" if instance else None,
        manager=(),
    )


def installed_services(scope: Scope) -> list[ServicePlace]:
    """Return the services whose unit is there, by name; none where there can be none."""
    try:
        only = service_place(scope)
    except UserError:
        return []
    middle = r"(?:@(.+))?\.service" if only.manager else r"(?:\.(.+))?\.plist"
    pattern = re.compile(re.escape(only.unit.stem) + middle)
    return [service_place(scope, one) for one in sorted(_instances(only.unit.parent, pattern))]


def service_sockets() -> list[Path]:
    """Return the folders with the sockets of services; the system's is among them also if this user
    cannot see its unit."""
    places = [*installed_services("user"), *installed_services("system")]
    found = [runtime_folder(SYSTEM_HOME), *(place.folders.runtime for place in places)]
    return list(dict.fromkeys(found))


def _instances(folder: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the instances of the units in a folder; empty for the only one of its kind."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for found in filter(None, map(pattern.fullmatch, names)):
        instance = found[1] or ""
        if not instance or is_instance(instance):
            yield instance
