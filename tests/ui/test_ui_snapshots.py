"""How screens look, character by character, as kept in ``snapshots/``.

After a change that is meant: ``UPDATE_SNAPSHOTS=1 pytest tests/ui/test_ui_snapshots.py``, then read
the difference.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from client.control.updates import Update
from client.ui.source.news import Link
from tests.ui.examples import NOW, event, judged, people
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

SCENES: dict[str, tuple[tuple[int, int], int, tuple[str, ...]]] = {
    "start": (SMALL, 0, ()),
    "dashboard": (SMALL, END, ("1",)),
    "dashboard-fault": (SMALL, DURING, ("1",)),
    "dashboard-large": (LARGE, END, ("1",)),
    "swarm": (SMALL, END, ("2",)),
    "peers": (SMALL, END, ("3", "down")),
    "swarm-large": (MEDIUM, END, ("2",)),
    "quit": (SMALL, END, ("q",)),
}


TRUST: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "trust": (SMALL, ("3",)),
    "trust-large": (MEDIUM, ("3",)),
    "trust-details": (SMALL, ("3", "down", "down", "down", "enter")),
    "trust-dashboard": (SMALL, ("1",)),
}
"""Of a run with audits, in which a member was expelled."""


@pytest.mark.parametrize("name", SCENES)
def test_the_screen_looks_as_kept(name: str) -> None:
    size, number, keys = SCENES[name]
    link = Link("live") if number else Link("connecting", "no volunteer answers yet")
    _compare(name, size, recorded()[:number], link, keys)


PEOPLE: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "people-peers": (SMALL, ("3",)),
    "people-large": (LARGE, ("3",)),
    "people-swarm": (SMALL, ("2",)),
}
"""Of members with names and work."""


@pytest.mark.parametrize("name", TRUST)
def test_trust_looks_as_kept(name: str) -> None:
    size, keys = TRUST[name]
    told = Update(time=NOW, snapshot=judged(), events=[event(1, "an event")])
    _compare(name, size, [told], Link("live"), keys)


@pytest.mark.parametrize("name", PEOPLE)
def test_people_look_as_kept(name: str) -> None:
    size, keys = PEOPLE[name]
    _compare(name, size, [people(purpose="Haiku in Basque")], Link("live"), keys)


def _compare(
    name: str,
    size: tuple[int, int],
    updates: Sequence[Update],
    link: Link,
    keys: Sequence[str],
) -> None:
    seen: list[str] = []

    async def scene(on: Stage) -> None:
        await on.feed(updates, link)
        for key in keys:
            await on.press(key)
        seen.append(on.text())

    play(scene, size)
    path = KEPT / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(seen[0], encoding="utf-8")
    assert seen[0] == path.read_text(encoding="utf-8")
