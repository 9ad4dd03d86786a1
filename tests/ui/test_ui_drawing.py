"""How it is drawn: how often, on which terminals, and whatever the words are."""

import msgspec
import pytest

from client.ui.app import VolunteerApp
from client.ui.source.news import Link
from tests.ui.examples import event, stage, update
from tests.ui.playing import LARGE, SMALL, Stage, on_stage, play, recorded


@on_stage()
async def test_many_updates_at_once_are_one_drawing(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = 0
    draw = VolunteerApp._draw

    def counted(app: VolunteerApp) -> None:
        nonlocal drawn
        drawn += 1
        draw(app)

    monkeypatch.setattr(VolunteerApp, "_draw", counted)
    for one in recorded():
        on.source.news.put(one)
    on.app.look()
    on.app.look()
    assert drawn == 1
    assert on.app.record.snapshot == msgspec.structs.replace(recorded()[-1].snapshot)


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_drawn_bit_by_bit_is_what_is_drawn_at_once(number: int) -> None:
    seen: list[str] = []

    async def slowly(on: Stage) -> None:
        await on.press(str(number))
        for one in recorded():
            await on.feed([one])
        seen.append(on.text())

    async def at_once(on: Stage) -> None:
        await on.feed(recorded())
        await on.press(str(number))
        seen.append(on.text())

    play(slowly)
    play(at_once)
    assert seen[0] == seen[1]


# --- terminals -------------------------------------------------------------------------------


@on_stage(LARGE, SMALL)
async def test_hostile_words_do_nothing_on_any_tab(on: Stage) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] [@click=app.exit]y[/] \u202egnp \n fake line"
    name = "12D3KooW" + evil
    hostile = update(
        1,
        event(1, evil, level="error"),
        event(2, evil, kind="PeerChanged", data={"peer": name, "state": "down"}),
        peer=name, swarm_name=evil, reason=evil, state="waiting", last_error=evil,
        addresses=[evil], stages=[stage(0), stage(1)],
    )  # fmt: skip
    await on.feed([hostile], Link("lost", evil))
    await on.feed([hostile])
    for key in "1234":
        await on.press(key)
        text = on.text()
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold red]" in text, "markup is shown, not obeyed"
        await on.press("enter", "escape")
    assert on.app.return_value is None


@on_stage()
async def test_what_takes_long_to_draw_is_drawn_less_often(on: Stage) -> None:
    await on.feed(recorded()[:9])
    on.app.draw_share = 1e-9
    await on.feed([recorded()[9]])
    drawn = on.text()
    await on.feed(recorded()[10:20])
    assert on.text() == drawn, "it rests"
    assert on.app.record.snapshot == recorded()[19].snapshot, "but it listens"
    await on.press("2")
    assert f"step {recorded()[19].snapshot.step} of" in on.text(), "keys are answered at once"
