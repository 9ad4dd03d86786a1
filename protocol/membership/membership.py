"""Membership: records, gossip, contacts and roster behind one interface.

Inputs: ``link_up`` and ``link_down`` from the network; ``receive`` for ``Records``,
``RecordDigest`` and ``Heartbeat`` of linked peers; ``tick`` at ``next_deadline()``; ``describe``
and ``set_seats`` for our own advert and seats; ``publish`` for every ``Publish`` effect of any
machine; ``leave`` at the end. All take ``now`` (monotonic seconds), and those that handle records
also ``wall`` (Unix seconds).

Outputs are effects: ``Send`` and ``Penalise`` for the network, ``Publish`` to hand back to
``publish``, ``RecordChanged`` for every record except adverts, and ``ViewChanged``. The view is
read from ``roster``: the live members, the holders of each stage and the peers to stay linked with.

State: the four parts, our own advert and seats. It never signs by itself: the private key stays
outside.
"""

from collections.abc import Callable, Container, Iterable
from typing import Final

import msgspec

from protocol.effects import Explain, Penalise, Publish, Send
from protocol.errors import ProtocolError, RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.matching.bodies import KIND as POSTING
from protocol.membership.advert import ADVERT, Advert, check_seats
from protocol.membership.contacts import DEAD_AFTER_S, Contacts
from protocol.membership.gossip import Gossip
from protocol.membership.losses import LossSaid
from protocol.membership.measured import MEASURED
from protocol.membership.records import Held, Record, RecordStore, Slot, seal
from protocol.membership.roster import Roster
from protocol.membership.rules import record_kinds, ttl_s
from protocol.membership.view import MembershipEffect, RecordChanged
from protocol.pace import RENEWALS, TICK_S
from protocol.recovery.stored import STORED
from protocol.token_bucket import Rate, TokenBucket
from protocol.verdicts import Verdicts
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope
from protocol.wire.messages import Heartbeat, RecordDigest, Records
from protocol.wire.parts import SeatStatus

TOLD_OF: Final = Rate(0.1, 64)
"""Of so many members unknown to us, at once and one more each time, may peers tell us that we have
never worked with. Members that are there link with us, or those that we work with tell of them."""


class Membership:
    """One volunteer's knowledge of its swarm; see the module's docstring.

    Args:
        stages: number of stages in the manifest.
        is_candidate: tells whether an author may speak for a stage, in decimal.
    """

    def __init__(
        self,
        own: PeerId,
        swarm: SwarmId,
        stages: int,
        is_candidate: Callable[[str, PeerId], bool] = lambda _subject, _author: False,
    ) -> None:
        self._own = own
        self._swarm = swarm
        self._stages = stages
        self._is_candidate = is_candidate
        self.roster = Roster(own)
        self.contacts = Contacts()
        self.verdicts = Verdicts()
        """Who is out: their records and heartbeats are ignored."""
        self.records = RecordStore(
            swarm, own, record_kinds(stages), self._is_protected, self.verdicts.__contains__
        )
        self.gossip = Gossip(own, self.records, lambda peer: self.is_new(peer))
        self.is_new: Callable[[PeerId], bool] = lambda _peer: False
        """Whether another peer has done no work, though work has proven others to us."""
        self._told_of = TokenBucket(TOLD_OF.per_s, TOLD_OF.burst, 0.0)
        """Unknown authors of which strangers to our work may still tell us."""
        self._linked: dict[PeerId, int] = {}  # newest heartbeat seq of the link
        self._advert: Advert | None = None
        self._seats: tuple[SeatStatus, ...] = ()
        self._heartbeat_seq = 0
        self._next_heartbeat: float | None = None
        self._next_refresh: float | None = None

    def describe(self, advert: Advert, now: float) -> list[MembershipEffect]:
        """Enter the swarm, change our advert, or leave by one that says so; what it ``serves`` is
        taken from ``set_seats``. From the first on we count as awake, even without links."""
        self._advert = advert
        if self._next_heartbeat is None:
            self._next_heartbeat = now
        return self._readvertise(now)

    @property
    def described(self) -> bool:
        """Whether we have entered the swarm and not left it."""
        return self._advert is not None and not self._advert.leaving

    def set_seats(self, seats: Iterable[SeatStatus], now: float) -> list[MembershipEffect]:
        """Set the stages we hold, one seat for each.

        A changed state is sent to all linked peers at once. How far a stage is goes at once to
        holders of our stages and their neighbours that work has proven, since anybody may say that
        it holds a stage; the others hear it within a second.
        """
        before, self._seats = self._seats, tuple(seats)
        effects: list[MembershipEffect] = list(self.roster.heard(self._own, self._seats))
        if _states(before) != _states(self._seats):
            effects += self._heartbeat(now)
        elif _steps(before) != _steps(self._seats):
            near = self.roster.near(seat.stage for seat in self._seats)
            effects += self._tell({peer for peer in near if not self.is_new(peer)}, now)
        if _places(before) != _places(self._seats):
            effects += self._readvertise(now)
        return effects

    def publish(
        self, publish: Publish, signer: Signer, now: float, wall: float
    ) -> list[MembershipEffect]:
        """Perform a ``Publish``: sign the record, store it and spread it. Its number is in Unix
        milliseconds, or later if need be, so that it rises over restarts. One that breaks the rules
        is dropped, since nobody would take it."""
        kind, rules = publish.kind, self.records.kinds[publish.kind]
        slot, issued = (kind, rules.key(publish.said, self._own)), max(0, int(wall))
        expires = issued + ttl_s(kind, len(self.roster))
        if (before := self.records.get(*slot)) is not None:  # it must not outlive this
            expires = max(expires, min(before.record.expires, issued + int(MAX_ADVERT_TTL_S)))
        try:
            body = rules.bodies.encode(publish.said)
            record = Record(self.records.next_seq(slot, wall), expires, body)
            envelope = seal(signer, kind, record, self._swarm)
            offer = self.records.offer(envelope, self._own, wall)
        except ProtocolError as error:
            words = f"our {kind} record breaks the rules and is not sent: {error}"
            return [Explain("membership", f"a fault of this program: {words}", "error")]
        if offer.held is None:
            words = f"our {kind} record was not taken: {offer.reason}"
            return [Explain("membership", words, "debug")]
        gone = [] if offer.displaced is None else self._forget(offer.displaced, "made room")
        return [*gone, *self._learn(offer.held), *self.gossip.spread([offer.held])]

    def link_up(self, peer: PeerId, now: float) -> list[MembershipEffect]:
        """Start heartbeats, gossip and failure detection over a link to an admitted peer."""
        self._linked[peer] = -1
        if self._next_heartbeat is None:
            self._next_heartbeat = now + TICK_S
        self.contacts.linked(peer, now)
        greeting = self._tell({peer}, now, again=True)
        return [*self.roster.link_up(peer), *greeting, *self.gossip.link_up(peer, now)]

    def link_down(
        self, peer: PeerId, reason: str, now: float, *, by_peer: bool = False
    ) -> list[MembershipEffect]:
        """Note that a link has ended or could not be made, and why, in words; ``by_peer``: the
        other side's operating system closed it, as after a crash."""
        self.contacts.closed(peer, by_peer=by_peer, now=now)
        self._linked.pop(peer, None)
        self.gossip.link_down(peer)
        return list(self.roster.link_down(peer, reason))

    def expel(self, peer: PeerId) -> list[MembershipEffect]:
        """Forget a peer that is out and its records."""
        self.contacts.expel(peer)
        effects: list[MembershipEffect] = []
        for held in self.records.drop_author(peer):
            effects += self._forget(held, "it is expelled")
        return effects

    def receive(
        self,
        sender: PeerId,
        message: Records | RecordDigest | Heartbeat,
        now: float,
        wall: float,
    ) -> list[MembershipEffect]:
        """Take a message of a linked peer, parsed and not yet verified; one that races with the end
        of its link is ignored."""
        if sender not in self._linked:
            return []
        match message:
            case Heartbeat():
                return self._receive_heartbeat(sender, message, now)
            case RecordDigest():
                return list(self.gossip.receive_digest(sender, message, now))
            case Records():
                return self._receive_records(sender, message, now, wall)

    def tick(self, now: float, wall: float) -> list[MembershipEffect]:
        """Send due heartbeats and digests, renew our advert, and expire records and peers."""
        effects: list[MembershipEffect] = []
        for peer, silent_s in self.contacts.tick(now).items():
            effects += self.roster.silent(peer, f"silent for {silent_s:.1f} s")
        for held in self.records.expire(wall):
            effects += self._forget(held, "its advert expired")
        if self._next_heartbeat is not None and now >= self._next_heartbeat:
            effects += self._heartbeat(now)
        effects += self.gossip.tick(now)
        if self._next_refresh is not None and now >= self._next_refresh:
            effects += self._readvertise(now)
        return effects

    def next_deadline(self) -> float | None:
        """Return when ``tick`` is due next (monotonic seconds); None if only an input matters."""
        deadlines = (
            self._next_heartbeat,
            self._next_refresh,
            self.contacts.next_deadline(),
            self.gossip.next_deadline(),
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def unproven(self) -> frozenset[PeerId]:
        """Return the members, near our own stages or without a stage, with whom we have never
        worked: they decide nothing for others.

        Where a volunteer without a stage sees nobody else there are none: newcomers have to begin
        alone, then.
        """
        near = self.roster.near(s.stage for s in self._seats)
        others = [m for m in self.roster.members() if m.peer != self._own]
        new = [m for m in others if self.is_new(m.peer)]
        if len(new) == len(others) and not self._seats:
            return frozenset()
        return frozenset(m.peer for m in new if m.peer in near or not m.seats)

    def losses(self, kind: str) -> dict[PeerId, LossSaid]:
        """Return what each replica of the last stage says in its newest record of a kind."""
        serving = (replica.peer for replica in self.roster.serving(self._stages - 1))
        return {peer: found.said for peer in serving if (found := self.records.get(kind, peer))}

    def heard_before(self) -> list[RecordChanged]:
        """Return the others' records of the matching, for a machine that begins to listen."""
        heard = [held for held in self.records if held.envelope.kind == POSTING]
        return [_changed(held) for held in heard if held.signer != self._own]

    def _is_protected(self, slot: Slot) -> bool:
        """Whether no crowd displaces a record: a linked peer's, or a posting of a candidate."""
        kind, key = slot
        if kind == POSTING:
            stage, _, author = key.partition("/")
            return self._is_candidate(stage, PeerId(author))
        return kind in (ADVERT, MEASURED, STORED) and key in self._linked

    def _readvertise(self, now: float) -> list[MembershipEffect]:
        """Renew our advert."""
        if self._advert is None:
            return []
        short = {"missing": (), "audited": ()}
        serves = tuple(msgspec.structs.replace(seat, **short) for seat in self._seats)
        advert = msgspec.structs.replace(self._advert, serves=serves)
        self._next_refresh = now + ttl_s(ADVERT, len(self.roster)) / RENEWALS
        return [Publish(ADVERT, advert)]

    def _heartbeat(self, now: float) -> list[MembershipEffect]:
        self._next_heartbeat = now + TICK_S
        return self._tell(self._linked, now)

    def _tell(
        self, peers: Container[PeerId], now: float, *, again: bool = False
    ) -> list[MembershipEffect]:
        """Send a heartbeat to linked peers; ``again``: with the number of the one before."""
        self._heartbeat_seq += not again
        self.contacts.said(self._heartbeat_seq, now)
        number, seats = self._heartbeat_seq, list(self._seats)
        return [
            Send(peer, Heartbeat(number, seats=seats, echo=self._linked[peer] + 1))
            for peer in self._linked
            if peer in peers
        ]

    def _receive_heartbeat(
        self, sender: PeerId, message: Heartbeat, now: float
    ) -> list[MembershipEffect]:
        if message.seq <= self._linked[sender]:
            return []
        try:
            check_seats(tuple(message.seats), self._stages)
        except RemoteProtocolError as error:
            return [Penalise(sender, error.reason, error.penalty)]
        self._linked[sender] = message.seq
        serving = [seat.stage for seat in message.seats if seat.state == "serving"]
        self.contacts.heard(sender, serving, message.echo - 1, now)
        return list(self.roster.heard(sender, message.seats))

    def _receive_records(
        self, sender: PeerId, message: Records, now: float, wall: float
    ) -> list[MembershipEffect]:
        believed = Records([e for e in message.records if self._may_tell(sender, e, now)])
        offers, sends = self.gossip.receive_records(sender, believed, now, wall)
        effects = list[MembershipEffect]()
        for held in filter(None, (offer.displaced for offer in offers)):
            effects += self._forget(held, "its advert was displaced by a flood")
        for held in filter(None, (offer.held for offer in offers)):
            effects += self._learn(held)
            if held.signer == self._own and self._next_refresh is not None:
                # an earlier run of ours published a newer advert: supersede it, later, so that two
                # processes with one identity do not race
                self._next_refresh = min(self._next_refresh, now + DEAD_AFTER_S)
        return [*effects, *sends]

    def _may_tell(self, sender: PeerId, envelope: Envelope, now: float) -> bool:
        """Whether a record counts that is not its sender's own: invented members are free, and each
        costs a signature to verify and a place in every view."""
        author = PeerId(envelope.signer)
        if author == sender or not self.is_new(sender):
            return True
        if author == self._own or self.records.get(ADVERT, author) is not None:
            return True
        if envelope.kind != ADVERT:
            return False
        return self._told_of.take(1, now)

    def _learn(self, held: Held) -> list[MembershipEffect]:
        if held.envelope.kind != ADVERT:
            return [_changed(held)]
        if held.said.leaving:
            self.contacts.left(held.signer)
        return list(self.roster.advertise(held.signer, held.said, held.record.seq))

    def _forget(self, held: Held, reason: str) -> list[MembershipEffect]:
        if held.envelope.kind != ADVERT:
            return [RecordChanged(held.envelope.kind, held.signer, None)]
        return list(self.roster.withdraw(held.signer, reason))


def _changed(held: Held) -> RecordChanged:
    return RecordChanged(held.envelope.kind, held.signer, held.said)


def _steps(seats: tuple[SeatStatus, ...]) -> object:
    return tuple((seat.version, seat.returned) for seat in seats)


def _states(seats: tuple[SeatStatus, ...]) -> object:
    return tuple((seat.stage, seat.state, seat.leaving) for seat in seats)


def _places(seats: tuple[SeatStatus, ...]) -> object:
    return tuple((seat.stage, seat.state, seat.seat) for seat in seats)
