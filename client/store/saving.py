"""Saves what may be a minute old after a crash: counts, curves, accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

SAVE_EVERY_S = 60.0


async def save_every_minute(saves: Sequence[Callable[[], object]]) -> None:
    """Save each until cancelled, and once more then."""
    try:
        while True:
            await trio.sleep(SAVE_EVERY_S)
            for save in saves:
                save()
    finally:
        for save in saves:
            save()
