"""The founder's amendments at one volunteer: taken, told to others, kept on disk.

Members tell each other all that they know when a link comes up, and what is new at once. Only the
founder's signature counts. Holds the book (``protocol.amendments.book``) and its file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from client.store.persisted import Persisted
from client.train.ports import Ports
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.amendments.words import describe
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.wire.fields import Envelope
from protocol.wire.messages import Statements


class Amending:
    """See the module's docstring.

    Args:
        path: of the file; None: nothing is kept.
        changed: called when there is something new.
    """

    def __init__(self, ports: Ports, path: Path | None, changed: Callable[[], None]) -> None:
        self._ports, self._changed = ports, changed
        self._file = Persisted(path, KeptAmendments, ports.warn)
        self.book = Amendments(ports.manifest, ports.swarm, self._file.load())

    def link_up(self, peer: PeerId) -> None:
        self._tell([peer], self.book.kept.amendments)

    def receive(self, peer: PeerId, envelopes: Sequence[Envelope]) -> None:
        """Take what a peer tells. Raises RemoteProtocolError: one of them is not the founder's, or
        malformed."""
        for envelope in envelopes:
            self._take(envelope, besides=peer)

    def publish(self, envelope: Envelope) -> None:
        """Take an amendment that this volunteer, the founder's, has signed, and tell everybody."""
        self._take(envelope, besides=None)

    def _take(self, envelope: Envelope, besides: PeerId | None) -> None:
        if (known := self.book.take(envelope)) is None:
            return
        self._file.keep(self.book.kept)
        self._tell([peer for peer in self._ports.linked() if peer != besides], [envelope])
        words = describe(known.amendment, *self.book.before(known.amendment.number))
        self._ports.perform(Explain("swarm", f"the founder says: {words}"))
        self._changed()

    def _tell(self, peers: Sequence[PeerId], envelopes: Sequence[Envelope]) -> None:
        for peer in peers if envelopes else ():
            self._ports.send(peer, Statements("amendments", tuple(envelopes)))
