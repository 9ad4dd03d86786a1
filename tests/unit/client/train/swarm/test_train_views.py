"""The seats' and the restore machine's views of the roster, in swarms too large for a full mesh."""

from collections.abc import Iterable

import pytest

from client.train.swarm.measuring import Measuring
from client.train.swarm.views import (
    eras_served,
    live_members,
    matching_members,
    swarm_view,
)
from protocol.ids import PeerId
from protocol.membership.roster import FULL_MESH_UP_TO, Roster
from tests.support.protocol_examples import advert, manifest, peer, seat

ME = peer(0)


def linked_as_wanted(members: dict[PeerId, int], own: PeerId = ME) -> Roster:
    """Everybody serves; the links are those that are wanted."""
    roster = Roster(own)
    for other, stage in members.items():
        roster.advertise(other, advert(serves=(seat(stage, 27),)), 1)
    roster.heard(own, [seat(members[own], 27)])
    for other in roster.neighbours():
        roster.link_up(other)
        roster.heard(other, [seat(members[other], 27)])
    return roster


def lose(roster: Roster, others: Iterable[PeerId]) -> None:
    for other in others:
        roster.link_down(other, "connection reset")


@pytest.mark.parametrize(("stages", "replicas"), [(16, 2), (24, 4), (40, 3), (96, 2), (2, 60)])
def test_no_stage_of_a_healthy_swarm_seems_empty_to_anybody(stages: int, replicas: int) -> None:
    members = {peer(n): n % stages for n in range(stages * replicas)}
    for own in list(members)[: min(stages, 12)]:
        roster = linked_as_wanted(members, own)
        view = swarm_view(roster, stages, 0)
        assert view.empty_stages() == ()
        assert live_members(roster, own) == frozenset(members)


def test_a_stage_of_which_all_are_lost_is_empty_whether_linked_or_not() -> None:
    stages = 24
    members = {peer(n): n % stages for n in range(stages * 4)}
    roster = linked_as_wanted(members)
    holders = [other for other, stage in members.items() if stage == 12]
    linked = [other for other in holders if other in roster.neighbours()]
    assert 0 < len(linked) < len(holders)
    lose(roster, linked)
    assert swarm_view(roster, stages, 0).empty_stages() == ()  # the others may be there
    assert [other for other in roster.neighbours() if other in holders]  # and are called now
    lose(roster, [other for other in holders if other not in linked])
    assert swarm_view(roster, stages, 0).empty_stages() == (12,)
    assert not live_members(roster, ME) & set(holders)


def test_in_a_full_mesh_who_has_no_link_is_not_there() -> None:
    members = {peer(n): n % 4 for n in range(FULL_MESH_UP_TO - 1)}
    roster = linked_as_wanted(members)
    for other in (other for other, stage in members.items() if stage == 2):
        roster.link_down(other, "closed")
    assert swarm_view(roster, 4, 0).empty_stages() == (2,)
    assert len(live_members(roster, ME)) == sum(stage != 2 for stage in members.values())


def test_how_far_the_others_are_and_in_which_lineage() -> None:
    roster = Roster(ME)
    for n, (era, version) in enumerate([(0, 7), (0, 9), (5, 3), (8, 40), (9, 2)], start=1):
        roster.advertise(peer(n), advert(serves=(seat(n % 2, version),)), 1)
        roster.link_up(peer(n))
        roster.heard(peer(n), [seat(n % 2, version, era=era)])
    roster.heard(ME, [seat(0, 50, era=5)])
    roster.heard(peer(5), [seat(1, 2, era=9, state="fetching")])
    lose(roster, [peer(4)])
    assert eras_served(roster, ME) == {peer(1): {0: 7}, peer(2): {0: 9}, peer(3): {5: 3}}


def matched(roster: Roster, unproven: Iterable[PeerId] = ()) -> dict[PeerId, bool]:
    """Return whom the matching counts, and whether they may decide."""
    members = matching_members(roster, ME, Measuring(ME, manifest(), None), {*unproven})
    return {member.peer: member.may_decide for member in members}


def test_the_matching_counts_nobody_whom_we_shut_out_although_others_pass_its_adverts_on() -> None:
    roster = linked_as_wanted({peer(n): n % 2 for n in range(4)})
    assert matched(roster) == {peer(n): True for n in range(4)}
    roster.link_down(peer(3), "banned")
    roster.advertise(peer(3), advert(serves=(seat(1, 28),)), 2)
    assert roster.member(peer(3)) is not None
    assert matched(roster) == {peer(n): True for n in range(3)}


def test_the_matching_knows_whom_the_newest_waypoint_names() -> None:
    roster = linked_as_wanted({peer(n): n % 2 for n in range(4)})
    measuring = Measuring(ME, manifest(), None)
    members = matching_members(roster, ME, measuring, certified={peer(2), peer(9)})
    assert [member.peer for member in members if member.certified] == [peer(2)]


def test_the_matching_knows_what_a_member_cannot_serve() -> None:
    roster = linked_as_wanted({peer(n): n % 2 for n in range(2)})
    roster.advertise(peer(1), advert(unable=(0,)), 2)
    members = matching_members(roster, ME, Measuring(ME, manifest(), None))
    assert {m.peer: m.ineligible for m in members} == {peer(0): frozenset(), peer(1): {0}}


def test_seats_become_home_second_and_fetching() -> None:
    roster = linked_as_wanted({peer(n): n for n in range(2)})
    roster.heard(peer(1), [seat(1, seat=0), seat(2, seat=1, state="fetching")])
    view = matching_members(roster, ME, Measuring(ME, manifest(), None))
    (member,) = [one for one in view if one.peer == peer(1)]
    assert (member.home, member.second, member.fetching) == (1, 2, {2})
    assert member.seats == 2


def test_who_is_unproven_decides_nothing_and_still_counts() -> None:
    roster = linked_as_wanted({peer(n): n % 2 for n in range(4)})
    assert matched(roster, [peer(3)]) == {peer(n): n != 3 for n in range(4)}
