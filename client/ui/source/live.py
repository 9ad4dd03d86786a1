"""A running node: asks it for updates, and connects again when the connection breaks.

Threads wait for the node, never the interface: one for updates, and one for each command. A command
that no node answers is refused, and never kept for the next node.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Full, Queue

import msgspec

from client.control.client import ControlClient, ControlError, NoAnswer, NotRunning
from client.control.updates import Update
from client.store.last_run import LastRun
from client.ui.source.news import Answer, Link, LinkState, News

MOST_NEWS = 32
"""That wait to be taken; where nobody takes them, the node is not read and makes no more."""
EVERY_S = 0.5
"""Between two updates."""
SILENCE_S = 15.0
"""Seconds without an answer of a node after which we connect again."""
LOOK_S = 0.2
"""How long the end of the interface waits for the threads at most."""
PATIENCE_S = (0.5, 1.0, 2.0, 3.0, 5.0)
SAID = {
    "pause": "paused: memory is freed; p resumes",
    "resume": "resumed: looking for a stage",
    "finish": "finishing: draining its stages, saving, leaving",
}
NOBODY = "no volunteer answers yet"
NOT_DONE = "nothing was done: the volunteer does not answer"
UNHEARD = "the connection broke before the volunteer answered: it may have done it or not"
AGAIN = "start it again: volunteer join"
LEFT = "the volunteer has left the swarm"


class LiveSource:
    """The node that listens on a control socket. The interface takes what it tells from ``news``.

    Args:
        path: the socket.
        how_it_ended: returns the end of a process's node; None: it runs, or its end is unknown.
    """

    def __init__(self, path: Path, how_it_ended: Callable[[int], LastRun | None]) -> None:
        self._path, self._how_it_ended = path, how_it_ended
        self.news: Queue[News] = Queue(MOST_NEWS)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid: int | None = None
        self._since = 0
        self._leaving = False
        """Whether the node was told to leave, or says that it does."""

    def start(self) -> None:
        """Begin to connect."""
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def command(self, method: str, **params: object) -> None:
        """Send a command to the node; refused if none answers."""
        threading.Thread(target=self._tell, args=(method, params), daemon=True).start()

    # --- threads ---------------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._ended.is_set():
            why = NOBODY
            try:
                with ControlClient(self._path, SILENCE_S) as node:
                    why, tries = "the connection broke", 0
                    self._listen(node)
            except ControlError as error:
                tries += 1
                self._lost(why if isinstance(error, NotRunning) else error.message, tries, error)
                self._ended.wait(PATIENCE_S[min(tries, len(PATIENCE_S)) - 1])

    def _listen(self, node: ControlClient) -> None:
        if node.greeting.pid != self._pid:
            # another process numbers its events from the start
            self._pid, self._since, self._leaving = node.greeting.pid, 0, False
        self._say(node.history())
        self._say(Link("live"))
        while not self._ended.is_set():
            self._deliver(node.update(self._since))
            self._ended.wait(EVERY_S)

    def _deliver(self, update: Update) -> None:
        if update.events:
            self._since = update.events[-1].seq
        self._leaving |= update.snapshot.state == "stopping"
        self._say(update)

    def _lost(self, why: str, tries: int, error: ControlError) -> None:
        nobody = isinstance(error, NotRunning)
        if nobody and self._pid is not None and (ending := self._how_it_ended(self._pid)):
            self._say(Link("ended", ending.when, ending.reason, ending.next_step))
            return
        if self._leaving and nobody:
            self._say(Link("ended", LEFT, LEFT, AGAIN))
            return
        state: LinkState = "connecting" if not self._since and tries < 3 else "lost"
        self._say(Link(state, f"{why}; trying again ({tries})"))

    def _say(self, news: News) -> None:
        """Leave news; where there is no room for more, wait until there is, or for the end."""
        while not self._ended.is_set():
            try:
                self.news.put(news, timeout=LOOK_S)
            except Full:
                continue
            return

    def _tell(self, method: str, params: dict[str, object]) -> None:
        self._say(self._answer(method, params))

    def _answer(self, method: str, params: dict[str, object]) -> Answer:
        """Carry out a command on a connection of its own."""
        words = NOT_DONE
        try:
            with ControlClient(self._path) as node:
                words = UNHEARD
                if method == "invite":
                    return Answer(method, True, "", node.invite())
                node.call(method, msgspec.Raw, **params)
                held = node.status().paused if method == "resume" else None
        except (NotRunning, NoAnswer):
            return Answer(method, False, words)
        except ControlError as error:
            return Answer(method, False, error.message)
        if held is not None:
            return Answer(method, True, f"still paused: {held.reason}")
        self._leaving |= method == "finish"
        return Answer(method, True, SAID.get(method, "done"))
