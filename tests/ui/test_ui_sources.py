"""A live node's socket, with a node that a thread plays."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from client.control import rpc
from client.control.snapshot import InviteView
from client.store.last_run import Ending
from client.ui.source.live import NOBODY, NOT_DONE, SAID, UNHEARD, LiveSource
from client.ui.source.mailbox import MAX_EVENTS, Delivery, Mailbox, merge
from tests.ui.examples import ANNA, event, matching, update
from tests.ui.played_node import HELLO, MODERN, Node

PATIENCE_S = 20.0


def until(found: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)


# --- mailbox ---------------------------------------------------------------------------------


def test_a_newer_update_takes_the_place_of_one_that_was_not_read() -> None:
    mailbox, told = Mailbox(), matching()
    mailbox.put(msgspec.structs.replace(update(1, event(1)), matches=told, missed=2))
    mailbox.put(update(2, event(1), event(2), step=9))
    found = mailbox.take()
    assert found is not None
    assert found.update is not None
    assert found.update.snapshot.step == 9
    assert [e.seq for e in found.update.events] == [1, 2]
    assert found.update.matches == told
    assert found.update.missed == 2
    assert mailbox.take() is None


def test_what_waits_is_bounded_and_what_is_dropped_is_counted() -> None:
    older = update(1, *(event(n) for n in range(1, MAX_EVENTS + 1)))
    newer = update(2, *(event(n) for n in range(MAX_EVENTS + 1, MAX_EVENTS + 11)))
    found = merge(older, newer)
    assert len(found.events) == MAX_EVENTS
    assert found.missed == 10
    assert merge(older, update(3, peer=ANNA)).events == []


def test_the_events_of_a_node_that_was_started_again_are_not_taken_for_old_ones() -> None:
    older = update(1, event(1), event(2), event(3), pid=1)
    found = merge(older, update(1, event(1), event(2), pid=2))
    assert [e.seq for e in found.events] == [1, 2]
    assert found.missed == 3


# --- a live node -----------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket's path, short enough for every system."""
    return tmp_path_factory.mktemp("s") / "n.sock"


@contextlib.contextmanager
def attached(
    path: Path,
    how_it_ended: Callable[[int], Ending | None] | None = None,
) -> Iterator[tuple[LiveSource, Mailbox]]:
    """A live source that runs."""
    source, mailbox = LiveSource(path, how_it_ended), Mailbox()
    source.start(mailbox)
    try:
        yield source, mailbox
    finally:
        source.stop()


@contextlib.contextmanager
def live(path: Path, **more: object) -> Iterator[tuple[Node, LiveSource, Mailbox]]:
    """A node that answers ``more`` than usual, and a source that is linked with it."""
    node = Node(path, {**MODERN, **more})
    with attached(path) as (source, mailbox):
        until(lambda: mailbox.link.state == "live")
        yield node, source, mailbox
    node.close()


def taken(mailbox: Mailbox, wanted: Callable[[Delivery], bool]) -> Delivery:
    """Wait for a delivery."""
    found: list[Delivery] = []

    def came() -> bool:
        one = mailbox.take()
        if one is not None and wanted(one):
            found.append(one)
        return bool(found)

    until(came)
    return found[0]


def test_updates_and_the_curve_come_by_subscription(path: Path) -> None:
    node = Node(path, MODERN)
    with attached(path) as (_, mailbox):
        curve = taken(mailbox, lambda one: bool(one.curve)).curve
        assert curve is not None
        assert [point.step for point in curve.points] == [1]
        until(lambda: mailbox.link.state == "live")
        node.update(update(1, event(1), step=4))
        found = taken(mailbox, lambda one: one.update is not None)
        assert found.update is not None
        assert found.update.snapshot.step == 4
        assert dict(node.asked)["subscribe"] == {"events_since": 0}
    node.close()


def test_commands_are_sent_and_answered_in_words(path: Path) -> None:
    with live(path) as (node, source, mailbox):
        source.command("pause", reason="you paused it")
        found = taken(mailbox, lambda one: bool(one.answers))
        assert (found.answers[0].method, found.answers[0].ok) == ("pause", True)
        source.command("resume")
        found = taken(mailbox, lambda one: bool(one.answers))
        assert found.answers[0].words == "no resume"
        assert ("pause", {"reason": "you paused it"}) in node.asked


def test_a_broken_connection_is_said_and_made_anew_from_where_it_was(path: Path) -> None:
    with live(path) as (node, _, mailbox):
        node.update(update(1, event(41)))
        taken(mailbox, lambda one: one.update is not None)
        node.drop()
        until(lambda: mailbox.link.state == "lost")
        until(lambda: mailbox.link.state == "live")
        assert node.asked[-1][1]["events_since"] == 41


def test_a_node_that_was_started_again_is_heard_from_its_beginning(path: Path) -> None:
    """Its events are numbered from the start; with the old number we would miss the first ones."""
    with live(path) as (node, _, mailbox):
        node.update(update(1, event(41)))
        taken(mailbox, lambda one: one.update is not None and one.update.events[-1].seq == 41)
        node.methods["hello"] = msgspec.structs.replace(HELLO, pid=8)
        node.asked.clear()
        node.drop()
        until(lambda: any("since" in name for _, params in node.asked for name in params))
        asked = [params for method, params in node.asked if method in ("subscribe", "events")]
        assert next(iter(asked[0].values())) == 0


@pytest.mark.parametrize("nonsense", [b"nonsense\n", b"[]\n", b"\xff\n",
                                      b'{"method":"update","params":{"time":"x"}}\n'])  # fmt: skip
def test_nonsense_from_the_socket_only_costs_the_connection(path: Path, nonsense: bytes) -> None:
    with live(path) as (node, _, mailbox):
        hellos = [method for method, _ in node.asked].count("hello")
        node.send(nonsense)
        until(lambda: [method for method, _ in node.asked].count("hello") > hellos)
        until(lambda: mailbox.link.state == "live")


def test_a_node_that_was_told_to_leave_is_gone_for_good(path: Path) -> None:
    with live(path) as (node, source, mailbox):
        source.command("finish")
        taken(mailbox, lambda one: bool(one.answers))
        node.close()
        until(lambda: mailbox.link.state == "ended")


def test_nobody_there_is_said_until_somebody_is(path: Path) -> None:
    with attached(path) as (_, mailbox):
        until(lambda: NOBODY in mailbox.link.words)
        assert mailbox.link.state == "connecting"
        node = Node(path, MODERN)
        until(lambda: mailbox.link.state == "live")
    node.close()


KILLED = Ending(time=5.0, words="ended without a word", next_step="start it again: volunteer join")


def test_what_is_asked_of_a_dead_node_is_refused_and_not_kept_for_the_next(path: Path) -> None:
    with live(path) as (node, source, mailbox):
        node.close()
        until(lambda: mailbox.link.state != "live")
        source.command("pause", reason="you paused it")
        found = taken(mailbox, lambda one: bool(one.answers))
        assert [(one.method, one.ok, one.words) for one in found.answers] == [
            ("pause", False, NOT_DONE)
        ]
        again = Node(path, {**MODERN, "hello": msgspec.structs.replace(HELLO, pid=8)})
        until(lambda: mailbox.link.state == "live")
        source.command("finish")
        until(lambda: any(method == "finish" for method, _ in again.asked))
        assert all(method != "pause" for method, _ in again.asked)
        again.close()


def test_a_command_that_was_never_answered_is_said_to_be_uncertain(path: Path) -> None:
    class Deaf(Node):
        """Hangs up when it is told to pause."""

        def _serve(self, connection: socket.socket) -> None:
            with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
                for line in lines:
                    request = msgspec.json.decode(line)
                    if request["method"] == "pause":
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    result = self.methods[request["method"]]
                    connection.sendall(rpc.encode_result(result, request["id"]))

    node = Deaf(path, MODERN)
    with attached(path) as (source, mailbox):
        until(lambda: mailbox.link.state == "live")
        source.command("pause")
        found = taken(mailbox, lambda one: bool(one.answers))
        assert [(one.method, one.ok, one.words) for one in found.answers] == [
            ("pause", False, UNHEARD)
        ]
    node.close()


def test_a_node_that_died_is_said_to_have_ended_until_another_answers(path: Path) -> None:
    node, asked = Node(path, MODERN), list[int]()

    def how_it_ended(pid: int) -> Ending | None:
        asked.append(pid)
        return KILLED if len(asked) > 1 else None  # its process takes a moment to end

    with attached(path, how_it_ended=how_it_ended) as (_, mailbox):
        until(lambda: mailbox.link.state == "live")
        node.close()
        until(lambda: mailbox.link.state == "ended")
        assert mailbox.link.ending == KILLED
        assert set(asked) == {7}
        again = Node(path, {**MODERN, "hello": msgspec.structs.replace(HELLO, pid=8)})
        until(lambda: mailbox.link.state == "live")
        again.close()


def test_a_fresh_invite_comes_with_the_answer(path: Path) -> None:
    invite = InviteView(swarm="ab" * 32, swarm_name="demo", invite="volunteer:x")
    with live(path, invite=invite) as (_, source, mailbox):
        source.command("invite")
        found = taken(mailbox, lambda one: bool(one.answers))
        assert [(one.method, one.ok, one.invite) for one in found.answers] == [
            ("invite", True, invite)
        ]


def test_a_pause_promises_nothing_of_other_volunteers() -> None:
    """There may be none."""
    assert SAID["pause"] == "paused: memory is freed; p resumes"
