"""Names of the devices that a volunteer computes on: one, or several as one volunteer."""

import re
from typing import Final

MOST_DEVICES: Final = 16
_ONE: Final = re.compile(r"auto|cpu|cuda|mps")
_NUMBERED: Final = re.compile(r"(cpu:|cuda:|)([0-9]{1,3})")


def devices_of(text: str) -> tuple[str, ...]:
    """Return the devices that a text names, in its order.

    `0,1` is `cuda:0,cuda:1`; `cpu:0,cpu:1` are two halves of the processor.

    Raises:
        ValueError: it names none, one of them twice, too many, or some of different kinds.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and _ONE.fullmatch(parts[0]):
        return (parts[0],)
    names = tuple(map(_numbered, parts))
    if len(names) > MOST_DEVICES:
        raise ValueError(f"{len(names)} devices are named; {MOST_DEVICES} at most")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"{twice[0]} is named twice; name each device once")
    if len({name.partition(":")[0] for name in names}) > 1:
        raise ValueError(f"{text!r} mixes processors and cards; run one volunteer for each kind")
    return ("cpu",) if names == ("cpu:0",) else names


def torch_name(device: str) -> str:
    """Return torch's name: parts of the processor have numbers, processors have not."""
    return "cpu" if device.startswith("cpu") else device


def _numbered(name: str) -> str:
    if not (found := _NUMBERED.fullmatch(name)):
        usable = (
            "use auto, cpu, mps (Apple's), cuda (AMD's, too), or cuda:0, cuda:1 ...; several: 0,1 "
            "or cpu:0,cpu:1"
        )
        raise ValueError(f"{name!r} is not a device; {usable}")
    return f"{found[1] or 'cuda:'}{int(found[2])}"
