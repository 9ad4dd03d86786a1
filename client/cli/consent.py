"""Asks a person once what may be used of this machine, and remembers the answer.

What runs without anybody to ask (headless, services, scripts) was set up by somebody who agreed.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from client.cli.output import human_bytes, human_rate, say
from client.config import Settings
from client.limits.cores import find_cores, plural_cores
from client.store.atomic import write_atomic
from client.store.paths import make_private

FILE_NAME = "consent.json"
TERMS = 1
"""Rises when a volunteer gives more than those before agreed to; then they are asked again."""


class Consent(Struct, frozen=True):
    """That the owner of this home has agreed."""

    terms: int
    at: float
    """Unix seconds."""


def agreed(folder: Path, settings: Settings, *, yes: bool) -> bool:
    """Whether the owner lets this machine be used; asks where nothing is remembered.

    Args:
        folder: the data folder, where the answer is kept.
        yes: the owner said so on the command line.
    """
    if _remembered(folder):
        return True
    if not yes:
        width = min(shutil.get_terminal_size().columns, 100)
        for line in terms(settings, folder):
            say(textwrap.fill(line, width, subsequent_indent=" " * 13 if line[0] == " " else ""))
        say("Agree? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return False
    consent = Consent(TERMS, time.time())
    try:
        write_atomic(make_private(folder) / FILE_NAME, msgspec.json.encode(consent))
    except OSError as error:
        say(f"you will be asked again: cannot write to {folder}: {error.strerror}")
    return True


def terms(settings: Settings, folder: Path) -> Sequence[str]:
    """Return what will be used and seen, one line each."""
    cores = settings.threads or find_cores().usable
    memory = settings.memory_limit_bytes
    upload = settings.upload_limit_bytes_per_s
    quota = settings.daily_quota_bytes
    return (
        "Taking part uses this machine for the swarm until you pause, finish or stop:",
        f"  processor  {plural_cores(cores)}"
        + (f", {settings.compute_share} % of the time" if settings.compute_share < 100 else "")
        + (", and the graphics card if there is one" if settings.device == "auto" else ""),
        f"  memory     {f'{human_bytes(memory)} at most' if memory else 'most of what is free'}",
        f"  disk       {human_bytes(settings.boundary_disk_bytes)} at most for tensors on their "
        f"way, and {settings.checkpoint_keep} checkpoints of a stage, in {folder}",
        "  network    "
        + (f"{_rate(upload)} up" if upload else "as fast as the line allows")
        + (f", {human_bytes(quota)} a day" if quota else ", no daily limit"),
        "Members of the swarm see this machine's network address, its speed and memory, and when "
        "it is there. They do not see your name, your files or your other programs. What it "
        "computes is the model; it runs no program that a member sends.",
        "Limits: volunteer config set threads 2; see volunteer join --help for all of them.",
    )


def _rate(bytes_per_s: int) -> str:
    return human_rate(bytes_per_s).replace("/s", "B/s")


def _remembered(folder: Path) -> bool:
    try:
        kept = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Consent)
    except (OSError, msgspec.MsgspecError):
        return False
    return kept.terms >= TERMS
