"""The replies of a steward: what it heard from each volunteer, and HOLD and REJECT to them.

Holds the last version of every volunteer and whether that version was turned down: a version gets
one decision, so a late copy of a proposal can never win a place its author has given up hope for.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol import limits
from protocol.effects import SendSigned
from protocol.ids import PeerId, Stage
from protocol.matching import bodies
from protocol.matching.bodies import Mandate
from protocol.matching.context import Context
from protocol.matching.pool import Place


class Heard(NamedTuple):
    """The last message of a volunteer and, if it was turned down, in which epoch."""

    version: int
    refused_in: int | None = None


class Replies:
    """Conversations of one stewardship."""

    def __init__(self, context: Context, stage: Stage) -> None:
        self._context = context
        self._stage = stage
        self._heard: dict[PeerId, Heard] = {}

    def is_old(self, sender: PeerId, version: int) -> bool:
        """Tell whether something newer of the sender was heard."""
        return sender in self._heard and version < self._heard[sender].version

    def note(self, sender: PeerId, version: int) -> None:
        """Take a message's version."""
        if sender not in self._heard or version > self._heard[sender].version:
            self._heard[sender] = Heard(version)

    def was_refused(self, sender: PeerId) -> bool:
        """Tell whether the sender's last version was turned down already."""
        return self._heard[sender].refused_in is not None

    def forget_strangers(self) -> None:
        """Drop who is no member any more."""
        members = self._context.population
        self._heard = {peer: heard for peer, heard in self._heard.items() if peer in members}

    def hold(self, place: Place, mandate: Mandate, epoch: int, now: float) -> SendSigned:
        """Tell a volunteer that it has its place."""
        body = bodies.Hold(
            stage=self._stage,
            mandate=mandate,
            issued_ms=self._context.number(now),
            volunteer=place.peer,
            epoch=epoch,
            version=self._heard[place.peer].version,
            score=place.score,
            lease_ms=max(1, int((place.expires_at - now) * 1000)),
            locked=place.locked,
        )
        return SendSigned(place.peer, bodies.KINDS[bodies.Hold], bodies.encode_body(body))

    def reject(
        self, peer: PeerId, mandate: Mandate, epoch: int, cutoff: int, reason: str, now: float
    ) -> SendSigned:
        """Tell a volunteer that it has no place, always naming the epoch that decided it."""
        version, refused_in = self._heard[peer]
        decided_in = epoch if refused_in is None else refused_in
        self._heard[peer] = Heard(version, decided_in)
        body = bodies.Reject(
            stage=self._stage,
            mandate=mandate,
            issued_ms=self._context.number(now),
            volunteer=peer,
            epoch=decided_in,
            version=version,
            cutoff=cutoff,
            reason=reason[: limits.MAX_REASON_CHARS],
        )
        return SendSigned(peer, bodies.KINDS[bodies.Reject], bodies.encode_body(body))
