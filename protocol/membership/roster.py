"""The roster: adverts, heartbeats and link states merged into one view of the swarm.

A volunteer is a live member while its advert is valid and it is not known to be dead. Silence or a
broken link makes it dead. A heartbeat, a new link, or an advert newer than the one
held at death makes it alive again. State: one entry per advert or link. It never sends; every
change of the view is returned as events with the reason in words.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from protocol import limits
from protocol.ids import PeerId, rank
from protocol.membership.advert import Advert
from protocol.membership.view import HeldSeat, Member, ViewChanged
from protocol.wire.parts import SeatStatus

FULL_MESH_UP_TO: Final = 64
"""Members, ourselves included, up to which all link with all."""
PIPELINE_NEIGHBOURS: Final = 24
"""Links into the stages next to ours. Replicas of our own stages are not counted here: every two of
them need a link, or a round that a third one leads never closes."""
HASH_NEIGHBOURS: Final = 4
"""Links drawn by hash keep the swarm's graph connected whatever the stages are."""
HOLDERS_OF_FAR_STAGES: Final = 2
FAR_NEIGHBOURS: Final = 64
"""Links with holders of all other stages. Without them a peer cannot tell a lost stage from a
distant one, and would learn of its loss only when adverts expire."""
MAX_LOST: Final = 16
"""Dead peers that we keep dialling."""
GUESTS: Final = 16
"""Members that we have never worked with: so many are dialled, and so many that come to us are
linked with us, once others are proven. A leader lets in four newcomers at a time."""
MOST_GUESTS: Final = 96


def guests_for(stages: int) -> int:
    """Return the places for members that we have never worked with: in a run with far stages, those
    that hold them are some of these, and both sides look for links."""
    far = max(0, stages - 3)
    return min(GUESTS + 2 * HOLDERS_OF_FAR_STAGES * far, MOST_GUESTS)


@dataclass(slots=True)
class _Known:
    advert: Advert | None = None
    advert_seq: int = -1
    heard_seats: tuple[SeatStatus, ...] | None = None
    linked: bool = False
    dead_at_seq: int | None = None

    def is_dead(self) -> bool:
        return self.dead_at_seq is not None and self.advert_seq <= self.dead_at_seq


class Roster:
    """The live members of one swarm, as one peer sees them."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._known: dict[PeerId, _Known] = {}
        self._members: dict[PeerId, Member] = {}
        self._holders: dict[int, set[PeerId]] = {}
        self._linked: set[PeerId] = set()
        """Live members with a link, and we: far fewer than there may be members."""
        self._neighbours: tuple[PeerId, ...] | None = None
        """None: the view has changed since they were chosen."""
        self._proven: frozenset[PeerId] | None = None
        self._guests = MOST_GUESTS

    def __len__(self) -> int:
        return len(self._members)

    def live(self) -> tuple[PeerId, ...]:
        """Return every live member in order of peer id, ourselves included."""
        return tuple(sorted(self._members))

    def member(self, peer: PeerId) -> Member | None:
        """Return a live member."""
        return self._members.get(peer)

    def members(self) -> tuple[Member, ...]:
        """Return all live members in order of peer id."""
        return tuple(self._members[peer] for peer in self.live())

    def linked(self) -> tuple[Member, ...]:
        """Return the live members that we are linked with, and ourselves, in order of peer id."""
        return tuple(self._members[peer] for peer in sorted(self._linked))

    def replicas(self, stage: int) -> tuple[HeldSeat, ...]:
        """Return the live holders of a stage, fetching ones included, in order of peer id."""
        return tuple(
            HeldSeat(member.peer, seat)
            for member in (self._members[peer] for peer in sorted(self._holders.get(stage, ())))
            for seat in member.seats
            if seat.stage == stage
        )

    def serving(self, stage: int) -> tuple[HeldSeat, ...]:
        """Return the live replicas of a stage that serve it already."""
        return tuple(r for r in self.replicas(stage) if r.seat.state == "serving")

    def trust(self, proven: frozenset[PeerId] | None, guests: int) -> None:
        """Of all others than the peers that work has proven we want links with so many ``guests``
        at most; None: all are alike."""
        if (proven, guests) != (self._proven, self._guests):
            self._proven, self._guests = proven, guests
            self._neighbours = None

    def is_guest(self, peer: PeerId) -> bool:
        """Whether work has proven others to us, and not this peer."""
        return self._proven is not None and peer not in self._proven

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return the addresses that a peer advertises, even if it is not live."""
        known = self._known.get(peer)
        return () if known is None or known.advert is None else known.advert.addresses

    def neighbours(self) -> tuple[PeerId, ...]:
        """Return the peers to stay linked with, dead ones left out."""
        if self._neighbours is None:
            self._neighbours = self._choose_neighbours()
        return self._neighbours

    def is_full_mesh(self) -> bool:
        """Whether the swarm is so small that all are to be linked with all."""
        return len(self._members.keys() - {self._own}) < FULL_MESH_UP_TO

    def _choose_neighbours(self) -> tuple[PeerId, ...]:
        """Proven peers come first, so that no crowd takes their places, and others are bounded."""
        others = [peer for peer in self.live() if peer != self._own]
        if self.is_full_mesh() and self._proven is None:
            return tuple(others)
        draw = [(self.is_guest(p), rank("neighbour", self._own, p), p) for p in others]
        by_hash = [peer for _, _, peer in sorted(draw)]
        chosen = set(others) if self.is_full_mesh() else self._of_a_large_swarm(by_hash)
        guests = [peer for peer in by_hash if peer in chosen and self.is_guest(peer)]
        return tuple(sorted(chosen.difference(guests[self._guests :])))

    def _of_a_large_swarm(self, by_hash: list[PeerId]) -> set[PeerId]:
        own = self._members.get(self._own)
        ours = {seat.stage for seat in own.seats} if own else set[int]()
        siblings, near = self._holding(ours), self.near(ours)
        chosen = set(by_hash[:HASH_NEIGHBOURS])
        chosen.update([p for p in by_hash if p in siblings][: limits.MAX_REPLICAS_IN_ROUND])
        beside = [p for p in by_hash if p in near and p not in siblings]
        chosen.update(beside[:PIPELINE_NEIGHBOURS])
        chosen.update(self._far(by_hash, near))
        return chosen

    def _far(self, by_hash: Iterable[PeerId], near: Container[PeerId]) -> list[PeerId]:
        """Return replicas of the stages far from ours: one of each stage first, then a second."""
        turns: list[list[PeerId]] = [[] for _ in range(HOLDERS_OF_FAR_STAGES)]
        found = Counter[int]()
        for peer in by_hash:
            serves = [seat.stage for seat in self._members[peer].seats if seat.state == "serving"]
            turn = min((found[stage] for stage in serves), default=HOLDERS_OF_FAR_STAGES)
            if peer not in near and turn < HOLDERS_OF_FAR_STAGES:
                found.update(serves)
                turns[turn].append(peer)
        return list(chain.from_iterable(turns))[:FAR_NEIGHBOURS]

    def unlinked(self) -> frozenset[PeerId]:
        """Return the live members whose missing link proves nothing.

        In a swarm too large for a full mesh, these are members that we do not want to be linked
        with, or not because of a stage near ours.
        """
        others = [member for member in self._members.values() if not member.linked]
        if not others or self.is_full_mesh():
            return frozenset()
        own = self._members.get(self._own)
        near = self.near(seat.stage for seat in own.seats) if own else frozenset[PeerId]()
        missed = near & frozenset(self.neighbours())
        return frozenset(other.peer for other in others) - missed - {self._own}

    def near(self, stages: Iterable[int]) -> frozenset[PeerId]:
        """Return the live holders of these stages and of their neighbours."""
        return self._holding({stage + step for stage in stages for step in (-1, 0, 1)})

    def _holding(self, stages: Iterable[int]) -> frozenset[PeerId]:
        return frozenset(peer for stage in stages for peer in self._holders.get(stage, ()))

    def lost(self) -> tuple[PeerId, ...]:
        """Return dead peers that did not leave and whose advert is valid: they may come back.
        Proven ones come first."""
        gone = [
            peer
            for peer, known in self._known.items()
            if peer not in self._members and known.advert is not None and not known.advert.leaving
        ]
        gone.sort(key=lambda peer: (self.is_guest(peer), rank("lost", self._own, peer)))
        return tuple(gone[:MAX_LOST])

    def advertise(self, peer: PeerId, advert: Advert, seq: int) -> list[ViewChanged]:
        """Take a verified advert, and its record's number."""
        known = self._known.setdefault(peer, _Known())
        known.advert, known.advert_seq = advert, seq
        return self._update(peer, "leaves" if advert.leaving else "advertised itself")

    def withdraw(self, peer: PeerId, reason: str) -> list[ViewChanged]:
        """Drop a peer's advert: it expired or was displaced."""
        if (known := self._known.get(peer)) is None:
            return []
        known.advert, known.advert_seq = None, -1
        return self._update(peer, reason)

    def link_up(self, peer: PeerId) -> list[ViewChanged]:
        """Note a new link, which shows that the peer is alive."""
        known = self._known.setdefault(peer, _Known())
        known.linked, known.dead_at_seq = True, None
        return self._update(peer, "linked")

    def link_down(self, peer: PeerId, reason: str) -> list[ViewChanged]:
        """Note that a link has ended, by which the peer is dead."""
        if (known := self._known.get(peer)) is not None:
            known.linked, known.heard_seats = False, None
        return self.silent(peer, reason)

    def heard(self, peer: PeerId, seats: Iterable[SeatStatus]) -> list[ViewChanged]:
        """Take the seats of a heartbeat (from a linked peer, or our own)."""
        known = self._known.setdefault(peer, _Known())
        known.heard_seats, known.dead_at_seq = tuple(seats), None
        return self._update(peer, "heard")

    def newest_heard(self) -> int:
        """Return the newest version that a linked peer says it serves, also one of which we know no
        valid advert; 0: none."""
        linked = (known for known in self._known.values() if known.linked)
        seats = (seat for known in linked for seat in known.heard_seats or ())
        return max((s.version for s in seats if s.state == "serving"), default=0)

    def silent(self, peer: PeerId, reason: str) -> list[ViewChanged]:
        """A peer has been silent for too long: it is taken for dead."""
        if (known := self._known.get(peer)) is None:
            return []
        known.dead_at_seq = known.advert_seq
        return self._update(peer, reason)

    def _derive(self, peer: PeerId, known: _Known) -> Member | None:
        advert = known.advert
        if advert is None or advert.leaving or known.is_dead():
            return None
        seats = advert.serves if known.heard_seats is None else known.heard_seats
        return Member(peer, advert, seats, known.linked)

    def _update(self, peer: PeerId, reason: str) -> list[ViewChanged]:
        """Recompute one member and return the change as an event."""
        known = self._known[peer]
        if known.advert is None and not known.linked and peer != self._own:
            del self._known[peer]
        before, after = self._members.get(peer), self._derive(peer, known)
        self._replace(peer, before, after)
        if before is None or after is None:
            if before is after:
                return []
            self._neighbours = None
            return [ViewChanged(peer, "up" if before is None else "down", reason)]
        if _outline(before) != _outline(after):
            self._neighbours = None
        elif before.seats == after.seats:
            return []
        return [ViewChanged(peer)]

    def _replace(self, peer: PeerId, before: Member | None, after: Member | None) -> None:
        for stage in {seat.stage for seat in before.seats} if before else ():
            self._holders[stage].discard(peer)
            if not self._holders[stage]:
                del self._holders[stage]
        for seat in after.seats if after else ():
            self._holders.setdefault(seat.stage, set()).add(peer)
        self._linked.discard(peer)
        if after is None:
            self._members.pop(peer, None)
            return
        self._members[peer] = after
        if after.linked or peer == self._own:
            self._linked.add(peer)


def _outline(member: Member) -> object:
    """Return the fields that others plan by; a change in them is a change of the view."""
    places = tuple((seat.stage, seat.state) for seat in member.seats)
    return places, member.linked, member.advert.addresses
