"""The newest statements of others, kept so that two statements of one author can meet.

A leader could tell every member something else. So a member that is told a plan passes the
statement on to its siblings, and each compares it with its own. So it does with the commitments of
an attempt that has failed although it was Ready. Whoever brings a statement, it is verified before
it is kept. State: the newest statements, by author.
"""

from collections import OrderedDict
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import Place, contradiction, place_of
from protocol.evidence.statement import (
    PASSED_ON,
    PLAN,
    Decisive,
    envelope_of,
)
from protocol.ids import PeerId, SwarmId
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.parts import Proof

MAX_OF_AUTHOR: Final = 128
"""Statements that are kept of one author: some steps of a stage."""
MAX_AUTHORS: Final = 2 * MAX_REPLICAS_IN_ROUND


class Heard:
    """See the module's docstring; ``swarm`` is where the signatures hold."""

    def __init__(self, swarm: SwarmId) -> None:
        self._swarm = swarm
        self._said: dict[str, OrderedDict[Place, Envelope]] = {}

    def take(self, author: PeerId, message: Decisive) -> tuple[Envelope | None, Proof | None]:
        """Take a message from its author. Return the statement if it is new and others may have
        been told something else, and the proof that it makes with what we knew.

        Raises:
            RemoteProtocolError: it is not signed, or not by its author.
        """
        envelope = envelope_of(author, message)
        if envelope is None:
            raise RemoteProtocolError("not-signed", type(message).__name__, 20)
        is_new, proof = self._keep(envelope)
        return (envelope if is_new and envelope.kind == PLAN else None), proof

    def passed_on(self, sender: PeerId, envelope: Envelope) -> Proof | None:
        """Take a statement that another peer passes on; return the proof that it makes.

        Raises:
            RemoteProtocolError: it is no statement that is passed on, malformed, or not signed by
                its author.
        """
        if envelope.kind not in PASSED_ON or envelope.signer == sender:
            raise RemoteProtocolError("not-to-be-passed-on", envelope.kind, 20)
        return self._keep(envelope)[1]

    def _keep(self, envelope: Envelope) -> tuple[bool, Proof | None]:
        """Return whether a statement is new, and the proof that it makes."""
        place = place_of(envelope)
        said = self._said.get(envelope.signer, OrderedDict())
        held = said.get(place)
        if held == envelope:
            return False, None
        verify(envelope, self._swarm)
        if held is not None:
            return False, contradiction(held, envelope)
        self._said.pop(envelope.signer, None)  # who has said nothing for longest comes first
        if len(self._said) >= MAX_AUTHORS:
            del self._said[next(iter(self._said))]
        self._said[envelope.signer] = said
        said[place] = envelope
        if len(said) > MAX_OF_AUTHOR:
            said.popitem(last=False)
        return True, None
