"""What this machine let versions of a swarm's model write: one small file per swarm, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from client.store.atomic import write_atomic

MOST_VERSIONS: Final = 16
"""Of more, every other one of the older half goes: the first and the newest stay."""


class KeptSample(Struct, frozen=True):
    """What a version wrote to a prompt."""

    version: int
    prompt: str
    text: str
    time: float
    """Unix seconds."""


_samples = msgspec.json.Decoder(list[KeptSample])


def load_samples(path: Path) -> list[KeptSample]:
    """Return the samples, oldest version first; none if there are none that can be read."""
    try:
        return _samples.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return []


def add_samples(path: Path, samples: Sequence[KeptSample]) -> list[KeptSample]:
    """Add a version's samples, and return all that are kept; raises ``OSError``."""
    again = {one.version for one in samples}
    kept = [one for one in load_samples(path) if one.version not in again]
    kept = thinned(sorted([*kept, *samples], key=lambda one: one.version))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(kept))
    return kept


def thinned(samples: list[KeptSample]) -> list[KeptSample]:
    """Return the samples of at most so many versions."""
    versions = sorted({one.version for one in samples})
    if len(versions) <= MOST_VERSIONS:
        return samples
    gone = set(versions[1 : MOST_VERSIONS // 2 : 2])
    return thinned([one for one in samples if one.version not in gone])
