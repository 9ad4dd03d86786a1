"""The check of ``volunteer doctor`` for graphics cards: which there are, and what can use them.

Cards have the numbers of NVIDIA's driver, as in ``nvidia-smi``, which says whose each is. Of AMD's
and Apple's it only says whether they can be used.
"""

import os
import platform
import sys

from client.cli.diagnosis.checks import Check
from client.cli.software import package_version
from client.config import Settings
from client.views.words import size as human_bytes

VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE_EACH = (
    "to use them all: volunteer config set device 0,1 for one volunteer with the stage on each; "
    "or one per card: VOLUNTEER_HOME=~/gpu1 volunteer join --device cuda:1 --swarm x.swarm"
)


def check_gpu(settings: Settings) -> Check:
    """The graphics cards that can compute."""
    if settings.device.startswith("cpu"):
        return Check("gpu", "ok", f"not used: device is {settings.device}")
    found = _cards()
    if not found:
        return _without_cards(settings.device)
    words = "; ".join(f"{number}: {card}" for number, card in enumerate(found))
    numbers = [int(d.partition(":")[2]) for d in settings.devices if ":" in d]
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        words += f"; {VISIBLE}={visible} renumbers them: cuda:0 is the first of these"
    elif missing := [number for number in numbers if number >= len(found)]:
        absent = f", there is no cuda:{missing[0]}" if len(numbers) > 1 else ""
        words = f"device is {settings.device}, but the cards are: {words}{absent}"
        step = f"volunteer config set device cuda:{len(found) - 1}, or a lower number"
        return Check("gpu", "fail", words, step)
    if "+cpu" in (package_version("torch") or ""):
        step = "install a build of torch with CUDA, or: volunteer config set device cpu"
        return Check("gpu", "warn", f"{words}; but this build of torch cannot use them", step)
    if len(found) > 1 and not numbers and visible is None:
        return Check("gpu", "ok", f"{words}; this volunteer uses the first", ONE_EACH)
    return Check("gpu", "ok", words)


def _without_cards(device: str) -> Check:
    if other := _other_card(device):
        return Check("gpu", "ok", other)
    if device == "mps":
        step = "volunteer config set device auto"
        return Check("gpu", "fail", "device is mps, but this is no Apple machine", step)
    if device.startswith("cuda"):
        words = f"device is {device}, but NVIDIA's driver finds no card"
        step = "install the driver, or: volunteer config set device cpu"
        return Check("gpu", "fail", words, step)
    return Check("gpu", "ok", "none found; the volunteer computes on the processor")


def _other_card(device: str) -> str:
    """Say which GPU that is not NVIDIA's may compute; empty: none."""
    if device != "mps" and "+rocm" in (package_version("torch") or ""):
        return "torch is built for AMD's GPUs, which it names cuda; rocm-smi shows them"
    if device in ("auto", "mps") and (sys.platform, platform.machine()) == ("darwin", "arm64"):
        return "Apple's, which is named mps"
    return ""


def _cards() -> list[str]:
    """Return the names of NVIDIA's cards with their free memory and driver, by number."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or a library of another version
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [
            f"{_text(pynvml.nvmlDeviceGetName(card))}, "
            f"{human_bytes(pynvml.nvmlDeviceGetMemoryInfo(card).free)} free, driver {driver}"
            for card in found
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
