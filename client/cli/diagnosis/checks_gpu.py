"""The checks of ``volunteer doctor`` for graphics cards: which there are, and whose each is.

NVIDIA's driver names the processes that compute on a card; those of a volunteer are its workers.
Cards have the driver's numbers, as in ``nvidia-smi``. Of AMD's and Apple's it is only told whether
they can be used.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from client.cli.diagnosis.checks import Check
from client.cli.reach.machine import Volunteer
from client.cli.terminal.output import human_bytes
from client.config import Settings

VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE_EACH = (
    "to use them all: volunteer config set device 0,1 for one volunteer with the stage on each; "
    "or one volunteer per card: volunteer service install --instance gpu1 --gpu 1 --swarm x.swarm"
)


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card, as the driver describes it."""

    number: int
    name: str
    free_bytes: int
    driver: str
    pids: tuple[int, ...]
    """Processes that compute on it."""


def check_gpu(
    settings: Settings,
    volunteers: list[Volunteer] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Check:
    """The graphics cards that can compute, and which volunteer each is used by.

    Args:
        settings: of this home.
        volunteers: of this machine; None: they are not asked.
        environ: variables that renumber the cards.
    """
    if settings.device.startswith("cpu"):
        return Check("gpu", "ok", f"not used: device is {settings.device}")
    found = list(_cards())
    if not found:
        if other := _other_card(settings.device):
            return Check("gpu", "ok", other)
        if settings.device == "mps":
            step = "volunteer config set device auto"
            return Check("gpu", "fail", "device is mps, but this is no Apple machine", step)
        if settings.device.startswith("cuda"):
            words = f"device is {settings.device}, but NVIDIA's driver finds no card"
            step = "install the driver, or: volunteer config set device cpu"
            return Check("gpu", "fail", words, step)
        return Check("gpu", "ok", "none found; the volunteer computes on the processor")
    users = _users(found, volunteers or [])
    words = "; ".join(_words(card, users[card.number]) for card in found)
    return _judged(settings, environ, found, users, words)


def _judged(
    settings: Settings,
    environ: Mapping[str, str],
    found: list[Card],
    users: dict[int, list[str]],
    words: str,
) -> Check:
    numbers = [int(d.partition(":")[2]) for d in settings.devices if ":" in d]
    visible = environ.get(VISIBLE)
    if visible is not None:
        words += f"; {VISIBLE}={visible} renumbers them: cuda:0 is the first of these"
    elif missing := [number for number in numbers if number >= len(found)]:
        absent = f", there is no cuda:{missing[0]}" if len(numbers) > 1 else ""
        words = f"device is {settings.device}, but the cards are: {words}{absent}"
        step = f"volunteer config set device cuda:{len(found) - 1}, or a lower number"
        return Check("gpu", "fail", words, step)
    if "+cpu" in _torch_version():
        step = "install a build of torch with CUDA, or: volunteer config set device cpu"
        return Check("gpu", "warn", f"{words}; but this build of torch cannot use them", step)
    shared = [card.number for card in found if len(users[card.number]) > 1]
    if shared:
        step = "give each a card of its own: volunteer service install --instance ... --gpu N"
        return Check("gpu", "warn", f"{words}; card {shared[0]} has several volunteers", step)
    if len(found) > 1 and not numbers and visible is None:
        return Check("gpu", "ok", f"{words}; this volunteer uses the first", ONE_EACH)
    return Check("gpu", "ok", words)


def _words(card: Card, users: list[str]) -> str:
    used = f", used by {' and '.join(users)}" if users else ""
    return (
        f"{card.number}: {card.name}, {human_bytes(card.free_bytes)} free, "
        f"driver {card.driver}{used}"
    )


def _users(cards: list[Card], volunteers: list[Volunteer]) -> dict[int, list[str]]:
    """Return the volunteers that use each card: by their processes, or by their setting."""
    whose = {pid: one for one in volunteers for pid in _processes(one.pid)}
    found: dict[int, list[str]] = {}
    for card in cards:
        using = [whose[pid] for pid in card.pids if pid in whose]
        using += [one for one in volunteers if f"cuda:{card.number}" in one.device.split(",")]
        found[card.number] = list(dict.fromkeys(map(_name, using)))
    return found


def _name(one: Volunteer) -> str:
    return one.service or (f"the volunteer in {one.home}" if one.home else f"process {one.pid}")


def _processes(pid: int | None) -> list[int]:
    import psutil

    if pid is None:
        return []
    with suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def _other_card(device: str) -> str:
    """Say which GPU that is not NVIDIA's may compute; empty: none."""
    if device != "mps" and "+rocm" in _torch_version():
        return "torch is built for AMD's GPUs, which it names cuda; rocm-smi shows them"
    if device in ("auto", "mps") and (sys.platform, platform.machine()) == ("darwin", "arm64"):
        return "Apple's, which is named mps"
    return ""


def _torch_version() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("torch")
    return ""


def _cards() -> Iterator[Card]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or a library of another version
        return
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for number in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(number)
            memory = pynvml.nvmlDeviceGetMemoryInfo(card)
            name = _text(pynvml.nvmlDeviceGetName(card))
            running: tuple[int, ...] = ()
            with suppress(pynvml.NVMLError):  # not told in some containers
                running = tuple(
                    one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
                )
            yield Card(number, name, int(memory.free), driver, running)
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
