"""How screens look, character by character, as in ``snapshots/``: what changes with each step of a
scene, the tones of its last screen, and what the node was told. Rows that are alike are shown once;
rows without a tone are left out of the tones.

After a change that is meant: ``UPDATE_SNAPSHOTS=1 pytest tests/ui/test_ui_snapshots.py``, then read
the difference.
"""

import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import EllipsisType

import pytest
from msgspec.structs import replace

from client.control.snapshot import (
    AmendmentView,
    HeldOutView,
    InviteView,
    LimitsView,
    PauseView,
    SeatView,
)
from client.control.updates import Curve, StepPoint, Update
from client.ui.source.news import Answer, Link
from tests.ui import examples
from tests.ui.examples import (
    ANNA,
    BORIS,
    CARLA,
    ME,
    NOW,
    evaluated,
    event,
    judged,
    people,
    replica,
    stage,
    stage_match,
    step,
    update,
)
from tests.ui.playing import LARGE, SMALL, Stage, play, recorded, screen_tones
from tests.ui.screenshots import SHOTS, TARGET, draw

KEPT = Path(__file__).parent / "snapshots"
MEDIUM = (120, 36)
DURING = next(
    number
    for number, update in enumerate(recorded(), 1)
    if any("training goes on from" in event.words for event in update.events)
)
"""Updates up to the one that tells of the kill."""

Click = tuple[str, int, int]
"""A click on a widget, that many cells from its corner."""
Step = Sequence[Update] | Link | Answer | Curve | str | tuple[int, int] | Click
"""Updates, other news, keys (those behind an apostrophe are typed), a size of the terminal, or a
click."""
Scene = Sequence[Step | EllipsisType]
"""What comes before ``...`` is shown by another scene."""
RUN, EARLY = recorded(), recorded()[:30]
TRUST = [Update(time=NOW, snapshot=judged(), events=[event(1, "an event")])]
"""Of a run with audits, in which a member was expelled."""
PEOPLE = [people(purpose="Haiku in Basque")]
"""Of members with names and work."""
CONNECTING = Link("connecting", "no volunteer answers yet")
LOST = Link("lost", "the connection broke; trying again (2)")
ENDED = Link(
    "ended",
    "at 2026-11-21 17:18 (exit code 78)",
    "this machine has no device 'cuda'",
    "give --device cpu; start it again: volunteer join --swarm demo",
)
LEVELS = ("debug", "info", "info", "warning", "info", "error")
LOG = [update(1, *(event(n, f"event {n}", level=LEVELS[n % 6]) for n in range(1, 60)))]
EVENTS = [
    event(1, "an error of the pipeline", topic="pipeline", level="warning"),
    event(2, "a backup", topic="pipeline"),
    event(3, f"{ANNA[-6:]} is down", "RecoveryEvent", members=(ANNA,), data={"phase": "detected"}),
    event(4, "training goes on", "RecoveryEvent", topic="pipeline", data={"phase": "recovered"}),
    event(5, "held", topic="matching", data={"decision": "hold"}),
    event(6, "proposed", topic="matching", data={"decision": "proposal"}),
    event(7, "a stage has nobody", topic="matching", level="warning"),
    event(8, "a detail", level="debug"),
]
"""Not all of them are news."""
CROWD = [
    update(
        1,
        stages=[
            stage(n, *(replica(f"12D3KooW{n:02}{m:04}", rate=n) for m in range(4 * n)))
            for n in range(12)
        ],
        matches=examples.matching(stage_match(1, redundancy=5, shared_level=0.5), stage_match(9)),
    )
]
"""More stages and holders than there is room for."""
MATCHED: dict[str, object] = {
    "names": {ANNA: "Anna's PC"},
    "stages": [
        stage(0, replica(ME), replica(ANNA)),
        stage(1, replica(BORIS)),
        stage(2, replica(CARLA, "fetching")),
    ],
    "matches": examples.matching(
        stage_match(1, obstacle="its cutoff is above us", redundancy=2), stage_match(0)
    ),
}
COMING: dict[str, object] = {
    "seats": [
        SeatView(seat=1, stage=1, version=0, state="fetching", waits_for="its numbers"),
        SeatView(stage=0, version=5, state="serving"),
        SeatView(stage=2, version=5, state="serving", waits_for="draining stage 2", for_s=9.0),
    ]
}
"""Seats on the way in and out."""


def paused(**changes: object) -> list[Update]:
    """Return an update of a volunteer that is paused, and holds nothing any more."""
    pause = PauseView(**{"reason": "you paused it", "since": NOW, **changes})  # type: ignore[arg-type]
    return [update(99, state="paused", reason=pause.reason, paused=pause, seats=[])]


INVITE = InviteView(
    swarm="ab" * 32,
    swarm_name="my swarm",
    invite=f"volunteer:{'ab' * 32}?" + "&".join(["peer=/ip4/203.0.113.7/tcp/4001/p2p/" + ANNA] * 2),
    notes=["it has the swarm's secret: whoever has it may join"],
)
HELD_OUT = HeldOutView(
    version=4, loss=3.5, bits_per_byte=5.05, tokens=8192, vouchers=2, claims=3, time=NOW
)
SCENES: dict[str, tuple[tuple[int, int], Scene]] = {
    "start": (SMALL, [CONNECTING, "2", "3 enter", "4 enter"]),
    "dashboard": (SMALL, [RUN, LOST, Link("live"), ("#tabs", 25, 0), ("#keys", 2, 0)]),
    "dashboard-fault": (SMALL, [RUN[:DURING]]),
    "dashboard-large": (LARGE, [RUN]),
    "swarm-light": (SMALL, [RUN, ..., "2"]),
    "swarm-large": (MEDIUM, [RUN, "2"]),
    "peers": (SMALL, [RUN, ..., "3", "down enter"]),
    "trust": (SMALL, [TRUST, "3", "down down down enter"]),
    "trust-large": (MEDIUM, [TRUST, ..., "1", "3"]),
    "people": (
        SMALL,
        [PEOPLE, ..., "3", ("#peer-table", 9, 3), ("#peer-table", 9, 3), "escape 2"],
    ),
    "people-large": (LARGE, [PEOPLE, ..., "3"]),
    "matched": (
        MEDIUM,
        [[update(1, *EVENTS, **MATCHED)], "2", [update(2, **{**MATCHED, **COMING})]],
    ),
    "crowd": (SMALL, [CROWD, "2", "end", "pageup", "down", "home", ("#stage-table", 9, 5)]),
    "log": (
        (80, 20),
        [LOG, ..., "4", [update(2, event(60, "event 60"))], "home j",
         [update(3, event(61, "event 61"))], "pagedown", "end k enter", "escape l", "l",
         "slash 'event space '5", "enter", "slash 'x", "escape l", "end", (80, 18)],
    ),
    "filter": (
        SMALL,
        [EARLY, ..., "slash", "3 slash 'connected", "enter", "end enter", "q escape"],
    ),
    "paused": (SMALL, [paused(), "2", paused(reason="on battery", by_owner=False), "p",
                       paused(until=NOW + 3600), "p", "1"]),
    "finish": (SMALL, [EARLY, ..., "f", "escape", "f", ENDED, "f enter escape"]),
    "stopping": (SMALL, [[update(1, state="stopping", seats=[])], "f", "escape 2"]),
    "dead": (SMALL, [EARLY, ..., ENDED, "p f i", "4"]),
    "dead-large": (LARGE, [RUN, ..., ENDED]),
    "lost": (SMALL, [EARLY, ..., "4", LOST, "p", [RUN[30]], "1 p"]),
    "invite": (
        SMALL,
        [EARLY, ..., "i", Answer("invite", True, "", INVITE), "c", "i question_mark"],
    ),
    "sizes": (SMALL, [EARLY, (40, 10), (60, 18), (59, 36), (110, 36), (109, 36)]),
    "tiny": ((20, 8), [EARLY, "2", "3", "4", "question_mark", (10, 3), "escape 3", "2", "1"]),
    "held-out": (
        MEDIUM,
        [Curve([], [StepPoint(0, NOW, 5.5), StepPoint(4, NOW, 9.9)]),
         [update(9, *(step(n, n, 9 / n) for n in range(1, 30)), evaluated(40, 4, 3.5),
                 held_out=HELD_OUT)],
         [update(10, held_out=replace(HELD_OUT, vouchers=1, claims=1))], "2",
         [update(11, held_out=replace(HELD_OUT, vouchers=0, claims=0))], "1"],
    ),
    "troubled": (
        SMALL,
        [[update(1, event(1, "341 steps"), last_error="the disk is full", last_error_at=NOW - 199,
                 state="waiting", reason="waiting for 1 more volunteer",
                 given_up=event(1, "341 steps made here without 4AphPb are given up"),
                 limits=LimitsView(threads=2, compute_share=50, memory_bytes=10**9),
                 seats=[SeatView(stage=1, version=5, state="serving", staying=0),
                        SeatView(stage=0, version=5, state="fetching", seat=1, staying=0)],
                 amendments=[AmendmentView(number=n, words=f"{n}00 steps", steps=n, from_step=n)
                             for n in (1, 2)])], "2", "f", "escape 1",
         [update(9, eta_s=7800.0, last_error="gone", tokens_per_s=0.0)], [update(9, eta_s=7800.0)]],
    ),
}  # fmt: skip


def rows(lines: Sequence[str], shown: Sequence[bool]) -> list[str]:
    """Return the rows that are shown, numbered; of neighbours that are alike, the first and how
    far they go."""
    found: list[str] = []
    for (text, show), same in groupby(enumerate(lines, 1), lambda row: (row[1], shown[row[0] - 1])):
        first, *others = (place for place, _ in same)
        if show:
            last = f"-{others[-1]}" if others else ""
            found.append(f"{first:2}{last} {text}")
    return found


@pytest.mark.parametrize("name", SCENES)
def test_the_screen_looks_as_kept(name: str) -> None:
    size, steps = SCENES[name]
    seen: list[str] = []

    async def scene(on: Stage) -> None:
        before: list[str] = []
        for one in steps:
            if one is ...:
                seen.clear()
                continue
            said, lines = await on.take(one), on.text().splitlines()
            news = isinstance(one, Link | Answer | Curve) or isinstance(one[0], Update)
            seen.append(f"═══ {'news' if news else one}")
            seen.extend(said)
            was = before if len(before) == len(lines) else [""] * len(lines)
            seen.extend(rows(lines, [new != old for old, new in zip(was, lines, strict=True)]))
            before = lines
        tones = screen_tones(on.app).splitlines()
        seen.extend(["═══ tones", *rows(tones, [bool(re.search(r"[^+ ]", row)) for row in tones])])
        seen.append(f"told: {on.source.commands}")
        if on.app.clipboard:
            seen.append(f"clipboard: {on.app.clipboard}")

    play(scene, size, light=name.endswith("-light"))
    path, text = KEPT / f"{name}.txt", "\n".join(seen) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_screenshots_of_the_documentation_show_what_is_drawn_now(tmp_path: Path) -> None:
    """If not: ``python -m tests.ui.screenshots`` draws them anew."""
    draw(tmp_path)
    for name in SHOTS:
        drawn, kept = (
            re.findall(r"<text[^>]*>(.*?)</text>", (folder / f"{name}.svg").read_text("utf-8"))
            for folder in (tmp_path, TARGET)
        )
        assert drawn == kept, name
