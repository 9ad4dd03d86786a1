"""How screens look, character by character, as kept in ``snapshots/``.

After a change that is meant: ``UPDATE_SNAPSHOTS=1 pytest tests/ui/test_ui_snapshots.py``, then read
the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client.ui.source.mailbox import Link
from tests.ui.playing import LARGE, SMALL, Stage, play, recorded

KEPT = Path(__file__).parent / "snapshots"
MEDIUM = (120, 40)
END = len(recorded())
DURING = next(
    number
    for number, update in enumerate(recorded(), 1)
    if any("beginning anew" in event.words for event in update.events)
)
"""Updates up to the one that tells of the kill."""

SCENES: dict[str, tuple[tuple[int, int], int, tuple[str, ...], dict[str, bool]]] = {
    "start": (SMALL, 0, (), {}),
    "dashboard": (SMALL, END, ("1",), {}),
    "dashboard-fault": (SMALL, DURING, ("1",), {}),
    "dashboard-large": (LARGE, END, ("1",), {}),
    "dashboard-ascii": (SMALL, END, ("1",), {"ascii_only": True}),
    "swarm": (SMALL, END, ("2",), {}),
    "peers": (SMALL, END, ("3", "down"), {}),
    "matching": (MEDIUM, END, ("4",), {}),
    "recovery": (MEDIUM, END, ("5",), {}),
    "quit": (SMALL, END, ("q",), {}),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_screen_looks_as_kept(name: str) -> None:
    size, number, keys, options = SCENES[name]
    seen: list[str] = []

    async def scene(on: Stage) -> None:
        link = Link("live") if number else Link("connecting", "no volunteer answers yet")
        await on.feed(recorded()[:number], link)
        for key in keys:
            await on.press(key)
        seen.append(on.text())

    play(scene, size, **options)
    path = KEPT / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(seen[0], encoding="utf-8")
    assert seen[0] == path.read_text(encoding="utf-8")
