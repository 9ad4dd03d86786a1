"""Every tab and every key, against the recorded run."""

import pytest
from textual.events import Key
from textual.widgets import Input

from client.control.snapshot import InviteView, PauseView
from client.store.last_run import Ending
from client.ui.dialogs.invite import InviteDialog
from client.ui.source.news import Answer, Link
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views.span import plain
from tests.ui.examples import event, update
from tests.ui.playing import LARGE, SMALL, Stage, on_stage, play, recorded


@pytest.mark.parametrize("number", range(1, 5))
@on_stage()
async def test_every_tab_reads_well_without_data(on: Stage, number: int) -> None:
    await on.feed([], Link("connecting", "no volunteer answers yet"))
    await on.press(str(number), "enter")
    assert "CONNECTING no volunteer answers yet" in on.text()
    assert "None" not in on.text()


@on_stage((20, 8), (10, 3))
async def test_tiny_terminals_break_nothing(on: Stage) -> None:
    await on.feed(recorded())
    for key in "123456?":
        await on.press("question_mark" if key == "?" else key)


# --- keys that speak to the node -------------------------------------------------------------


@on_stage()
async def test_p_pauses_and_resumes(on: Stage) -> None:
    await on.feed(recorded()[:9])
    await on.press("p")
    paused = PauseView(reason="you paused it", since=1.0)
    await on.feed([update(99, peer=recorded()[0].snapshot.peer, state="paused", paused=paused)])
    assert "PAUSED you paused it; press p to resume" in on.text()
    assert "p resume" in on.text()
    await on.press("p")
    assert on.source.commands == [("pause", {"reason": "you paused it"}), ("resume", {})]


@on_stage()
async def test_a_limits_pause_does_not_promise_that_p_ends_it(on: Stage) -> None:
    held = PauseView(reason="on battery", since=1.0, by_owner=False)
    await on.feed([update(99, state="paused", paused=held)])
    assert "PAUSED on battery; it goes on by itself" in on.text()
    assert "p pause" in on.text()
    await on.press("p")
    assert on.source.commands == [("pause", {"reason": "you paused it"})]


def test_f_asks_before_it_finishes_and_the_view_ends_with_the_node() -> None:
    async def scene(on: Stage) -> None:
        await on.feed(recorded()[:30])
        await on.press("f")
        assert "drains its stages: finishes the step" in on.text()
        await on.press("escape")
        assert on.source.commands == []
        await on.press("f", "f")
        assert on.source.commands == [("finish", {})]
        await on.feed([], Link("ended", "the volunteer has left the swarm"))

    app = play(scene)
    assert app.return_value == 0
    assert app.farewell == "the volunteer has left the swarm"


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
        await on.feed(recorded()[:9])
        await on.pilot.press(key)

    app = play(scene)
    assert app.return_value == 0
    assert "volunteer attach" in app.farewell
    assert "volunteer finish" in app.farewell
    assert app._source.commands == []  # type: ignore[attr-defined]
    assert app._source.stopped  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["escape", "q", "n", "ctrl+c"])
@on_stage()
async def test_finishing_may_be_taken_back(on: Stage, key: str) -> None:
    await on.feed(recorded()[:30])
    await on.press("f")
    assert on.app.screen.is_modal
    await on.press(key)
    assert not on.app.screen.is_modal
    assert on.source.commands == []


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


# --- nobody answers ------------------------------------------------------------------------------

DIED = Ending(
    time=recorded()[-1].time + 30,
    words="this machine has no device 'cuda'",
    next_step="give --device cpu; start it again: volunteer join --swarm demo",
    exit_code=78,
)
ENDED = Link("ended", DIED.when, DIED.words, DIED.next_step)
LOST = Link("lost", "it has said nothing for 15 s")


@pytest.mark.parametrize("link", [ENDED, LOST, Link("connecting", "no volunteer answers yet")])
@on_stage()
async def test_keys_that_need_a_node_do_nothing_while_none_answers(on: Stage, link: Link) -> None:
    await on.feed(recorded()[:30], link)
    assert "i invite" not in on.text()
    assert "(p pause)  (f finish)  q close" in on.text()
    await on.press("p", "f", "i")
    assert not on.app.screen.is_modal
    assert on.source.commands == []
    notes = [note.message for note in on.app._notifications]
    assert notes == ["nothing was done: the volunteer does not answer"] * 3
    await on.feed(recorded()[30:31])
    assert "p pause  f finish  q close" in on.text()
    await on.press("p")
    assert [name for name, _ in on.source.commands] == ["pause"]


@on_stage()
async def test_all_panels_fit_below_the_reason_why_nobody_answers(on: Stage) -> None:
    await on.feed(recorded(), ENDED)
    await on.press("1")
    *_, last, _keys = on.text().splitlines()
    assert last.startswith("╰"), "the frame of the last panel is whole"


@pytest.mark.parametrize("size", [SMALL, LARGE])
@on_stage()
async def test_the_screen_of_a_dead_node_says_why_and_how_to_start_it(
    on: Stage, size: tuple[int, int]
) -> None:
    await on.feed(recorded()[:30], ENDED)
    text = " ".join(on.text().replace("│", " ").split())
    for said in ("ENDED at", "exit code 78", "no device 'cuda'", "give --device cpu",
                 "volunteer join --swarm demo", "below: the state at"):  # fmt: skip
        assert said in text, said
    for gone in ("TRAINING", "if you leave", "last error"):
        assert gone not in text, gone
    header = on.app.query_one("#header", Panel)
    assert "tokens/s" not in plain(header.lines)
    assert on.app.query_one("#machine", Panel).styles.text_opacity < 1
    await on.press("4")
    log = on.app.query_one("#log", Listing)
    assert log.styles.text_opacity == 1, "the log says why; it is to be read"
    await on.feed(recorded()[30:31])
    assert "as it was at" not in on.text()
    assert "if you leave" in on.text()
    assert on.app.query_one("#machine", Panel).styles.text_opacity == 1


@pytest.mark.parametrize(
    ("link", "changes", "said", "farewell"),
    [
        (ENDED, {}, "", "no device"),
        (LOST, {}, "", "it does not answer"),
        (Link("live"), {"seats": []}, "It leaves the swarm. Nothing changes", "it continues"),
        (Link("live"), {"state": "stopping"}, "It drains its stages, saves", "it drains"),
        (Link("live"), {"state": "paused"}, "f finish Esc stay", "it continues"),
        (Link("live"), {"state": "done"}, "others serve the model", "it continues"),
        (Link("live"), {}, "training goes on", "it continues"),
    ],
)
def test_the_dialog_and_the_farewell_say_what_is_true(
    link: Link, changes: dict[str, object], said: str, farewell: str
) -> None:
    async def scene(on: Stage) -> None:
        await on.feed([update(1, **changes)], link)
        await on.press("f")
        assert on.app.screen.is_modal == bool(said)
        text = " ".join(on.text().replace("│", " ").split())
        assert said in text
        assert ("f finish Esc" in text) == (bool(said) and changes.get("state") != "stopping")
        await on.press("escape")
        await on.pilot.press("q")

    assert farewell in play(scene).farewell


@on_stage()
async def test_a_node_that_ends_while_one_is_asked_is_told_nothing(on: Stage) -> None:
    await on.feed(recorded()[:30])
    await on.press("f")
    assert "It drains its stages" in on.text()
    await on.feed([], ENDED)
    assert "It drains its stages" not in on.text()
    assert "It has ended: this machine has no device" in on.text()
    await on.press("f", "enter")
    assert on.source.commands == []
    await on.press("escape")
    assert not on.app.screen.is_modal


# --- inviting ------------------------------------------------------------------------------------

MEMBER = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
INVITE = InviteView(
    swarm="ab" * 32,
    swarm_name="my swarm",
    invite=f"volunteer:{'ab' * 32}?peer={MEMBER}&peer={MEMBER}",
    notes=["it has the swarm's secret: whoever has it may join"],
)


@on_stage(LARGE)
async def test_i_shows_a_fresh_invite_and_c_copies_it(on: Stage) -> None:
    await on.feed(recorded()[:30])
    await on.press("i")
    assert on.source.commands == [("invite", {})]
    on.source.news.put(Answer("invite", True, "", INVITE))
    await on.feed([])
    assert isinstance(on.app.screen, InviteDialog)
    text = on.text()
    assert "whoever has it may join" in text
    assert INVITE.invite[:70] in text
    assert INVITE.invite[-10:] in text
    await on.press("c")
    assert on.app.clipboard == INVITE.invite
    await on.press("escape")
    assert not on.app.screen.is_modal


@on_stage()
async def test_a_terminal_that_is_too_small_for_the_tabs_says_so(on: Stage) -> None:
    await on.pilot.resize_terminal(40, 10)
    await on.feed(recorded()[30:31])
    said = " ".join(on.text().split())
    assert "This terminal has 40 columns and 10 lines. The tabs need 60 and 18" in said
    assert "This machine" not in said
    await on.pilot.resize_terminal(60, 18)
    await on.feed(recorded()[31:32])
    assert "This terminal" not in on.text()
    assert "This machine" in on.text()


# --- keys that change the view ---------------------------------------------------------------


@on_stage()
async def test_a_filter_that_is_opened_before_a_tab_is_drawn_keeps_the_keys(on: Stage) -> None:
    """Keys come faster than a slow machine draws."""
    await on.feed(recorded())
    on.app.action_tab(4)
    on.app.action_filter()
    await on.press(*"step 2")
    assert on.app.query_one("#filter", Input).value == "step 2"


@on_stage()
async def test_filtering_peers(on: Stage) -> None:
    await on.feed(recorded()[:30])
    await on.press("3")
    everybody = len(on.app.query_one("#peer-table", Listing).rows)
    await on.press("slash", *"connected")
    assert " shown" in on.text()
    await on.press("enter")
    assert not on.app.query_one("#filter", Input).display
    assert len(on.app.query_one("#peer-table", Listing).rows) == everybody - 1
    await on.press("escape")
    assert len(on.app.query_one("#peer-table", Listing).rows) == everybody


@on_stage()
async def test_logs_by_level(on: Stage) -> None:
    await on.feed(recorded())
    await on.press("4")
    assert "info and above, newest last" in on.text()
    assert "step 89: loss" in on.text()
    await on.press("l")
    assert "warning and above" in on.text()
    assert "step 89" not in on.text()
    await on.press("l", "l")
    assert "debug and above" in on.text()


@on_stage()
async def test_the_log_follows_its_end_until_one_scrolls_away(on: Stage) -> None:
    await on.feed([update(1, *(event(n, f"event number {n}") for n in range(1, 60)))])
    await on.press("4")
    assert "event number 59" in on.text()
    await on.feed([update(2, event(60, "event number 60"))])
    assert "event number 60" in on.text()
    await on.press("home")
    assert "event number 1 " in on.text()
    await on.feed([update(3, event(61, "event number 61"))])
    assert "event number 61" not in on.text()
    await on.press("pagedown", "end")
    assert "event number 61" in on.text()
