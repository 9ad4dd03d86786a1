"""A crowd of invented members, and newcomers that look for a stage meanwhile.

Every volunteer has the view that its roster, what work has proven to it and the newest waypoint
give it. The invented ones have adverts that claim a seat and great speed; they never speak.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from client.train.swarm.measuring import Measuring
from client.train.swarm.views import matching_members
from protocol.ids import PeerId, Stage
from protocol.matching.member import Member
from protocol.matching.timing import BEACON_S, LOOK_S
from protocol.membership.advert import Advert
from protocol.membership.membership import Membership
from tests.support.cases import usual
from tests.support.matching_examples import WALL_S, manifest, member, peer
from tests.support.matching_world import CALM, START_S, World
from tests.support.protocol_examples import SWARM, advert, seat

EQUAL = 1e9
HOUR_S = 3600.0
INVENTED = 10_000
"""Number of the first one."""
LATE = 5_000
"""Number of the first newcomer."""
SOON_S = 30.0


@dataclass
class Knowledge:
    """What one volunteer has heard of the others."""

    membership: Membership
    measuring: Measuring
    proven: frozenset[PeerId] = frozenset()
    """Whom its own work has proven; none: it has closed no step."""
    told: dict[PeerId, Member] = field(default_factory=dict)


class Crowded(World):
    """A run under way, whose volunteers see invented members, too."""

    def __init__(self, stages: int, seed: int) -> None:
        super().__init__(manifest(stages), seed, CALM)
        self.knowledge: dict[PeerId, Knowledge] = {}
        self.waypoint: frozenset[PeerId] = frozenset()
        """The members that the newest one names; none: there is no chain yet."""

    def begin(self) -> list[PeerId]:
        """Two volunteers a stage find their places, and work there until the first waypoint."""
        count = 2 * self.manifest.stage_count
        for number in range(count):
            self.join(member(number, seats=1, measured_s=1000.0), at=0.2 * number)
        self.run(60, until=lambda: len(self.machines) == count and self.placed())
        assert self.placed()
        working = list(self.machines)
        self.certify(working)
        return working

    def certify(self, working: Iterable[PeerId]) -> None:
        """These have closed steps together, and a waypoint names them."""
        self.waypoint = frozenset(working)
        for who in self.waypoint:
            near = (-1, 0, 1)
            held = {stage + step for stage in self.members[who].held for step in near}
            beside = (p for p in self.waypoint if not held.isdisjoint(self.members[p].held))
            self.knowledge[who].proven = frozenset(beside)

    def invent(self, count: int, first: int = 0) -> None:
        """Everybody hears of so many, each of which claims a stage in turn."""
        for number in range(first, first + count):
            stage = Stage(number % self.manifest.stage_count)
            who = member(INVENTED + number, 1000 * EQUAL, seats=1, joined_at=WALL_S - HOUR_S)
            who = replace(who, held=frozenset({stage}), home=stage)
            self.members[who.peer] = who
            for view in self.views.values():
                view[who.peer] = who
        for who in list(self.machines):
            self._see(who)

    def churn(self, oldest: int, newest: int, every_s: float) -> None:
        """One of them goes and another one comes, again and again."""
        gone = peer(INVENTED + oldest)
        self.members.pop(gone)
        for view in self.views.values():
            view.pop(gone, None)
        self.invent(1, newest)
        self.after(every_s, lambda: self.churn(oldest + 1, newest + 1, every_s))

    def newcomers(self, count: int, at: float = 0.0) -> list[PeerId]:
        """Let so many volunteers come that have worked with nobody."""
        joined = WALL_S + self.now - START_S
        found = [member(LATE + n, seats=1, joined_at=joined) for n in range(count)]
        for number, who in enumerate(found):
            self.join(who, at=number * at)
        return [who.peer for who in found]

    def have_places(self, who: Iterable[PeerId]) -> bool:
        """Whether all of these serve a stage."""
        machines = [self.machines.get(one) for one in who]
        return all(machine and machine.seats.home.state.value == "serving" for machine in machines)

    def _join(self, who: Member) -> None:
        membership = Membership(who.peer, SWARM, self.manifest.stage_count)
        knows = Knowledge(membership, Measuring(who.peer, self.manifest, membership))
        membership.is_new = lambda of: self._is_new(knows, of)
        self.knowledge[who.peer] = knows
        super()._join(who)

    def _is_new(self, knows: Knowledge, of: PeerId) -> bool:
        """As a newcomer's evidence is: what a waypoint says, until it has worked itself."""
        proven = knows.proven or self.waypoint
        return bool(proven) and of not in proven

    def _see(self, who: PeerId) -> None:
        knows, view = self.knowledge[who], self.views[who]
        roster = knows.membership.roster
        for peer_ in knows.told.keys() - view.keys():
            roster.withdraw(peer_, "it is gone")
            roster.link_down(peer_, "it is gone")
        for peer_, claims in view.items():
            if knows.told.get(peer_) != claims:
                roster.advertise(peer_, _advert(claims), 1 + len(knows.told))
                if peer_ in self.machines:
                    roster.link_up(peer_)
        knows.told = dict(view)
        own = [seat(int(stage)) for stage in view[who].held]
        knows.membership.set_seats(own, self.now)
        members = matching_members(
            roster,
            who,
            knows.measuring.believed,
            knows.membership.unproven(),
            certified=self.waypoint,
        )
        self._perform(who, self.machines[who].update_members(members, self.now))


def _advert(claims: Member) -> Advert:
    return advert(
        flops=claims.flops,
        memory_bytes=int(claims.memory_bytes),
        upload_bytes_per_s=claims.uplink_bytes_per_s,
        download_bytes_per_s=claims.downlink_bytes_per_s,
        seats=claims.seats,
        joined=int(claims.joined_at),
        serves=tuple(
            msgspec.structs.replace(seat(int(stage)), seat=int(stage == claims.second))
            for stage in claims.held
        ),
    )


def replaced(stages: int, invented: int, seed: int, *, waypoint: bool = True) -> tuple[bool, float]:
    """One volunteer is lost and another one comes; return whether it has a place, and when."""
    world = Crowded(stages, seed)
    working = world.begin()
    if not waypoint:
        world.waypoint = frozenset()
    world.invent(invented)
    world.crash(working[seed % len(working)])
    world.run(15)
    late = world.newcomers(1)
    took_s = world.run(SOON_S, until=lambda: world.have_places(late))
    return world.have_places(late), took_s


@pytest.mark.parametrize("invented", [0, 500])
@pytest.mark.parametrize(("stages", "seed"), usual(2, [(2, 0), (4, 3), (2, 1), (2, 2)]))
def test_a_newcomer_finds_its_stage_beside_a_crowd(stages: int, seed: int, invented: int) -> None:
    found, took_s = replaced(stages, invented, seed)
    assert found
    assert took_s < SOON_S / 2


def test_a_newcomer_that_knows_no_waypoint_would_wait_for_the_crowd() -> None:
    """The test before shows something only because this one ends otherwise."""
    assert replaced(2, 500, 0, waypoint=False) == (False, SOON_S)
    assert replaced(2, 0, 0, waypoint=False)[0]


def test_a_newcomer_finds_its_stage_while_the_crowd_comes_and_goes() -> None:
    """Each that comes or goes may let all stages look for places anew."""
    world = Crowded(2, seed=4)
    world.begin()
    world.invent(40)
    world.churn(0, 40, 0.3)
    late = world.newcomers(1)
    world.run(LOOK_S + SOON_S, until=lambda: world.have_places(late))
    assert world.have_places(late)


def test_stewards_of_the_next_beacon_are_none_of_the_crowd() -> None:
    world = Crowded(4, seed=6)
    working = world.begin()
    world.invent(100)
    world.run(BEACON_S)
    late = world.newcomers(2, at=1.0)
    world.run(SOON_S, until=lambda: world.have_places(late))
    assert world.have_places(late)
    for who in (*working, *late):
        notices = world.machines[who].context.board.notices(world.now)
        assert len(notices) == 4
        assert {notice.author for notice in notices.values()} <= set(working)


@pytest.mark.parametrize("stage", [0, 1, None])
def test_newcomers_find_a_place_when_those_that_a_waypoint_names_are_gone(
    stage: int | None,
) -> None:
    """All of one stage, or all of the run: then nobody is certified, and all decide again."""
    world = Crowded(2, seed=7)
    working = world.begin()
    gone = [who for who in working if stage is None or stage in world.members[who].held]
    for who in gone:
        world.crash(who)
    world.run(15)
    late = world.newcomers(4, at=0.5)
    world.run(SOON_S, until=lambda: world.have_places(late))
    assert world.have_places(late)
    assert all(world.spread())
