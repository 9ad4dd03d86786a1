"""A live node's socket, with a node that a thread plays."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from client.control.snapshot import InviteView, PauseView
from client.control.updates import Curve, Update
from client.store.last_run import LastRun
from client.ui.source import live as live_source
from client.ui.source.live import AGAIN, LEFT, NOBODY, NOT_DONE, SAID, UNHEARD, LiveSource
from client.ui.source.news import Answer, Link, News
from tests.ui.examples import event, snapshot, update
from tests.ui.played_node import HANGS_UP, HELLO, MODERN, Node

PATIENCE_S = 20.0
Told = TypeVar("Told", bound=News)


def until(found: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_source, "EVERY_S", 0.01)
    monkeypatch.setattr(live_source, "PATIENCE_S", (0.02,))


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket's path, short enough for every system."""
    return tmp_path_factory.mktemp("s") / "n.sock"


@contextlib.contextmanager
def attached(
    path: Path,
    how_it_ended: Callable[[int], LastRun | None] = lambda pid: None,
) -> Iterator[LiveSource]:
    """A live source that runs."""
    source = LiveSource(path, how_it_ended)
    source.start()
    try:
        yield source
    finally:
        source.stop()


@contextlib.contextmanager
def live(path: Path, **more: object) -> Iterator[tuple[Node, LiveSource]]:
    """A node that answers ``more`` than usual, and a source that is linked with it."""
    node = Node(path, {**MODERN, **more})
    with attached(path) as source:
        taken(source, Link, "live")
        yield node, source
    node.close()


def taken(source: LiveSource, kind: type[Told], state: str = "") -> Told:
    """Wait for the next news of a kind, or the next link of a state."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        news = source.news.get(timeout=PATIENCE_S)
        if isinstance(news, kind) and (not state or getattr(news, "state", "") == state):
            return news
    raise TimeoutError


def updated(source: LiveSource) -> Update:
    """Wait for the next update with an event."""
    while not (found := taken(source, Update)).events:
        pass
    return found


def test_the_curve_comes_first_and_then_updates(path: Path) -> None:
    node = Node(path, MODERN)
    with attached(path) as source:
        curve = taken(source, Curve)
        assert [point.step for point in curve.points] == [1]
        taken(source, Link, "live")
        node.update(update(1, event(1), step=4))
        assert updated(source).snapshot.step == 4
        until(lambda: node.asked[-1] == ("update", {"since": 1}))
    node.close()


def test_a_node_is_read_no_further_while_nobody_takes_its_news(path: Path) -> None:
    with live(path) as (node, source):
        until(source.news.full)
        asked = len(node.asked)
        time.sleep(0.2)
        assert len(node.asked) <= asked + 1
        node.update(update(1, event(41)))
        assert updated(source).events[0].seq == 41


def test_commands_are_sent_and_answered_in_words(path: Path) -> None:
    with live(path) as (node, source):
        source.command("pause", reason="you paused it")
        found = taken(source, Answer)
        assert (found.method, found.ok) == ("pause", True)
        source.command("resume")
        found = taken(source, Answer)
        assert found.words == "no resume"
        assert ("pause", {"reason": "you paused it"}) in node.asked


def test_who_resumes_is_told_what_still_holds_it(path: Path) -> None:
    held = PauseView(reason="on battery", by_owner=False)
    with live(path, resume=True, status=snapshot(paused=held)) as (_, source):
        source.command("resume")
        assert taken(source, Answer) == Answer("resume", True, "still paused: on battery")


def test_a_broken_connection_is_said_and_made_anew_from_where_it_was(path: Path) -> None:
    with live(path) as (node, source):
        node.update(update(1, event(41)))
        updated(source)
        node.drop()
        assert taken(source, Link, "lost") == Link("lost", "the connection broke; trying again (1)")
        taken(source, Link, "live")
        until(lambda: node.asked[-1] == ("update", {"since": 41}))


def test_a_node_that_was_started_again_is_heard_from_its_beginning(path: Path) -> None:
    """Its events are numbered from the start; with the old number we would miss the first ones."""
    with live(path) as (node, source):
        node.update(update(1, event(41)))
        assert updated(source).events[-1].seq == 41
        node.methods["status"] = msgspec.structs.replace(HELLO, pid=8)
        node.asked.clear()
        node.drop()
        until(lambda: any(method == "update" for method, _ in node.asked))
        assert next(params for method, params in node.asked if method == "update") == {"since": 0}


def test_nonsense_from_the_socket_only_costs_the_connection(path: Path) -> None:
    update = b'{"method":"update","params":{"time":"x"}}\n'
    with live(path) as (node, source):
        for nonsense in (b"nonsense\n", b"[]\n", b"\xff\n", update):
            node.send(nonsense)
            assert taken(source, Link).state == "connecting"
            taken(source, Link, "live")


@pytest.mark.parametrize("told", [True, False])
def test_a_node_that_leaves_is_gone_for_good(path: Path, told: bool) -> None:
    with live(path) as (node, source):
        if told:
            source.command("finish")
            assert taken(source, Answer) == Answer("finish", True, SAID["finish"])
        else:
            node.update(update(1, event(1), state="stopping"))
            updated(source)
        node.close()
        assert taken(source, Link, "ended") == Link("ended", LEFT, LEFT, AGAIN)


def test_nobody_there_is_said_until_somebody_is(path: Path) -> None:
    with attached(path) as source:
        tries = [taken(source, Link) for _ in range(4)]
        states = ["connecting", "connecting", "lost", "lost"]
        assert tries == [
            Link(state, f"{NOBODY}; trying again ({number})")  # type: ignore[arg-type]
            for number, state in enumerate(states, 1)
        ]
        node = Node(path, MODERN)
        taken(source, Link, "live")
    node.close()


KILLED = LastRun(
    pid=1, began=4.0, ended=5.0, reason="ended without a word", next_step="x", exit_code=None
)


def test_what_is_asked_of_a_dead_node_is_refused_and_not_kept_for_the_next(path: Path) -> None:
    with live(path) as (node, source):
        node.close()
        source.command("pause", reason="you paused it")
        found = taken(source, Answer)
        assert found == Answer("pause", False, NOT_DONE)
        again = Node(path, {**MODERN, "status": msgspec.structs.replace(HELLO, pid=8)})
        taken(source, Link, "live")
        source.command("finish")
        until(lambda: any(method == "finish" for method, _ in again.asked))
        assert all(method != "pause" for method, _ in again.asked)
        again.close()


def test_a_command_that_was_never_answered_is_said_to_be_uncertain(path: Path) -> None:
    with live(path, pause=HANGS_UP) as (_, source):
        source.command("pause")
        found = taken(source, Answer)
        assert found == Answer("pause", False, UNHEARD)


def test_a_node_that_died_is_said_to_have_ended_until_another_answers(path: Path) -> None:
    node, asked = Node(path, MODERN), list[int]()

    def how_it_ended(pid: int) -> LastRun | None:
        asked.append(pid)
        return KILLED if len(asked) > 1 else None  # its process takes a moment to end

    with attached(path, how_it_ended=how_it_ended) as source:
        taken(source, Link, "live")
        node.close()
        ended = Link("ended", KILLED.when, KILLED.reason, KILLED.next_step)
        assert taken(source, Link, "ended") == ended
        assert set(asked) == {7}
        again = Node(path, {**MODERN, "status": msgspec.structs.replace(HELLO, pid=8)})
        taken(source, Link, "live")
        again.close()


def test_a_fresh_invite_comes_with_the_answer(path: Path) -> None:
    invite = InviteView(swarm="ab" * 32, swarm_name="demo", invite="volunteer:x")
    with live(path, invite=invite) as (_, source):
        source.command("invite")
        found = taken(source, Answer)
        assert (found.method, found.ok, found.invite) == ("invite", True, invite)


def test_a_pause_promises_nothing_of_other_volunteers() -> None:
    """There may be none."""
    assert SAID["pause"] == "paused: memory is freed; p resumes"
