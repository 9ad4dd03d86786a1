"""Whom we are in touch with, and whom others say they have lost: what a quorum is counted from.

Unlike the roster, which believes the best (a silence that we slept through is forgiven), this is
about what is certain: when each peer was last heard, what it had heard of us by then, whom it lists
as lost, and whether its process ended before our eyes. Holds one entry per peer ever heard, whom
each of them misses, and the moments of our own heartbeats, all bounded; times are monotonic
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Final

from protocol import limits
from protocol.ids import PeerId
from protocol.membership.detector import DEAD_AFTER_S
from protocol.wire.parts import SeatStatus

CONTACT_S: Final = 4.0
"""Who has got a heartbeat that we sent within so many seconds still counts us as alive. That we
hear of it proves nothing: what waited while we were paused is old. Clocks may differ in rate by the
margin that lies between this and ``LOST_AFTER_S``."""
LOST_AFTER_S: Final = DEAD_AFTER_S
MAX_CONTACTS: Final = 1024
MAX_SAID: Final = 1024
"""Own heartbeats whose moment is remembered; there is one every second, and at every commit."""


@dataclass(slots=True)
class _Contact:
    heard: float
    echoed: float
    """When we sent the newest of our heartbeats that it has got."""
    lost: frozenset[PeerId] = frozenset()
    stages: frozenset[int] = frozenset()
    closed: bool = False
    crashed: bool = False
    left: bool = False
    misses: dict[PeerId, float] = field(default_factory=dict)
    """Whom its step cannot be closed without, and since when it has said so."""


class Contacts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._contacts: dict[PeerId, _Contact] = {}
        self._said: dict[int, float] = {}
        self._shunned: dict[int, frozenset[PeerId]] = {}
        self._spoke_at = self._woke_at = -math.inf

    def shun(self, stage: int, peers: Iterable[PeerId]) -> None:
        """Our seat in a stage sets these aside: what they say is not heard from now on, nor is it
        echoed, so that to both sides it is as if they had fallen silent at this moment."""
        self._shunned[stage] = frozenset(peers)

    def is_shunned(self, peer: PeerId) -> bool:
        """Whether a seat of ours sets a peer aside."""
        return any(peer in shunned for shunned in self._shunned.values())

    def said(self, seq: int, now: float) -> None:
        """We send a heartbeat with this number (the first moment of a number counts)."""
        began = self._spoke_at == -math.inf
        self._woke_at, self._spoke_at = (now if began else self.awake_since(now)), now
        self._said.setdefault(seq, now)
        if len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]

    def heard(
        self,
        peer: PeerId,
        lost: Iterable[PeerId],
        serving: Iterable[int],
        echo: int,
        now: float,
        *,
        misses: Iterable[PeerId] = (),
    ) -> None:
        """A heartbeat came: whom its sender has lost, the stages it serves, which of our heartbeats
        it had got, and whom (never ourselves) its steps cannot be closed without."""
        if self.is_shunned(peer):
            return
        if peer not in self._contacts and len(self._contacts) >= MAX_CONTACTS:
            del self._contacts[min(self._contacts, key=lambda p: self._contacts[p].heard)]
        known = self._contacts.get(peer)
        echoed = self._said.get(echo, -math.inf)
        if known is not None and not known.closed:
            echoed = max(echoed, known.echoed)
        missed_before = {} if known is None else known.misses
        missed = {missing: missed_before.get(missing, now) for missing in misses}
        told = _Contact(now, echoed, frozenset(lost), frozenset(serving), misses=missed)
        self._contacts[peer] = told

    def expect(self, peers: Iterable[PeerId], now: float) -> None:
        """A plan names these: who is not heard from now on is lost, as if we had met before."""
        for peer in peers:
            if peer not in self._contacts and len(self._contacts) < MAX_CONTACTS:
                self._contacts[peer] = _Contact(now, -math.inf)

    def closed(self, peer: PeerId, *, by_peer: bool, now: float) -> None:
        """The link ended. A process that ended closes its connections while it still counts us as
        alive; what is closed after a silence only says that it had lost us."""
        contact = self._contacts.get(peer)
        if contact is not None:
            contact.crashed = by_peer and self.present(peer, now)
            contact.closed = True

    def awake_since(self, now: float) -> float:
        """Return since when we have said heartbeats without a break in which others lost us; who
        never had a link to say one over has missed nothing."""
        asleep = now >= self._spoke_at + CONTACT_S > -math.inf
        return now if asleep else self._woke_at

    def left(self, peer: PeerId) -> None:
        """The peer said goodbye to the swarm."""
        if contact := self._contacts.get(peer):
            contact.left = True

    def present(self, peer: PeerId, now: float) -> bool:
        """Whether the peer has heard us so lately that it cannot have given us up."""
        contact = self._contacts.get(peer)
        if contact is None or contact.closed or contact.left:
            return False
        return now < contact.echoed + CONTACT_S

    def hears(self, peer: PeerId, now: float) -> bool:
        """Whether the peer has heard us since we were last asleep, and its link stands: what it
        says did not wait while we slept, however long the line is."""
        contact = self._contacts.get(peer)
        if contact is None or contact.closed or contact.left:
            return False
        return contact.echoed >= self.awake_since(now)

    def is_gone(self, peer: PeerId) -> bool:
        """Whether the peer's process ended before our eyes, or it said goodbye."""
        contact = self._contacts.get(peer)
        return contact is not None and (contact.crashed or contact.left)

    def serves(self, peer: PeerId, stage: int, now: float) -> bool | None:
        """Return whether a peer that is present serves a stage, by its own word; else None."""
        if not self.present(peer, now):
            return None
        return stage in self._contacts[peer].stages

    def has_lost(self, elector: PeerId, peer: PeerId, now: float) -> bool:
        """Whether ``elector``, which is present, says that it has lost ``peer``."""
        return self.present(elector, now) and peer in self._contacts[elector].lost

    def told_by(self, elector: PeerId) -> frozenset[PeerId]:
        """Return whom a peer's last heartbeat named as lost."""
        contact = self._contacts.get(elector)
        return frozenset() if contact is None or contact.closed else contact.lost

    def lost(self, now: float) -> tuple[PeerId, ...]:
        """Return whom we have lost ourselves, the latest first."""
        lost = [
            (contact.heard, peer)
            for peer, contact in self._contacts.items()
            if contact.crashed or contact.left or now >= contact.heard + LOST_AFTER_S
        ]
        lost.sort(reverse=True)
        return tuple(peer for _, peer in lost)

    def told_lost(self, now: float) -> tuple[PeerId, ...]:
        """Return whom our heartbeats name as lost: those first without whom a step that somebody
        present tells us of cannot be closed, also if we never met them. Everybody who tells us of
        some has the same share of the list."""
        lost = self.lost(now)
        known = frozenset(lost)
        told = [
            [
                missing
                for missing, since in sorted(contact.misses.items())
                if missing in known
                or (missing not in self._contacts and now >= since + LOST_AFTER_S)
            ]
            for peer, contact in sorted(self._contacts.items())
            if contact.misses and self.present(peer, now)
        ]
        in_turns = (name for names in zip_longest(*told) for name in names if name is not None)
        return tuple(islice(dict.fromkeys(chain(in_turns, lost)), limits.MAX_LOST))


def missed(seats: Iterable[SeatStatus], stages: Collection[int], me: PeerId) -> set[PeerId]:
    """Return whom the seats of a heartbeat miss, as far as it is for one who holds ``stages`` to
    say whether they are lost: electors are of a stage and of those beside it."""
    near = {stage + step for stage in stages for step in (-1, 0, 1)}
    asking = (seat for seat in seats if seat.state == "serving" and seat.stage in near)
    return {PeerId(peer) for seat in asking for peer in seat.missing} - {me}
