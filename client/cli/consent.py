"""Asks a person, once for each swarm, to agree to its use of this machine, and saves the answer.

The question describes the swarm and its costs. A run without a terminal (headless, services,
scripts) counts as agreed by the person who set it up; nothing is saved for it.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from client.cli.terminal.ask import says_yes
from client.cli.terminal.output import say, wrapped
from client.cli.terminal.swarm_text import memory_words, summary
from client.config import Settings
from client.limits.cores import find_cores
from client.quantities import plural
from client.store.paths import Entry, make_private
from client.store.persisted import Persisted
from client.train.transfer.state_size import transit_disk_bytes
from client.views.words import per_s as human_line
from client.views.words import size as human_bytes
from model_zoo.specs.codec import CODECS
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest

FILE_NAME = Entry.CONSENT
TERMS = 1
"""Rises when a volunteer gives more than owners agreed to before; then they are asked again."""


MAX_SWARMS = 1000
"""Agreements remembered; beyond it, the oldest are asked again."""


class Consent(Struct, frozen=True):
    """The agreements of this home's owner."""

    terms: int
    swarms: list[str] = []
    """Ids of the agreed swarms, the newest last."""


def is_agreed(folder: Path, swarm: SwarmId) -> bool:
    """Whether the owner has agreed to this swarm before.

    Args:
        folder: the data folder, where the answer is kept.
    """
    return swarm in _remembered(folder)


def agrees(folder: Path, settings: Settings, swarm: SwarmFile) -> bool:
    """Ask the owner whether this machine may be used for a swarm; an agreement is remembered.

    Args:
        folder: the data folder, which keeps the agreement.
        settings: the owner's settings, which bound the use.
        swarm: the swarm.
    """
    width = min(shutil.get_terminal_size().columns, 100)
    for line in (*summary(swarm.manifest, swarm.swarm), *terms(settings, folder, swarm)):
        say(wrapped(line, width))
    if not says_yes("Agree?"):
        return False
    remember(folder, swarm.swarm)
    return True


def remember(folder: Path, swarm: SwarmId) -> None:
    """Save the owner's agreement to a swarm."""
    swarms = [known for known in _remembered(folder) if known != swarm]
    consent = Consent(TERMS, [*swarms, swarm][-MAX_SWARMS:])
    try:
        Persisted(make_private(folder) / FILE_NAME, Consent).save(consent)
    except OSError as error:
        say(f"cannot save your answer in {folder}, so you will be asked again: {error.strerror}")


def traffic_bytes(manifest: Manifest) -> float:
    """Return the traffic in the run, bytes, of a volunteer that holds the busiest stage alone,
    including its averaging with others."""
    codec = CODECS[manifest.averaging_codec].bytes_per_number
    return manifest.steps * max(
        manifest.microbatches_per_step * (stage.uplink_bytes + stage.downlink_bytes)
        + 4 * codec * stage.parameters  # sums are gathered and spread, both ways
        for stage in manifest.stages
    )


def terms(settings: Settings, folder: Path, swarm: SwarmFile) -> Iterator[str]:
    """Yield what ``swarm`` would use under ``settings`` and see of its volunteer, line by line."""
    manifest = swarm.manifest
    checkpoint = max(s.parameters for s in manifest.stages) * manifest.state.bytes_per_parameter
    kept = human_bytes(2 * settings.checkpoint_keep * checkpoint)  # our own, and another's
    text = human_bytes(min(manifest.data.kept_bytes, settings.data_cache_bytes))
    cores = settings.threads or find_cores().usable
    share = f", {settings.compute_share} % of the time" if settings.compute_share < 100 else ""
    taken = memory_words(stage.memory_bytes for stage in manifest.stages)
    memory, seats = settings.memory_limit_bytes, min(settings.seats or 2, manifest.stage_count)
    upload = settings.upload_limit_bytes_per_s
    quota = settings.daily_quota_bytes
    limits = (
        f"at most {human_line(upload)} up" if upload else "",
        f"{human_bytes(quota)} a day" if quota else "",
    )
    yield "It uses, until you pause, finish or stop (for limits: volunteer join --help):"
    yield f"  processor  {plural(cores, 'core')}{share}{_cards(settings.devices)}"
    yield (
        f"  memory     {taken}, {seats} at most; "
        f"{f'at most {human_bytes(memory)}' if memory else 'no limit'}"
    )
    yield (
        f"  disk       {kept} a stage, {text} of text, "
        f"{human_bytes(transit_disk_bytes(manifest))} at most in transit, in {folder}"
    )
    yield (
        f"  network    about {human_bytes(traffic_bytes(manifest))} in all if you hold a stage "
        f"alone; {', '.join(filter(None, limits)) or 'no limit'}"
    )
    called = f', and the name "{settings.nickname}"' if settings.nickname else ""
    yield (
        f"Members see your network address{called}, speed, memory, work and hours; not your files, "
        "your other programs or who you are. No program of theirs runs here."
    )


def _cards(devices: tuple[str, ...]) -> str:
    """Say which graphics cards are used beside the processor."""
    if devices == ("auto",):
        return ", and the graphics card if there is one"
    cards = [device for device in devices if not device.startswith("cpu")]
    noun = "card" if len(cards) == 1 else "cards"
    return f", and the graphics {noun} {', '.join(cards)}" if cards else ""


def _remembered(folder: Path) -> list[str]:
    kept = Persisted(folder / FILE_NAME, Consent).peek()
    return kept.swarms if kept is not None and kept.terms >= TERMS else []
