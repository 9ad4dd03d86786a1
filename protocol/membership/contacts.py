"""Contacts: who is heard, and the evidence of liveness from which a quorum is counted.

Peers send a heartbeat every second. ``tick`` names the linked peers that have been silent for 5 s,
for the roster, which is optimistic: if our own tick comes more than a second late, *this* process
was suspended (stopped, swapped out), and the time since the last tick is not counted as silence.

All else here is certain: when each peer was last heard, which of our heartbeats it had received by
then, and whether its process ended while we were in contact. It outlives our seats. State, all
bounded: one entry per peer ever heard, one per link, and the send times of our own heartbeats.
Times are monotonic seconds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from protocol.ids import PeerId
from protocol.pace import FORGET_S, HEARD_S, TICK_S

DEAD_AFTER_S: Final = HEARD_S + TICK_S
"""A peer that nobody hears any more has missed a heartbeat more than one that is in touch."""
MAX_CONTACTS: Final = 1024
MAX_SAID: Final = 1024
"""Own heartbeats whose send time is kept; one is sent every second and at every commit."""


@dataclass(slots=True)
class _Contact:
    heard: float
    """Last, set aside or not; or since when a plan names a peer that we have never met."""
    echoed: float = -math.inf
    """Send time of our newest heartbeat that it has received."""
    met: bool = True
    end: Literal["", "closed", "crashed", "left"] = ""
    """Of its last link; a crash or a departure is the end of its process."""
    stages: frozenset[int] = frozenset()

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self.end in ("crashed", "left")


class Contacts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._contacts: dict[PeerId, _Contact] = {}
        self._said: dict[int, float] = {}
        self._expelled: dict[PeerId, float] = {}
        """By peer: when we last spoke before it was convicted."""
        self._spoke_at = -math.inf
        self._links: dict[PeerId, float] = {}
        """When each linked peer was last heard; our own sleep since then is left out."""
        self._silent: set[PeerId] = set()
        """Those that ``tick`` has named since they were heard."""
        self._last_tick = 0.0

    def linked(self, peer: PeerId, now: float) -> None:
        """A link begins; this counts as a heartbeat."""
        if not self._links:
            self._last_tick = now  # no tick was due while nobody was linked
        self._links[peer] = now
        self._silent.discard(peer)

    def tick(self, now: float) -> dict[PeerId, float]:
        """Return the linked peers that are silent from now on, with the seconds for which they
        were."""
        if (slept_s := now - self._last_tick) > 2 * TICK_S:  # we were not listening
            self._links = {peer: min(now, at + slept_s) for peer, at in self._links.items()}
        self._last_tick = now
        silent = {peer: now - at for peer, at in self._links.items() if now >= at + DEAD_AFTER_S}
        found = {peer: for_s for peer, for_s in silent.items() if peer not in self._silent}
        self._silent |= found.keys()
        return found

    def next_deadline(self) -> float | None:
        """Return when to tick next, or None if no peer is linked."""
        due = [at + DEAD_AFTER_S for peer, at in self._links.items() if peer not in self._silent]
        return min([self._last_tick + TICK_S, *due]) if self._links else None

    def expel(self, peer: PeerId) -> None:
        """A proof has convicted a peer: it is lost to us from this moment on, whatever it says.
        It counts as gone only after ``FORGET_S``: until then others may lack the proof and still
        work with it. If it counted for ever, the honest other one of two could close no step
        again."""
        self._expelled.setdefault(peer, self._spoke_at)
        if len(self._expelled) > MAX_CONTACTS:  # that of the first is long ago
            del self._expelled[next(iter(self._expelled))]
        self._contacts.pop(peer, None)

    def said(self, seq: int, now: float) -> None:
        """Note that we send heartbeat ``seq``; for a number sent again the first time counts."""
        self._spoke_at = now
        self._said.setdefault(seq, now)
        if len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]

    def heard(self, peer: PeerId, serving: Iterable[int], echo: int, now: float) -> None:
        """Take a heartbeat of a peer that serves these stages; ``echo`` is the number of our newest
        heartbeat that it had received."""
        if peer in self._links:
            self._links[peer] = max(self._links[peer], now)
            self._silent.discard(peer)
        if peer in self._expelled:
            return
        contact = self._contact(peer, _Contact(now))
        if contact.end:
            contact.echoed = -math.inf
        contact.heard, contact.met, contact.end = now, True, ""
        contact.echoed = max(contact.echoed, self._said.get(echo, -math.inf))
        contact.stages = frozenset(serving)

    def expect(self, peers: Iterable[PeerId], now: float) -> None:
        """Watch peers that a plan names: one that stays silent from now on is lost, even if we
        never heard it before."""
        for peer in peers:
            self._contact(peer, _Contact(now, met=False))

    def _contact(self, peer: PeerId, new: _Contact) -> _Contact:
        """Return what is known of a peer; a new one takes the place of who was silent longest: a
        crowd of strangers has been here, and whom a plan names is watched all the same."""
        if peer not in self._contacts and len(self._contacts) >= MAX_CONTACTS:
            del self._contacts[min(self._contacts, key=lambda p: self._contacts[p].heard)]
        return self._contacts.setdefault(peer, new)

    def closed(self, peer: PeerId, *, by_peer: bool, now: float) -> None:
        """Note that the link ended; ``by_peer``: the other side closed it, without a word. When a
        process dies, its system closes its connections while it still counts us as alive; a link
        closed after a silence only shows that the peer had lost us, and one that is closed with a
        word, as for a ban, that the peer lives."""
        self._links.pop(peer, None)
        self._silent.discard(peer)
        contact = self._contacts.get(peer)
        if contact is not None and contact.end != "left":
            contact.end = "crashed" if by_peer and self.present(peer, now) else "closed"

    def left(self, peer: PeerId) -> None:
        """Note that the peer left the swarm in order."""
        if contact := self._contacts.get(peer):
            contact.end = "left"

    def present(self, peer: PeerId, now: float) -> bool:
        """Whether the peer has heard us so recently that it cannot have given us up: it has
        acknowledged a heartbeat that we sent at most ``HEARD_S`` ago. The arrival time of its
        answer proves nothing: a message queued while we were suspended is old. The margin to
        ``DEAD_AFTER_S`` allows for clocks that run at different rates."""
        contact = self._contacts.get(peer)
        return contact is not None and not contact.end and now < contact.echoed + HEARD_S

    def all_know(self, since: float, now: float) -> bool:
        """Whether all that are present have received what we have said since ``since``."""
        contacts = self._contacts.items()
        return all(known.echoed >= since for peer, known in contacts if self.present(peer, now))

    def meets(self, peer: PeerId, now: float) -> bool:
        """Whether we hear the peer, even if one of us has set the other aside."""
        contact = self._contacts.get(peer)
        if contact is None or not contact.met or contact.end:
            return False
        return now < contact.heard + HEARD_S

    def is_gone(self, peer: PeerId) -> bool:
        """Whether the peer's process ended while we were in contact, it left in order, or it was
        convicted so long ago that everybody knows."""
        if peer in self._expelled and self._spoke_at >= self._expelled[peer] + FORGET_S:
            return True
        contact = self._contacts.get(peer)
        return contact is not None and contact.ended

    def serves(self, peer: PeerId, stage: int, now: float) -> bool | None:
        """Return whether a peer says that it serves a stage; None if it is not present."""
        if not self.present(peer, now):
            return None
        return stage in self._contacts[peer].stages

    def lost(self, now: float) -> frozenset[PeerId]:
        """Return the peers that we have lost."""
        found = {
            peer
            for peer, contact in self._contacts.items()
            if contact.ended or now >= contact.heard + DEAD_AFTER_S
        }
        return frozenset(found.union(self._expelled))
