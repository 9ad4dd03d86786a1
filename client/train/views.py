"""The roster as other machines want to see it: by stage for the pipeline, by claim for matching."""

from __future__ import annotations

from protocol.ids import PeerId, Stage
from protocol.matching.population import Member
from protocol.membership.roster import Roster
from protocol.view import Replica, SwarmView

DEFAULT_SESSION_S = 1800.0


def swarm_view(roster: Roster, own: PeerId, stages: int) -> SwarmView:
    """Return the live replicas of every stage; a peer without a link serves nobody here."""
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
                )
                for replica in roster.replicas(stage)
                if replica.linked or replica.peer == own
            ]
            for stage in range(stages)
        ]
    )


def matching_members(roster: Roster) -> list[Member]:
    """Return the live members that offer seats, with what they claim."""
    return [
        Member(
            peer=member.peer,
            joined_at=float(member.advert.joined),
            flops=max(member.advert.flops.fp32, member.advert.flops.bf16),
            uplink_bytes_per_s=member.advert.upload_bytes_per_s,
            downlink_bytes_per_s=member.advert.download_bytes_per_s,
            memory_bytes=float(member.advert.memory_bytes),
            held=frozenset(Stage(seat.stage) for seat in member.seats),
            session_s=member.advert.session_s or DEFAULT_SESSION_S,
        )
        for member in roster.members()
        if member.advert.seats > 0
    ]
