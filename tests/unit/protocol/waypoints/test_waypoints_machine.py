"""Members certify versions; a newcomer follows the chain from the manifest, and nothing else.

Records and links are delivered at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from protocol.effects import Publish
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.limits import MAX_CERTIFIED_STAGES
from protocol.waypoints.chain import MAX_LINKS, beginning, check_link, encode_chain, parse_chain
from protocol.waypoints.machine import WaypointEffect, Waypoints
from protocol.waypoints.part import (
    PART,
    Part,
    SaidParts,
    SignedPart,
    check_said,
    encode_part,
    parse_part,
    seat_limit,
)
from protocol.wire.fields import ERA_BITS
from protocol.wire.parts import CertifiedPart, WaypointLink
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

EVERY, STEPS = 20, 1000
NOW = 100.0


def state(stage: int, version: int, run: str = "true") -> bytes:
    """The hash of a version."""
    return f"{run} {stage} {version}".encode().ljust(32, b".")


@dataclass
class WaypointWorld:
    """Volunteers by the number of their key: ``seats`` says who serves which stage.

    Everybody is told of every record, and has worked with everybody in its own and the
    neighbouring stages.
    """

    seats: list[list[int]]
    founder: int = 1
    era: int = 0
    machines: dict[int, Waypoints] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Those with whom nobody has worked."""

    def __post_init__(self) -> None:
        for number in sorted({n for stage in self.seats for n in stage}):
            self.machines[number] = self.made(number)
        self.see()

    def made(self, number: int) -> Waypoints:
        """A machine that knows only the manifest."""
        who = signer(number)
        return Waypoints(
            who.peer,
            signer(self.founder).peer,
            len(self.seats),
            EVERY,
            STEPS,
            SWARM,
            lambda part: who.sign(PART, encode_part(part), SWARM).signature,
            lambda peer: peer not in {signer(n).peer for n in self.unknown},
        )

    def see(self) -> None:
        """Everybody sees who serves what."""
        serving = [[signer(n).peer for n in stage] for stage in self.seats]
        for number, machine in list(self.machines.items()):
            self.perform(number, machine.update(self.era, serving))

    def close(self, version: int, run: str = "true", only: Iterable[int] = ()) -> None:
        """Every replica, or only some, closes the step that makes this version."""
        chosen = set(only)
        for stage, numbers in enumerate(self.seats):
            roll = [signer(n).peer for n in numbers]
            for number in numbers:
                if not chosen or number in chosen:
                    made = stage, self.era, version, state(stage, version, run), roll
                    self.perform(number, self.machines[number].closed(*made))

    def perform(self, number: int, effects: Iterable[WaypointEffect]) -> None:
        """Tell the others what one publishes."""
        for effect in effects:
            if isinstance(effect, Publish) and isinstance(effect.said, SaidParts):
                self.tell(signer(number).peer, effect.said)

    def tell(self, author: PeerId, said: SaidParts) -> None:
        """Everybody gets a record."""
        for other, machine in list(self.machines.items()):
            if signer(other).peer != author:
                self.perform(other, machine.receive(author, said))

    def versions(self) -> set[int]:
        """The ends of the members' chains."""
        return {m.newest.version if m.newest else 0 for m in self.machines.values()}

    def shown(self, to: Waypoints, chain: Iterable[WaypointLink], by: int = 2) -> None:
        """A peer shows its chain over a new link."""
        to.shown(signer(by).peer, tuple(chain), NOW)


def two_by_two() -> WaypointWorld:
    return WaypointWorld([[1, 2], [3, 4]])


def newcomer(world: WaypointWorld) -> WaypointWorld:
    """The same run, seen by somebody who knows only the manifest."""
    return WaypointWorld([[9], [9]], founder=world.founder)


def chain_of(world: WaypointWorld, number: int = 2) -> list[WaypointLink]:
    return list(world.machines[number].chain)


def test_a_record_names_every_stage_once_in_order() -> None:
    parts = [
        SignedPart(encode_part(Part(stage, 0, EVERY, state(stage, EVERY), (peer(1),))), bytes(64))
        for stage in range(3)
    ]
    check_said(SaidParts(tuple(parts[:2])), 2)
    for said in ([parts[0], parts[0]], [parts[1], parts[0]], [parts[2]]):
        with pytest.raises(RemoteProtocolError, match="out of order"):
            check_said(SaidParts(tuple(said)), 2)


class TestMaking:
    def test_a_version_that_all_have_made_is_certified_everywhere(self) -> None:
        world = two_by_two()
        for version in range(1, EVERY):
            world.close(version)
        assert world.versions() == {0}, "none is due"
        world.close(EVERY)
        assert world.versions() == {EVERY}
        newest = world.machines[3].newest
        assert newest is not None
        assert newest.hashes == (state(0, EVERY), state(1, EVERY))
        assert newest.peers == {peer(n) for n in (1, 2, 3, 4)}

    def test_the_chain_stays_short_while_the_members_stay(self) -> None:
        world = two_by_two()
        for version in range(EVERY, 10 * EVERY, EVERY):
            world.close(version)
        assert world.versions() == {9 * EVERY}
        assert len(world.machines[1].chain) == 2, "the founder's, and the newest"

    def test_a_link_carries_the_signatures_that_it_takes_and_no_more(self) -> None:
        """A majority of the six that are near; newcomers fetch and verify each one."""
        world = WaypointWorld([[1, 2, 3], [4, 5, 6]])
        for version in (EVERY, 2 * EVERY):
            world.close(version)
        for link in (machine.chain[-1] for machine in world.machines.values()):
            assert [len(part.signatures) for part in link.parts] == [4, 4]

    def test_all_may_be_replaced_one_after_the_other(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        version = EVERY
        for number in (5, 6, 7, 8):
            stage = 0 if number < 7 else 1
            gone, *stay = world.seats[stage]
            world.seats[stage] = [*stay, number]
            del world.machines[gone]
            world.machines[number] = world.made(number)
            world.shown(world.machines[number], chain_of(world, world.seats[1 - stage][0]))
            world.see()
            version += EVERY
            world.close(version)
        chain = world.machines[8].chain
        assert world.machines[8].newest is not None
        assert world.machines[8].newest.version == version
        assert len(chain) <= 5
        fresh = world.made(9)
        world.shown(fresh, chain)
        assert fresh.newest == world.machines[8].newest

    def test_too_many_gone_at_once_end_the_chain_until_witnesses_return(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        world.seats = [[2, 5], [6, 4]]
        gone = {number: world.machines.pop(number) for number in (1, 3)}
        for number in (5, 6):
            world.machines[number] = world.made(number)
            world.shown(world.machines[number], chain_of(world))
        world.see()
        world.close(2 * EVERY)
        assert world.machines[2].newest is not None
        assert world.machines[2].newest.version == EVERY, "two of four witnesses are no majority"
        world.seats = [[2, 5], [3, 4]]
        world.machines[3] = gone[3]
        world.see()
        world.close(3 * EVERY)
        assert world.machines[2].newest.version == 3 * EVERY

    def test_without_the_founder_there_is_no_first_waypoint(self) -> None:
        world = WaypointWorld([[5, 2], [3, 4]])
        world.close(EVERY)
        assert world.versions() == {0}

    def test_a_founder_that_holds_no_stage_signs_the_first_one(self) -> None:
        world = WaypointWorld([[5, 2], [3, 4], [6, 7]], founder=1)
        world.machines[1] = world.made(1)
        world.see()
        world.close(EVERY)
        assert world.versions() == {EVERY}
        del world.machines[1]
        world.close(2 * EVERY)
        assert world.versions() == {2 * EVERY}, "later ones do without it"

    def test_a_founder_without_a_stage_signs_nothing_of_which_replicas_disagree(self) -> None:
        world = WaypointWorld([[5, 2], [3, 4]], founder=1)
        world.machines[1] = world.made(1)
        world.see()
        world.close(EVERY, only=[5, 3, 4])
        world.close(EVERY, "false", only=[2])
        assert world.versions() == {0}

    def test_six_stages_are_certified_by_their_neighbours(self) -> None:
        world = WaypointWorld([[s, 10 + s] for s in range(1, 7)])
        world.close(EVERY)
        world.close(2 * EVERY)
        assert world.versions() == {2 * EVERY}

    def test_a_later_lineage_goes_on_with_the_chain(self) -> None:
        world = two_by_two()
        world.close(2 * EVERY)
        world.era = 1 << ERA_BITS
        world.see()
        world.close(EVERY)
        newest = world.machines[4].newest
        assert newest is not None
        assert (newest.era, newest.version) == (world.era, EVERY)


class TestLies:
    def test_one_of_two_replicas_cannot_certify_another_state(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        world.close(2 * EVERY, run="false", only=[4])
        world.close(2 * EVERY, only=[1, 2, 3])
        assert world.versions() == {EVERY}, "its neighbours see two replicas that disagree"
        world.seats = [[1, 2], [3]]
        world.see()
        world.close(3 * EVERY)
        assert world.machines[1].newest is not None
        assert world.machines[1].newest.version == 3 * EVERY

    def test_invented_replicas_are_not_seconded(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        world.unknown = {21, 22, 23}
        world.seats[1] += [21, 22, 23]
        for number in world.unknown:
            world.machines[number] = world.made(number)
        world.see()
        world.close(2 * EVERY, run="false", only=world.unknown)
        assert {world.machines[n].newest.version for n in (1, 2, 3, 4)} == {EVERY}  # type: ignore[union-attr]
        world.seats[1] = [3, 4]
        world.close(2 * EVERY)
        newest = world.machines[1].newest
        assert newest is not None
        assert newest.hashes[1] == state(1, 2 * EVERY)
        assert newest.peers == {peer(n) for n in (1, 2, 3, 4)}

    def test_a_forked_chain_replaces_none(self) -> None:
        """The majority of the first waypoint has signed two second ones."""
        worlds = two_by_two(), two_by_two()
        for world, run in zip(worlds, ("true", "false"), strict=True):
            world.close(EVERY)
            world.close(2 * EVERY, run=run)
        machine = worlds[0].machines[1]
        assert machine.shown(peer(9), worlds[1].machines[1].chain, NOW) == []
        assert machine.newest is not None
        assert machine.newest.hashes[0] == state(0, 2 * EVERY), "the first one stays"

    def test_a_bad_signature_is_its_authors_fault(self) -> None:
        world = two_by_two()
        part = Part(1, 0, EVERY, state(1, EVERY), (peer(4),))
        forged = SignedPart(encode_part(part), bytes(64))
        with pytest.raises(RemoteProtocolError, match="bad-signature"):
            world.machines[1].receive(peer(4), SaidParts((forged,)))
        assert world.machines[1].receive(peer(30), SaidParts((forged,))) == [], "it has no seat"

    def test_we_sign_no_other_state_though_our_record_has_expired(self) -> None:
        world, me = two_by_two(), signer(1).peer
        world.close(EVERY)
        world.machines[1].forget(me)
        other = state(0, EVERY, "other")
        assert world.machines[1].closed(0, world.era, EVERY, other, [me]) == []


class TestShowing:
    def test_an_older_chain_does_not_replace_a_newer_one(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        old = chain_of(world)
        world.close(2 * EVERY)
        fresh = world.made(9)
        world.shown(fresh, chain_of(world))
        world.shown(fresh, old, by=3)
        assert fresh.newest == world.machines[1].newest

    def test_links_that_are_ours_cost_no_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = two_by_two()
        world.close(EVERY)
        world.close(2 * EVERY)
        monkeypatch.setattr("protocol.waypoints.machine.check_link", pytest.fail)
        world.shown(world.machines[1], chain_of(world, 1))

    def test_a_chain_travels_whole_and_within_its_bound(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        (link,) = chain_of(world)
        assert parse_chain(encode_chain((link,))) == (link,)
        for bad in (encode_chain((link,) * (MAX_LINKS + 1)), b"", b"\x91" * 5000):
            with pytest.raises(RemoteProtocolError, match="chain-malformed"):
                parse_chain(bad)

    def test_replayed_links_are_verified_a_few_times_only(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        link = chain_of(world)[0]
        other = replace(link, parts=link.parts[::-1])
        fresh = world.made(9)
        refused = 0
        for _ in range(3 * MAX_LINKS):
            try:
                assert fresh.shown(peer(2), (other,), NOW) == []
            except RemoteProtocolError:
                refused += 1
        assert refused == MAX_LINKS

    def test_the_chain_of_the_disk_is_checked_too(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        again = world.made(9)
        again.restore(chain_of(world))
        assert again.newest == world.machines[1].newest
        with pytest.raises(RemoteProtocolError):
            world.made(9).restore([WaypointLink(chain_of(world)[0].parts[:1])])


BEFORE = beginning(peer(1), 2)


def first_link() -> WaypointLink:
    world = two_by_two()
    world.close(EVERY)
    return chain_of(world)[0]


def signed(body: bytes, by: int) -> CertifiedPart:
    return CertifiedPart(body, ((peer(by), signer(by).sign(PART, body, SWARM).signature),))


def of_version(part: CertifiedPart, version: int) -> bytes:
    return encode_part(replace(parse_part(part.body), version=version))


Parts = tuple[CertifiedPart, CertifiedPart]
BAD_LINKS: dict[str, tuple[Callable[[Parts], tuple[CertifiedPart, ...]], str]] = {
    "forged": (
        lambda parts: (replace(parts[0], signatures=((peer(1), bytes(64)),)), parts[1]),
        "bad-signature",
    ),
    "signed by others": (
        lambda parts: (signed(parts[0].body, by=7), parts[1]),
        "waypoint-uncertified",
    ),
    "signed twice by one": (
        lambda parts: (replace(parts[0], signatures=parts[0].signatures * 2), parts[1]),
        "waypoint-uncertified",
    ),
    "truncated": (lambda parts: parts[:1], "waypoint-absurd"),
    "reordered": (lambda parts: parts[::-1], "waypoint-absurd"),
    "of two versions": (
        lambda parts: (parts[0], signed(of_version(parts[1], 2 * EVERY), by=1)),
        "waypoint-absurd",
    ),
    "of no version": (
        lambda parts: tuple(replace(one, body=of_version(one, 0)) for one in parts),
        "waypoint-absurd",
    ),
}


class TestBadLinks:
    """Each refused by a stated rule (``check_link``)."""

    @pytest.mark.parametrize("name", BAD_LINKS)
    def test_what_no_rule_allows(self, name: str) -> None:
        change, reason = BAD_LINKS[name]
        first, second = first_link().parts
        with pytest.raises(RemoteProtocolError) as caught:
            check_link(BEFORE, WaypointLink(change((first, second))), SWARM, 2, STEPS)
        assert caught.value.reason == reason
        assert caught.value.penalty >= 20

    def test_foreign_beyond_the_run_and_replayed(self) -> None:
        link = first_link()
        with pytest.raises(RemoteProtocolError, match="bad-signature"):
            check_link(BEFORE, link, OTHER_SWARM, 2, STEPS)
        with pytest.raises(RemoteProtocolError, match="waypoint-absurd"):
            check_link(BEFORE, link, SWARM, 2, EVERY - 1)
        found = check_link(BEFORE, link, SWARM, 2, STEPS)
        assert found.version == EVERY
        with pytest.raises(RemoteProtocolError, match="waypoint-absurd"):
            check_link(found, link, SWARM, 2, STEPS)

    def test_too_few_of_many_witnesses(self) -> None:
        world = two_by_two()
        world.close(EVERY)
        world.close(2 * EVERY)
        one, two = chain_of(world)
        found = check_link(BEFORE, one, SWARM, 2, STEPS)
        few = replace(two.parts[0], signatures=two.parts[0].signatures[:2])
        with pytest.raises(RemoteProtocolError, match="waypoint-uncertified"):
            check_link(found, WaypointLink((few, two.parts[1])), SWARM, 2, STEPS)

    @pytest.mark.parametrize(("more", "reason"), [(0, "uncertified"), (1, "absurd")])
    def test_too_many_seats_of_a_run_of_many_stages(self, more: int, reason: str) -> None:
        count = MAX_CERTIFIED_STAGES
        seats = tuple(sorted(peer(n) for n in range(100, 100 + seat_limit(count) + more)))
        bodies = [encode_part(Part(s, 0, EVERY, bytes(32), seats)) for s in range(count)]
        parts = tuple(CertifiedPart(body, ((peer(7), bytes(64)),)) for body in bodies)
        with pytest.raises(RemoteProtocolError, match=f"waypoint-{reason}"):
            check_link(beginning(peer(1), count), WaypointLink(parts), SWARM, count, STEPS)

    def test_seats_out_of_order(self) -> None:
        part = Part(0, 0, EVERY, bytes(32), tuple(sorted((peer(1), peer(2)))[::-1]))
        with pytest.raises(RemoteProtocolError, match="part-absurd"):
            parse_part(encode_part(part))
