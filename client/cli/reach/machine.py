"""Finds all volunteers of this machine, whoever runs them, and asks each how it is.

The kernel's list of sockets has every volunteer that runs, also one that hangs or is another
user's. Of the homes known here (this one, the user's usual one, those of the services) those
without a running volunteer are told, too, where one should run or has failed. Answers of other
users' volunteers are theirs: they are shown with the user that the kernel names.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from client.cli.reach.running import ending_words
from client.cli.reach.services import ServicePlace, installed_services
from client.control.client import ControlClient, ControlError, NoAnswer, NotRunning
from client.control.snapshot import Snapshot
from client.control.sockets import SUFFIX, Listener, listener, listening_sockets
from client.errors import UserError
from client.store.last_run import RunRecord
from client.store.paths import HOME_VARIABLE, Folders, find_folders

ASK_S: Final = 2.0
ASKED_AT_ONCE: Final = 16
_UNIT = re.compile(r"volunteer(@[a-z0-9_-]+)?\.service")

State = Literal["answers", "stopped", "hung", "unclear", "no access", "starting", "not running"]


class Volunteer(Struct, frozen=True, kw_only=True):
    """One volunteer of this machine."""

    condition: State
    """``answers``: what follows is its own answer. ``stopped``: its process is (SIGSTOP).
    ``hung``: it does not answer. ``unclear``: it answers nonsense, or is another version's.
    ``no access``: another user's. ``starting``: it has no socket yet, or no longer. ``not
    running``: it should run, or has failed."""
    words: str
    """The reason of its state; for one that does not answer, what is the matter."""
    next_step: str = ""
    home: str = ""
    """``VOLUNTEER_HOME``; empty: the user's usual folders, or not known."""
    service: str = ""
    """Of systemd or launchd; empty: it runs by itself."""
    user: str = ""
    pid: int | None = None
    socket: str = ""
    swarm: str = ""
    swarm_name: str = ""
    state: str = ""
    """As ``volunteer status`` has it; empty: it did not answer."""
    stages: list[int] = field(default_factory=list)
    step: int = 0
    steps: int = 0
    tokens_per_s: float = 0.0
    """Its own part."""
    memory_bytes: int = 0
    """Of its processes."""
    threads: int = 0
    device: str = ""
    uptime_s: float = 0.0


@dataclass(frozen=True)
class KnownHome:
    """A home in which a volunteer may run."""

    folders: Folders
    home: str
    service: str = ""


def find_volunteers() -> list[Volunteer]:
    """Return the volunteers of this machine: those that answer first, by swarm and home."""
    homes = list(_known_homes())
    own = {path for home in homes for path in _sockets_in(home.folders.runtime)}
    with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
        asked = list(threads.map(_ask, sorted({*own, *listening_sockets()})))
    found = [one for one in asked if one is not None]
    taken = {str(Path(one.socket).parent) for one in found}
    found += [
        one
        for home in homes
        if str(home.folders.runtime) not in taken and (one := _without_socket(home)) is not None
    ]
    order = ("answers", "stopped", "hung", "unclear", "starting", "not running", "no access")
    return sorted(found, key=lambda one: (order.index(one.condition), one.swarm_name, one.home))


def _known_homes() -> Iterator[KnownHome]:
    """Yield this home, the user's usual one, and those of the services, each once."""
    services = [*installed_services("user"), *installed_services("system")]
    known = [
        *(KnownHome(place.folders, str(place.home or ""), place.name) for place in services),
        *_own_homes(),
    ]
    seen: set[Path] = set()
    for home in known:
        if home.folders.runtime not in seen:
            seen.add(home.folders.runtime)
            yield home


def _own_homes() -> Iterator[KnownHome]:
    """Yield this home and the user's usual one, as far as this user has them."""
    usual = {name: text for name, text in os.environ.items() if name != HOME_VARIABLE}
    for environ in (os.environ, usual):
        with suppress(UserError):
            yield KnownHome(find_folders(environ), environ.get(HOME_VARIABLE, ""))


def _sockets_in(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.endswith(SUFFIX)]
    except OSError:
        return []  # not there, or another user's: the kernel tells of those that run


def _ask(path: Path) -> Volunteer | None:
    """Return the volunteer that listens on a socket; None: nobody does."""
    try:
        who = listener(path)
    except PermissionError:
        return _closed(path)
    except OSError:
        return None  # its process is gone
    try:
        with ControlClient(path, timeout_s=ASK_S) as node:
            return _described(path, who, node.status())
    except NotRunning:
        return None  # it has ended meanwhile
    except ControlError as error:
        return _mute(path, who, error)


def _closed(path: Path) -> Volunteer:
    user = ""
    with suppress(OSError):
        user = user_name(path.parent.lstat().st_uid)
    return Volunteer(
        condition="no access",
        words=f"another user's: this user may not open {path}",
        next_step="ask its owner, or use sudo: sudo volunteer list",
        home=_home_by_path(path),
        user=user,
        socket=str(path),
    )


def _described(path: Path, who: Listener, now: Snapshot) -> Volunteer:
    return Volunteer(
        condition="answers",
        words=now.reason,
        home=_home_of(who, path),
        service=_service_of(who.pid),
        user=user_name(who.user),
        pid=who.pid,
        socket=str(path),
        swarm=now.swarm,
        swarm_name=now.swarm_name,
        state=now.state,
        stages=[seat.stage for seat in now.seats],
        step=now.step,
        steps=now.steps,
        tokens_per_s=now.own_tokens_per_s,
        memory_bytes=now.rss_bytes + sum(worker.rss_bytes for worker in now.workers),
        threads=now.limits.threads_now,
        device=now.limits.device,
        uptime_s=now.uptime_s,
    )


def _mute(path: Path, who: Listener, error: ControlError) -> Volunteer:
    condition: State = "unclear"
    words, next_step = error.message, error.next_step
    if isinstance(error, NoAnswer):
        condition, words = "hung", f"process {who.pid or '?'} listens but does not answer"
        next_step = f"wait, or read its log; if this lasts, end it: kill {who.pid or 'PID'}"
        if _is_stopped(who.pid):
            condition, words = "stopped", f"process {who.pid} was stopped by a signal"
            next_step = f"have it go on: kill -CONT {who.pid}"
    return Volunteer(
        condition=condition,
        words=words,
        next_step=next_step,
        home=_home_of(who, path),
        service=_service_of(who.pid),
        user=user_name(who.user),
        pid=who.pid,
        socket=str(path),
    )


def _without_socket(home: KnownHome) -> Volunteer | None:
    """Return the volunteer of a home where none listens; None: none needs to run there."""
    record = RunRecord(home.folders.data)
    run, ending = record.load(), record.ending()
    pid = run.pid if run is not None and run.runs else None
    if pid is not None:
        words, next_step = f"process {pid} is starting or ending", "if this lasts, read its log"
    elif ending is not None and (home.service or ending.failed):
        words, next_step = ending_words(ending), ending.next_step
    elif home.service:
        words, next_step = "no volunteer has run here yet", ""
    else:
        return None
    if home.service and pid is None:
        next_step = _start_of(home.service)
    return Volunteer(
        condition="not running" if pid is None else "starting",
        words=words,
        next_step=next_step,
        home=home.home,
        service=home.service,
        pid=pid,
        swarm=run.swarm if run is not None else "",
        swarm_name=run.swarm_name if run is not None else "",
    )


def _start_of(service: str) -> str:
    """Return the command that starts a service; empty: it is removed meanwhile."""
    places: list[ServicePlace] = [*installed_services("user"), *installed_services("system")]
    return next((place.commands["start it"] for place in places if place.name == service), "")


def _home_of(who: Listener, path: Path) -> str:
    """Return a volunteer's home: by its environment, which its owner and root may read, else by
    where its socket is."""
    import psutil

    if who.pid is None:
        return _home_by_path(path)
    try:
        return str(psutil.Process(who.pid).environ().get(HOME_VARIABLE, ""))
    except (psutil.Error, OSError, ValueError):
        return _home_by_path(path)


def _home_by_path(path: Path) -> str:
    return str(path.parent.parent) if path.parent.name == "run" else ""


def _service_of(pid: int | None) -> str:
    """Return the unit that a process belongs to; empty: none of ours, or not known."""
    if pid is None:
        return ""
    try:
        group = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = [name for name in re.split(r"[/\n]", group) if _UNIT.fullmatch(name)]
    return found[-1] if found else ""


def _is_stopped(pid: int | None) -> bool:
    import psutil

    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def user_name(user: int | None) -> str:
    """Return the name of a user; its number where it has none."""
    if user is None:
        return ""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
