"""Handles errors while processing a peer's message: its errors are penalised, ours are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client.train.reporting.event_sink import EventSink
from protocol.effects import Penalise
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short


class ErrorBoundary:
    """Separates input from outside from our machines."""

    def __init__(self, penalise: Callable[[Penalise], None], event_sink: EventSink) -> None:
        self._penalise, self._event_sink = penalise, event_sink
        self.internal_errors = 0
        """Unexpected errors that were survived."""

    @contextmanager
    def against(self, peer: PeerId, what: str) -> Iterator[None]:
        """Handle exceptions of the body, which processes ``what`` a peer has sent."""
        try:
            yield
        except RemoteProtocolError as error:
            self._penalise(Penalise(peer, error.reason, error.penalty))
        except Exception as error:  # a bug of ours must not let a peer stop the node
            self.internal_errors += 1
            self._event_sink.survived(f"{what} of {short(peer)}", error)
