"""The checks of ``volunteer doctor`` for services: each that is installed has an invite and a
program to run, and is not given up by its manager."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from client.cli.diagnosis.checks import Check
from client.cli.reach.services import ServicePlace, installed_services

ASK_S = 5.0


def check_services() -> Iterator[Check]:
    """Yield a check of every installed service."""
    for place in (*installed_services("user"), *installed_services("system")):
        yield _check(place)


def _check(place: ServicePlace) -> Check:
    name = f"service {place.name}"
    try:
        invite_there = place.invite.exists()
    except OSError:
        invite_there = True  # not for us to see
    if not invite_there:
        step = f"volunteer service install{place.flags} --swarm x.swarm"
        return Check(name, "fail", f"it has no invite: {place.invite} is missing", step)
    program = _program(place)
    if program is not None and not program.exists():
        step = f"install it there, or write the unit anew: volunteer service install{place.flags}"
        return Check(name, "fail", f"its program {program} is missing", step)
    state = _state(place)
    if state == "failed":
        step = f"{place.commands['read its log']}, then {place.commands['start it']}"
        return Check(name, "fail", "it has failed and is not started again", step)
    return Check(name, "ok", state or "installed")


def _program(place: ServicePlace) -> Path | None:
    """Return the program that a unit runs; None: not known."""
    try:
        found = re.search(r'(?m)^ExecStart="?(/[^"\n]*?)"? join ', place.unit.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return Path(found[1].replace("%%", "%")) if found else None


def _state(place: ServicePlace) -> str:
    if not place.manager:
        return ""
    command = [*place.manager, "is-active", place.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0]
