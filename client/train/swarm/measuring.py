"""Connects messages, meters and beliefs: measures partners and evaluates others' measurements.

It sees every message sent and received, passes the relevant ones to the meters of
``protocol.reputation``, publishes the measurements, and keeps the beliefs about all members for the
matching. It decides nothing. State: the meters, the beliefs, and the times at which work is due.
"""

from collections import OrderedDict
from typing import Final

from client.train.machine.line_meter import MIN_PAYLOAD_BYTES, LineMeter
from client.train.swarm.views import claimed
from protocol.effects import Explain, Publish
from protocol.ids import PeerId, short
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.manifest import Manifest
from protocol.membership.measured import (
    MAX_PARTNERS,
    MAX_RATES,
    MEASURED,
    MOST_RATE,
    Measurements,
    Partner,
    StageRate,
)
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect, RecordChanged, ViewChanged
from protocol.pace import ASIDE_S, RENEWALS
from protocol.pipeline.effects import Committed
from protocol.reputation.belief import two_digits
from protocol.reputation.beliefs import Beliefs
from protocol.reputation.service import ServiceMeter
from protocol.transfer.fetch import WINDOW
from protocol.wire.messages import (
    Backward,
    Chunk,
    ChunkRequest,
    Forward,
    Heartbeat,
    Message,
    Receipt,
)
from protocol.wire.parts import SeatStatus

SAMPLE_S: Final = 1.0
"""Our own seats are sampled as often as others' heartbeats come."""
REVISE_S: Final = 5.0
"""Shortest time between two revisions of beliefs, because a change makes the matching recompute."""
REFRESH_S: Final = MAX_ADVERT_TTL_S / RENEWALS
"""How often a record is published again that has not changed."""
MINUTE_S: Final = 60
MIN_SERVICE_S: Final = 10
FAR: Final = 2.0
"""Factor by which a claim must be too high for its user to be told."""
MAX_PENDING: Final = 1024
MICRO: Final = 1_000_000

PendingKey = tuple[PeerId, int]


class Measuring:
    """See the module's docstring. ``now`` is monotonic seconds."""

    def __init__(self, own: PeerId, manifest: Manifest, membership: Membership) -> None:
        self._own, self._membership, self._stages = own, membership, manifest.stage_count
        self.service = ServiceMeter(own, manifest.microbatches_per_step)
        self.incoming, self.outgoing = LineMeter(), LineMeter()
        self._beliefs = Beliefs(manifest.stages)
        self.believed = self._beliefs.of
        """Returns a member with the speed that is believed of it."""
        self._pending: OrderedDict[PendingKey, int] = OrderedDict()
        """Large payloads on their way: (peer, microbatch) -> bytes."""
        self._sampled = self._revised = self._published = float("-inf")
        self._said = Measurements()

    def sent(self, peer: PeerId, message: Message, size_bytes: int, now: float) -> None:
        """Note a message queued for ``peer`` at ``now``, with a payload of ``size_bytes``."""
        match message:
            case ChunkRequest(index=int()):
                self.incoming.begin(peer, now)
            case Forward() if size_bytes >= MIN_PAYLOAD_BYTES:
                self._pending[peer, message.microbatch] = size_bytes
                self.outgoing.begin(peer, now)
                while len(self._pending) > MAX_PENDING:
                    self._pending.popitem(last=False)
            case Chunk(index=int()):
                # the window's oldest chunk has come when the next one is asked for
                if self.outgoing.outstanding(peer) >= WINDOW:
                    self.outgoing.arrived(peer, size_bytes, now)
                self.outgoing.begin(peer, now)

    def closed(self, committed: Committed, now: float) -> None:
        shares = dict(zip(committed.roll, committed.shares, strict=True))
        self.service.closed(committed.stage, committed.version, shares, now)

    def seated(self, seats: list[SeatStatus], now: float) -> None:
        """Our own seats, as our heartbeat describes them now."""
        self._sampled = now
        self.service.heard(self._own, seats, now)

    def received(self, peer: PeerId, message: Message, size_bytes: int, now: float) -> None:
        """Note a message of an admitted peer, before other parts process it."""
        match message:
            case Heartbeat(_, seats):
                self.service.heard(peer, [s for s in seats if s.stage < self._stages], now)
            case Backward(stage, step, microbatch):
                self.service.brought(peer, stage + 1, step, microbatch)
            case Forward(stage, step, microbatch):
                self.service.brought(peer, stage - 1, step, microbatch)
            case Receipt():
                sent_bytes = self._pending.pop((peer, message.microbatch), 0)
                if sent_bytes:
                    self.outgoing.arrived(peer, sent_bytes, now)
            case Chunk(index=int()):
                self.incoming.arrived(peer, size_bytes, now)

    def gone(self, peer: PeerId) -> None:
        self.service.gone(peer)
        self.incoming.gone(peer)
        self.outgoing.gone(peer)

    def record(self, record: RecordChanged) -> None:
        """Handle a member's measurements (our own count alike), or their expiry."""
        self._beliefs.reports.pop(record.signer, None)
        if record.said is not None:
            self._beliefs.reports[record.signer] = record.said

    def tick(self, seats: list[SeatStatus], now: float) -> list[MembershipEffect]:
        """Sample our seats, publish measurements and revise beliefs, as far as each is due.

        A changed belief returns ``ViewChanged``."""
        if now - self._sampled >= SAMPLE_S:
            self.seated(seats, now)
        effects: list[MembershipEffect] = []
        if now - self._published >= ASIDE_S and self._membership.described:
            effects += self._publish(now)
        if now - self._revised >= REVISE_S:
            self._revised = now
            effects += self._revise()
        return effects

    def _publish(self, now: float) -> list[MembershipEffect]:
        """Publish changes at most once a minute, and the rest periodically."""
        found, stale = self._measurements(now), now - self._published >= REFRESH_S
        if not found.partners or not (stale or found != self._said):
            return []
        self._said, self._published = found, now
        return [Publish(MEASURED, found)]

    def _revise(self) -> list[MembershipEffect]:
        claims = {one.peer: claimed(one) for one in self._membership.roster.members()}
        revised = self._beliefs.revise(claims.values())
        effects: list[MembershipEffect] = []
        for one in revised:
            if one.flops > 0 and (times := claims[one.peer].flops / one.flops) >= FAR:
                words = f"{short(one.peer)} does 1/{times:.1f} of what it claims"
                effects.append(Explain("membership", words, members=(one.peer,)))
        if revised:
            effects.append(ViewChanged(None))
        return effects

    def _measurements(self, now: float) -> Measurements:
        rates: dict[PeerId, list[StageRate]] = {}
        for (peer, stage), account in sorted(self.service.accounts(now).items()):
            if account.measured_s >= MIN_SERVICE_S:
                rate = StageRate(stage, *_said(account.rate * MICRO, account.measured_s))
                rates.setdefault(peer, []).append(rate)
        partners = [
            Partner(peer, tuple(found[-MAX_RATES:]))
            for peer, found in rates.items()
            if peer != self._own
        ]
        partners.sort(key=lambda one: (sum(r.seconds for r in one.rates), one.peer), reverse=True)
        return Measurements(tuple(partners[:MAX_PARTNERS]))


def _said(rate: float, seconds: float) -> tuple[int, int]:
    """Round, so that noise is not worth a record: to two digits, and to whole minutes from one
    on."""
    rounded = two_digits(round(min(rate, MOST_RATE)))
    return rounded, int(seconds if seconds < MINUTE_S else seconds // MINUTE_S * 60)
