"""Boundaries that leave a GPU: copied, sealed and answered while the next task is computed.

A pass on a GPU is over when its numbers are known to be good. Copying them to the host, sealing
them and sending them to the node takes as long as a small pass. A separate thread does that, in the
order of the tasks. The executor waits for it before it answers anything by itself, so replies leave
in the order of their requests. State: the payloads of the pass under way, and the last reply that
has not left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from client.compute.payload import seal

Wait = Callable[[], None]


class Departures:
    """See the module's docstring; one for each opened stage."""

    def __init__(self) -> None:
        self._gathered: list[tuple[memoryview, Wait]] | None = None
        self._leaving: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="departures")

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Let payloads that are encoded in a `with` block leave later; if it fails, they do not."""
        self._gathered = []
        try:
            yield
        except BaseException:
            gathered, self._gathered = self._gathered, None
            for _, wait in gathered:  # their memory is written to until then
                wait()
            raise

    @property
    def gathers(self) -> bool:
        """Whether a payload that is encoded now may leave later."""
        return self._gathered is not None

    def add(self, payload: memoryview, wait: Wait) -> None:
        """Take a payload, not sealed yet; ``wait`` returns when its bytes are there."""
        assert self._gathered is not None
        self._gathered.append((payload, wait))

    def send(self, answer: Callable[[], None], fail: Callable[[Exception], None]) -> bool:
        """Seal what was gathered and then answer, in the thread; False: nothing was gathered, so
        the caller answers, after everything has left.

        Args:
            answer: sends the reply with the payloads.
            fail: answers, in place of that, what went wrong with the payloads.
        """
        gathered, self._gathered = self._gathered, None
        if not gathered:
            self.finish()
            return False

        def leave() -> None:
            try:
                for payload, wait in gathered:
                    wait()
                    seal(payload)
            except Exception as error:
                fail(error)
            else:
                answer()

        self._leaving = self._thread.submit(leave)
        return True

    def finish(self) -> None:
        """Wait until everything has left."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.result()

    def close(self) -> None:
        """Let what is on its way leave, and end the thread."""
        self._thread.shutdown()
