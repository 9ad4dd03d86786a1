"""Keys that end the view or the node, and keys that come faster than they are taken."""

import pytest
from textual.events import Key
from textual.widgets import Input

from client.control.snapshot import SeatView
from client.ui.leaving import Cost, farewell, finishing
from client.ui.source.news import UNKNOWN, Answer, Link
from tests.ui.examples import recorded_from, update
from tests.ui.playing import Stage, on_stage, play, recorded

LIVE = Link("live")
ENDED = Link("ended", "at 09:30", "this machine has no device 'cuda'", "give --device cpu")
GONE = "the volunteer has left the swarm"


def test_f_asks_before_it_finishes_and_the_view_ends_with_the_node() -> None:
    async def scene(on: Stage) -> None:
        await on.feed(recorded()[:30])
        for key in ("escape", "q", "n", "ctrl+c"):
            await on.press("f")
            assert on.app.screen.is_modal
            await on.press(key)
            assert not on.app.screen.is_modal
        assert on.source.commands == []
        await on.press("f", "f")
        assert on.source.commands == [("finish", {})]
        await on.feed([], Link("ended", GONE))

    app = play(scene)
    assert (app.return_value, app.farewell) == (0, GONE)


@on_stage()
async def test_a_refused_finish_does_not_close_the_view(on: Stage) -> None:
    await on.feed(recorded()[:9])
    await on.press("f", "f")
    on.source.news.put(Answer("finish", False, "only its owner may"))
    await on.feed([], Link("ended", "gone"))
    assert not on.app.leaving
    assert on.app.return_value is None


@pytest.mark.parametrize("key", ["q", "d", "ctrl+q", "ctrl+c"])
def test_closing_the_view_says_nothing_to_the_node(key: str) -> None:
    async def scene(on: Stage) -> None:
        await on.feed([update(1)])
        await on.pilot.press(key)

    app = play(scene)
    assert app.return_value == 0
    assert app.farewell == farewell(app.record, LIVE, leaving=False)
    assert app._source.commands == []  # type: ignore[attr-defined]
    assert app._source.stopped  # type: ignore[attr-defined]


@on_stage()
async def test_keys_that_come_before_a_dialog_has_closed_break_nothing(on: Stage) -> None:
    await on.feed(recorded()[:30])
    await on.press("f")
    for key in ("escape", "escape", "q", "f", "f"):
        on.app.screen.post_message(Key(key, None))
    await on.press("1")
    assert not on.app.screen.is_modal
    assert "Stages" in on.text()
    await on.press("f")
    dialog = on.app.screen
    dialog.action_close()
    dialog.action_close()
    dialog.answer(True)
    await on.press("1")
    assert on.source.commands == []


@on_stage()
async def test_a_filter_that_is_opened_before_a_tab_is_drawn_keeps_the_keys(on: Stage) -> None:
    """Keys come faster than a slow machine draws."""
    await on.feed(recorded())
    on.app.action_tab(4)
    on.app.action_filter()
    await on.press(*"step 2")
    assert on.app.query_one("#filter", Input).value == "step 2"


GOES_ON = "it continues; volunteer attach shows it again, volunteer finish ends it"
LEAVES = "it drains its stages, saves and leaves, in the background"
DRAINS = "It drains its stages: finishes the step, saves, leaves; you can watch it. Stage"
ALONE = [SeatView(stage=stage, version=5, state="serving", staying=0) for stage in (0, 1)]


@pytest.mark.parametrize(
    ("link", "changes", "cost", "after"),
    [
        (ENDED, {}, "", f"it has ended: {ENDED.why}; {ENDED.next_step}"),
        (Link("lost", "x"), {}, "", f"it does not answer; {UNKNOWN}"),
        (LIVE, {"state": "stopping"}, "", LEAVES),
        (
            LIVE,
            {"seats": []},
            Cost("It leaves the swarm. Nothing changes: you serve no stage", "plain"),
            GOES_ON,
        ),
        (
            LIVE,
            {"state": "done"},
            Cost(f"{DRAINS} 0 keeps 1 volunteer: others serve the model", "plain"),
            GOES_ON,
        ),
        (LIVE, {}, Cost(f"{DRAINS} 0 keeps 1 volunteer: training goes on", "plain"), GOES_ON),
        (
            LIVE,
            {"seats": [SeatView(stage=s, version=5, state="serving", staying=s) for s in (1, 2)]},
            Cost(f"{DRAINS} 1 keeps 1, stage 2 keeps 2 volunteers: training goes on", "plain"),
            GOES_ON,
        ),
        (
            LIVE,
            {"seats": ALONE},
            Cost(f"{DRAINS}s 0 and 1 would have nobody: the swarm would wait", "warn"),
            GOES_ON,
        ),
        (
            LIVE,
            {"seats": ALONE[1:], "state": "done"},
            Cost(f"{DRAINS} 1 would have nobody: its last version stays on this disk", "warn"),
            GOES_ON,
        ),
    ],
)
def test_what_finishing_costs_and_what_is_said_after_the_view(
    link: Link, changes: dict[str, object], cost: Cost | str, after: str
) -> None:
    record = recorded_from(update(1, **changes))
    impossible = Cost(after[0].upper() + after[1:], "plain", possible=False)
    assert finishing(record, link) == (cost or impossible)
    assert farewell(record, link, leaving=False) == after
    assert farewell(record, LIVE, leaving=True) == LEAVES
