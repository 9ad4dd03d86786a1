"""The newest statements of others, kept so that two statements of one author can meet.

A leader could tell every member something else. So a member that is told a plan passes the
statement on to its siblings, and each compares it with its own. So it does with the commitments of
an attempt that has failed although it was Ready. A statement from its author is verified at once.
One that is passed on is verified only if it differs, which never happens in an honest swarm.
State: the newest statements, by the peer that told us of them; commitments of their authors only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocol.effects import Penalise
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import PLACES, Place, check, contradiction
from protocol.evidence.statement import (
    COMMITMENT,
    PASSED_ON,
    PLAN,
    Decisive,
    envelope_of,
    statement_of,
)
from protocol.ids import PeerId, SwarmId
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.parts import Proof

MAX_OF_SENDER: Final = 4 * MAX_REPLICAS_IN_ROUND
"""Statements that are kept of what one peer has told us: some steps of a stage."""
MAX_SENDERS: Final = 2 * MAX_REPLICAS_IN_ROUND
MAX_COMMITMENTS: Final = 4
"""Of them that are commitments: of a large stage each is 17 kB."""

Spot = tuple[str, str, Place]
"""Author, kind and number of a statement."""


class Heard:
    """See the module's docstring; ``swarm`` is where the signatures hold."""

    def __init__(self, swarm: SwarmId) -> None:
        self._swarm = swarm
        self._told: dict[PeerId, OrderedDict[Spot, Envelope]] = {}

    def take(
        self, author: PeerId, message: Decisive
    ) -> tuple[Envelope | None, list[Penalise | Proof]]:
        """Take a message from its author. Return the statement if it is new and others may have
        been told something else, and what comes of comparing it.

        Raises:
            RemoteProtocolError: it is not signed, or not by its author.
        """
        if statement_of(message) is None:
            return None, []
        envelope = envelope_of(author, message)
        if envelope is None:
            raise RemoteProtocolError("not-signed", type(message).__name__, 20)
        spot = _spot(envelope)
        told = self._told.get(author)
        if told is not None and told.get(spot) == envelope:
            return None, []
        verify(envelope, self._swarm)
        found = self._compare(author, spot, envelope)
        return (envelope if envelope.kind == PLAN else None), found

    def passed_on(self, sender: PeerId, envelope: Envelope) -> list[Penalise | Proof]:
        """Take a statement that another peer passes on, not yet verified.

        Raises:
            RemoteProtocolError: it is no statement that is passed on, or malformed.
        """
        if envelope.kind not in PASSED_ON or envelope.signer == sender:
            raise RemoteProtocolError("not-to-be-passed-on", envelope.kind, 20)
        return self._compare(sender, _spot(envelope), envelope)

    def forget(self, peer: PeerId) -> None:
        """A link has ended."""
        self._told.pop(peer, None)

    def _compare(self, sender: PeerId, spot: Spot, envelope: Envelope) -> list[Penalise | Proof]:
        found: list[Penalise | Proof] = []
        for other, told in list(self._told.items()):
            held = told.get(spot)
            if held is None or held.body == envelope.body:
                continue
            proof = contradiction(held, envelope)
            if proof is not None and (wrong := self._wrong(sender, envelope, other, held, told)):
                found += wrong
                if wrong[0].peer == sender:
                    return found
            elif proof is not None:
                check(proof, self._swarm)
                return [*found, proof]
        if envelope.kind != COMMITMENT or envelope.signer == sender:
            self._keep(sender, spot, envelope)
        return found

    def _wrong(
        self,
        sender: PeerId,
        envelope: Envelope,
        other: PeerId,
        held: Envelope,
        told: OrderedDict[Spot, Envelope],
    ) -> list[Penalise]:
        """Blame the peer that passed on what its author never signed; forget it."""
        for who, said in ((sender, envelope), (other, held)):
            try:
                verify(said, self._swarm)
            except RemoteProtocolError as error:
                if said is held:
                    del told[_spot(held)]
                return [Penalise(who, error.reason, error.penalty)]
        return []

    def _keep(self, sender: PeerId, spot: Spot, envelope: Envelope) -> None:
        if sender not in self._told and len(self._told) >= MAX_SENDERS:
            del self._told[next(iter(self._told))]
        told = self._told.setdefault(sender, OrderedDict())
        told[spot] = envelope
        while len(told) > MAX_OF_SENDER:
            told.popitem(last=False)
        commitments = [kept for kept in told if kept[1] == COMMITMENT]
        if envelope.kind == COMMITMENT and len(commitments) > MAX_COMMITMENTS:
            del told[commitments[0]]


def stage_of(envelope: Envelope) -> int:
    """Return the stage that a statement is about, not yet verified.

    Raises:
        RemoteProtocolError: it is no statement that is passed on, or malformed.
    """
    if envelope.kind not in PASSED_ON:
        raise RemoteProtocolError("not-to-be-passed-on", envelope.kind, 20)
    return int(PLACES[envelope.kind](envelope.body)[0])


def _spot(envelope: Envelope) -> Spot:
    return envelope.signer, envelope.kind, PLACES[envelope.kind](envelope.body)
