"""How screens look, character by character, as kept in ``snapshots/``.

After a change that is meant: ``UPDATE_SNAPSHOTS=1 pytest tests/ui/test_ui_snapshots.py``, then read
the difference.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from client.control.updates import Update
from client.ui.source.news import Link
from tests.ui.examples import NOW, event, judged, people
from tests.ui.playing import LARGE, SMALL, Stage, play, recorded
from tests.ui.screenshots import SHOTS, TARGET, draw

KEPT = Path(__file__).parent / "snapshots"
MEDIUM = (120, 40)
DURING = next(
    number
    for number, update in enumerate(recorded(), 1)
    if any("training goes on from" in event.words for event in update.events)
)
"""Updates up to the one that tells of the kill."""

TRUST = [Update(time=NOW, snapshot=judged(), events=[event(1, "an event")])]
"""Of a run with audits, in which a member was expelled."""
PEOPLE = [people(purpose="Haiku in Basque")]
"""Of members with names and work."""
SCENES: dict[str, tuple[tuple[int, int], Sequence[Update], tuple[str, ...]]] = {
    "start": (SMALL, [], ()),
    "dashboard": (SMALL, recorded(), ("1",)),
    "dashboard-fault": (SMALL, recorded()[:DURING], ("1",)),
    "dashboard-large": (LARGE, recorded(), ("1",)),
    "swarm": (SMALL, recorded(), ("2",)),
    "peers": (SMALL, recorded(), ("3", "down")),
    "swarm-large": (MEDIUM, recorded(), ("2",)),
    "finish": (SMALL, recorded(), ("f",)),
    "trust": (SMALL, TRUST, ("3",)),
    "trust-large": (MEDIUM, TRUST, ("3",)),
    "trust-details": (SMALL, TRUST, ("3", "down", "down", "down", "enter")),
    "trust-dashboard": (SMALL, TRUST, ("1",)),
    "people-peers": (SMALL, PEOPLE, ("3",)),
    "people-large": (LARGE, PEOPLE, ("3",)),
    "people-swarm": (SMALL, PEOPLE, ("2",)),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_screen_looks_as_kept(name: str) -> None:
    size, updates, keys = SCENES[name]
    link = Link("live") if updates else Link("connecting", "no volunteer answers yet")
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


def test_the_screenshots_of_the_documentation_show_what_is_drawn_now(tmp_path: Path) -> None:
    """If not: ``python -m tests.ui.screenshots`` draws them anew."""
    draw(tmp_path)
    for name in SHOTS:
        drawn, kept = (
            re.findall(r"<text[^>]*>(.*?)</text>", (folder / f"{name}.svg").read_text("utf-8"))
            for folder in (tmp_path, TARGET)
        )
        assert drawn == kept, name
