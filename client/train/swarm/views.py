"""Views of the roster for other machines: by stage for the pipeline, by claim for matching."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from protocol.address import parse_address
from protocol.ids import PeerId, Stage
from protocol.matching.member import Member
from protocol.matching.relatives import mark_of_host, mark_of_path
from protocol.membership.roster import Roster
from protocol.membership.view import Member as LiveMember
from protocol.recovery.stored import Lineage
from protocol.view import Replica, SwarmView
from protocol.wire.parts import SeatStatus


def swarm_view(
    roster: Roster, stages: int, era: int, relayed: frozenset[PeerId] = frozenset()
) -> SwarmView:
    """Return the live replicas of every stage in one lineage: those of linked peers. The link of
    relayed ones goes through a relay."""
    seen: list[list[Replica]] = [[] for _ in range(stages)]
    for member in roster.linked():
        for seat in member.seats:
            if seat.era == era:
                seen[seat.stage].append(_replica(member, seat))
    empty = {s for s, there in enumerate(seen) if not any(replica.serving for replica in there)}
    unlinked = roster.unlinked() if empty else frozenset[PeerId]()
    unseen = {
        stage
        for stage in empty
        for held in roster.serving(stage)
        if held.seat.era == era and held.peer in unlinked
    }
    return SwarmView.of(seen, frozenset(unseen), relayed)


def _replica(member: LiveMember, seat: SeatStatus) -> Replica:
    advert = member.advert
    return Replica(
        peer=member.peer,
        version=seat.version,
        serving=seat.state == "serving",
        rate=seat.rate,
        leaving=seat.leaving,
        returned=seat.returned,
        moved=seat.moved,
        missing=tuple(map(PeerId, seat.missing)),
        audited=tuple(map(PeerId, seat.audited)),
        uplink_bytes_per_s=advert.upload_bytes_per_s,
        downlink_bytes_per_s=advert.download_bytes_per_s,
    )


def live_members(roster: Roster, own: PeerId) -> frozenset[PeerId]:
    """Return the members that we take for live, ourselves included: those with a link to us, and,
    in a swarm too large to link with all, those with a valid advert."""
    linked = {member.peer for member in roster.linked()}
    return frozenset({own} | linked | roster.unlinked())


def hosts(roster: Roster) -> dict[PeerId, str]:
    """Return the host in each member's addresses, which identifies its machine closely enough."""
    found = {}
    for peer in roster.live():
        for text in roster.addresses(peer)[:1]:
            with suppress(ValueError):
                found[peer] = parse_address(text).host
    return found


def eras_served(roster: Roster, own: PeerId) -> dict[PeerId, dict[int, int]]:
    """Return the newest version of serving seats by peer and era, of linked peers other than
    ``own``."""
    eras = dict[PeerId, dict[int, int]]()
    for member in roster.linked():
        for seat in member.seats:
            if seat.state == "serving" and member.peer != own:
                of = eras.setdefault(member.peer, {})
                of[seat.era] = max(seat.version, of.get(seat.era, 0))
    return eras


def era_followed(lineage: Lineage | None, roster: Roster, own: PeerId) -> int:
    """Return the era of our lineage; for an observer (None) that in which most members serve, or
    0."""
    if lineage is not None:
        return lineage.era
    eras = Counter(era for served in eras_served(roster, own).values() for era in served)
    return max(eras, key=lambda era: (eras[era], era), default=0)


def matching_members(
    roster: Roster,
    own: PeerId,
    believed: Callable[[Member], Member],
    unproven: Collection[PeerId] = (),
    path_of: Callable[[PeerId], Sequence[PeerId]] = lambda _peer: (),
    certified: Collection[PeerId] = (),
) -> list[Member]:
    """Return the members that we take for live and that offer seats: their claims corrected by
    partners' measurements.

    A peer that we banned or cannot link with is left out, even if others relay its adverts.

    Args:
        believed: returns a member with the speed that is believed of it.
        unproven: members without a vote, because we have never worked with them.
        path_of: the members below the founder on a member's chain of vouches; empty: not known.
        certified: members that the newest waypoint names.
    """
    live = live_members(roster, own)
    return [
        replace(
            believed(claimed(member)),
            may_decide=member.peer not in unproven,
            certified=member.peer in certified,
            marks=_marks(member, path_of(member.peer)),
        )
        for member in roster.members()
        if member.advert.seats > 0 and member.peer in live
    ]


def _marks(member: LiveMember, path: Sequence[PeerId]) -> frozenset[str]:
    found = {_mark_of(text) for text in member.advert.addresses} | {mark_of_path(path)}
    return frozenset(mark for mark in found if mark is not None)


@lru_cache(maxsize=2**14)
def _mark_of(address: str) -> str | None:
    try:
        return mark_of_host(parse_address(address).host)
    except ValueError:
        return None


def claimed(member: LiveMember) -> Member:
    """Return a member as it describes itself."""
    advert = member.advert
    return Member(
        peer=member.peer,
        joined_at=float(advert.joined),
        flops=advert.flops,
        uplink_bytes_per_s=advert.upload_bytes_per_s,
        downlink_bytes_per_s=advert.download_bytes_per_s,
        memory_bytes=float(advert.memory_bytes),
        held=frozenset(Stage(seat.stage) for seat in member.seats),
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
