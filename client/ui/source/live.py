"""A running node: subscribes, and reconnects when the connection breaks.

It has one thread and one connection. Only this thread waits for the node, never the interface. A
command while no node answers is refused at once and never kept for the next node.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from client.control import rpc
from client.control.methods import Greeting
from client.control.snapshot import InviteView
from client.control.updates import UPDATE_METHOD, Curve, Update
from client.control.wire import Answered, Received, Wire, WireError, decode, decode_update
from client.store.last_run import Ending
from client.ui.source.mailbox import Answer, Link, LinkState, Mailbox

HZ = 2.0
CURVE_POINTS = 500
SILENCE_S = 15.0
"""Seconds of silence of a subscribed node after which we reconnect."""
PATIENCE_S = (0.5, 1.0, 2.0, 3.0, 5.0)
SAID = {
    "pause": "paused: memory is freed; p resumes",
    "resume": "resumed: looking for a stage",
    "finish": "finishing: draining its stages, saving, leaving",
    "stop": "stopping: draining its stages, saving, leaving",
}
NOBODY = "no volunteer answers yet"
NOT_DONE = "nothing was done: the volunteer does not answer"
UNHEARD = "the connection broke before the volunteer answered: it may have done it or not"
GONE = "the volunteer has ended"
LEFT = "the volunteer has left the swarm"
ENDING = ("finish", "stop")


class LiveSource:
    """The node that listens on a control socket.

    Args:
        path: the socket.
        how_it_ended: returns the end of a process's node; None: it runs, or its end is unknown.
    """

    def __init__(
        self,
        path: Path,
        how_it_ended: Callable[[int], Ending | None] | None = None,
    ) -> None:
        self._path, self._how_it_ended = path, how_it_ended
        self._mailbox = Mailbox()
        self._commands: queue.SimpleQueue[tuple[str, dict[str, object]]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked: dict[int, str] = {}
        self._pid: int | None = None
        self._since = 0
        self._leaving = False
        """Whether the node was told to leave, or says that it does."""

    def start(self, mailbox: Mailbox) -> None:
        """Begin to connect."""
        self._mailbox = mailbox
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._ended.set()
        self._poke()
        if self._thread is not None:
            self._thread.join(2.0)
        self._wake.close()
        self._woken.close()

    def command(self, method: str, **params: object) -> None:
        """Send a command to the node; refused at once while none answers."""
        if self._mailbox.link.state != "live":
            self._mailbox.put_answer(Answer(method, False, NOT_DONE))
            return
        self._commands.put((method, params))
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._ended.is_set():
            try:
                wire = Wire(self._path)
            except WireError as error:
                tries += 1
                self._lost(NOBODY if error.nobody else str(error), tries, nobody=error.nobody)
                self._ended.wait(PATIENCE_S[min(tries, len(PATIENCE_S)) - 1])
                continue
            try:
                self._converse(wire)
            except WireError as error:
                tries += 1
                self._lost(str(error), tries, nobody=error.nobody)
                self._refuse_unheard()
                self._ended.wait(PATIENCE_S[0])
            finally:
                wire.close()
            tries = 1

    def _converse(self, wire: Wire) -> None:
        pid = self._greet(wire)
        if pid != self._pid:
            self._pid, self._since = pid, 0  # another process numbers its events from the start
            self._leaving = False
        self._ask(wire, "history", points=CURVE_POINTS)
        number = wire.send("subscribe", events_since=self._since, matches=True, hz=HZ)
        while True:  # the answers to both, in either order
            found = wire.receive(5.0)
            if found is None:
                raise WireError("the volunteer does not answer")
            self._take(found)
            if found.id == number:
                break
        self._refuse_queued()  # commands sent just when the connection broke
        self._mailbox.put_link(Link("live"))
        if found.error is not None:
            raise WireError(found.error.message)
        self._listen(wire)

    def _listen(self, wire: Wire) -> None:
        heard = time.monotonic()
        while not self._ended.is_set():
            self._send_commands(wire)
            found = wire.receive(1.0, self._woken)
            if found is not None:
                heard = time.monotonic()
                self._take(found)
            elif time.monotonic() > heard + SILENCE_S:
                raise WireError(f"the volunteer has said nothing for {SILENCE_S:.0f} s")

    def _call(self, wire: Wire, kind: type[Answered], method: str, **params: object) -> Answered:
        number = wire.send(method, **params)
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            found = wire.receive(1.0)
            if found is not None and found.id == number:
                return decode(found, kind)
            if found is not None:
                self._take(found)
        raise WireError("the volunteer does not answer")

    def _send_commands(self, wire: Wire) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._woken.recv(4096)
        with contextlib.suppress(queue.Empty):
            while True:
                method, params = self._commands.get_nowait()
                self._ask(wire, method, **params)

    def _greet(self, wire: Wire) -> int:
        """Return the node's process; one that was leaving and does not greet has ended."""
        try:
            return self._call(wire, Greeting, "hello", version=rpc.API_VERSION).pid
        except WireError as error:
            error.nobody |= self._leaving
            raise

    def _refuse_unheard(self) -> None:
        """Answer the commands to a node that has ended, which the next one must not carry out."""
        for method in self._asked.values():
            if method in SAID:
                self._mailbox.put_answer(Answer(method, False, UNHEARD))
        self._asked.clear()
        self._refuse_queued()

    def _refuse_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                method, _ = self._commands.get_nowait()
                self._mailbox.put_answer(Answer(method, False, NOT_DONE))

    def _ask(self, wire: Wire, method: str, **params: object) -> None:
        self._asked[wire.send(method, **params)] = method

    def _take(self, found: Received) -> None:
        if found.method == UPDATE_METHOD:
            self._deliver(decode_update(found))
        elif isinstance(found.id, int) and found.id in self._asked:
            self._answered(self._asked.pop(found.id), found)

    def _answered(self, method: str, found: Received) -> None:
        if method == "history":
            self._mailbox.put_curve(decode(found, Curve))
            return
        if found.error is not None:
            self._mailbox.put_answer(Answer(method, False, found.error.message))
            return
        if method == "invite":
            self._mailbox.put_answer(Answer(method, True, "", decode(found, InviteView)))
            return
        self._leaving |= method in ENDING
        self._mailbox.put_answer(Answer(method, True, SAID.get(method, "done")))

    def _deliver(self, update: Update) -> None:
        if update.events:
            self._since = update.events[-1].seq
        self._leaving |= update.snapshot.state == "stopping"
        self._mailbox.put(update)

    def _lost(self, why: str, tries: int, *, nobody: bool) -> None:
        ending = None
        if nobody and self._pid is not None and self._how_it_ended is not None:
            ending = self._how_it_ended(self._pid)
        if ending is not None or (self._leaving and nobody):
            self._mailbox.put_link(Link("ended", LEFT if self._leaving else GONE, ending))
            return
        state: LinkState = "connecting" if not self._since and tries < 3 else "lost"
        words = f"{why}; trying again ({tries})"
        self._mailbox.put_link(Link(state, words))
