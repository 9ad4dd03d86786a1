"""The roster as other machines want to see it: by stage for the pipeline, by claim for matching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from client.train.measuring import Measuring
from protocol.address import parse_address
from protocol.ids import PeerId, Stage
from protocol.matching.exchange.registry import CHAIR_STAGE
from protocol.matching.machine import Matching
from protocol.matching.member import Member
from protocol.matching.timing import MAX_SESSION_S
from protocol.membership.roster import Roster
from protocol.membership.shared import WHOLE
from protocol.membership.view import Member as LiveMember
from protocol.restore.stored import Lineage
from protocol.view import Replica, SwarmView

UNKNOWN = (0.0, 0.0)


def swarm_view(
    roster: Roster, lines: Mapping[PeerId, tuple[float, float]], own: PeerId, stages: int, era: int
) -> SwarmView:
    """Return the live replicas of every stage in one lineage; a peer without a link serves nobody
    here, and one of another era is not there. ``lines``: uplink and downlink in bytes/s."""
    return SwarmView.of(
        [
            [
                Replica(
                    peer=replica.peer,
                    version=replica.seat.version,
                    serving=replica.seat.state == "serving",
                    attempt=replica.seat.attempt,
                    digest=replica.seat.digest,
                    rate=replica.seat.rate,
                    leaving=replica.seat.leaving,
                    moved=replica.seat.moved,
                    uplink_bytes_per_s=lines.get(replica.peer, UNKNOWN)[0],
                    downlink_bytes_per_s=lines.get(replica.peer, UNKNOWN)[1],
                )
                for replica in roster.replicas(stage)
                if (replica.linked or replica.peer == own) and replica.seat.era == era
            ]
            for stage in range(stages)
        ]
    )


def hosts(roster: Roster) -> dict[PeerId, str]:
    """Return the host that each member says it listens at: its machine, near enough."""
    found = {}
    for peer in roster.live():
        for text in roster.addresses(peer)[:1]:
            with suppress(ValueError):
                found[peer] = parse_address(text).host
    return found


def eras_served(roster: Roster, stages: int, own: PeerId) -> Counter[int]:
    """Count the serving seats of others by their era."""
    return Counter(
        replica.seat.era
        for stage in range(stages)
        for replica in roster.serving(stage)
        if replica.linked and replica.peer != own
    )


def era_followed(lineage: Lineage | None, roster: Roster, stages: int, own: PeerId) -> int:
    """Return the era of our lineage; for a mere observer that of most seats that serve, or 0."""
    if lineage is not None:
        return lineage.era
    eras = eras_served(roster, stages, own)
    return max(eras, key=lambda era: (eras[era], era), default=0)


def matching_members(roster: Roster, measuring: Measuring, wall: float) -> list[Member]:
    """Return the live members that offer seats: their claims as partners' measurements leave them,
    and their time of joining as our memory leaves it (``wall``: Unix seconds)."""
    measuring.tenure.saw(roster.live(), wall)
    return [_member(member, measuring) for member in roster.members() if member.advert.seats > 0]


def may_speak(matching: Matching | None, subject: str, peer: PeerId, now: float) -> bool:
    """Whether a peer may be believed about a stage, or about all of them (stage 0 decides)."""
    stage = CHAIR_STAGE if subject == WHOLE else Stage(int(subject))
    return matching is not None and matching.may_speak(peer, stage, now)


def _member(member: LiveMember, measuring: Measuring) -> Member:
    advert, belief = member.advert, measuring.believed(member)
    return Member(
        peer=member.peer,
        joined_at=measuring.tenure.joined_at(member.peer, float(advert.joined)),
        flops=belief.flops,
        uplink_bytes_per_s=belief.uplink_bytes_per_s,
        downlink_bytes_per_s=belief.downlink_bytes_per_s,
        memory_bytes=float(advert.memory_bytes),
        held=frozenset(Stage(seat.stage) for seat in member.seats),
        measured_s=belief.measured_s,
        session_s=min(advert.session_s or MAX_SESSION_S, MAX_SESSION_S),  # more is no difference
        ineligible=frozenset(map(Stage, advert.unable)),
        seats=advert.seats,
        home=_stage_of_seat(member, 0),
        second=_stage_of_seat(member, 1),
        fetching=frozenset(Stage(s.stage) for s in member.seats if s.state == "fetching"),
    )


def _stage_of_seat(member: LiveMember, number: int) -> Stage | None:
    """Return the stage of a seat; during a move, when there are two, the one that serves."""
    found = [seat for seat in member.seats if seat.seat == number]
    found.sort(key=lambda seat: seat.state != "serving")
    return Stage(found[0].stage) if found else None
