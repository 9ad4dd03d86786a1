"""What members deal, keep and open: masks cancel, one sum of a step is opened, lies are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.secrecy.machine import MAX_EARLY, Masking
from protocol.secrecy.shares import share_hash
from protocol.wire.messages import Dealing, Opening, Plan
from protocol.wire.parts import PlanMember

STAGE, STEP = 0, 5
PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(17)]
STRANGER = PEERS[16]


def plan_of(members: Collection[PeerId], attempt: int = 1, observers: tuple[str, ...] = ()) -> Plan:
    parts = [PlanMember(peer, b"") for peer in members]
    return Plan(STAGE, STEP, attempt, parts, [0], list(observers))


class Group:
    """Replicas of one stage whose messages a test delivers, or does not."""

    def __init__(self, count: int) -> None:
        self.peers = PEERS[:count]
        self.there = set(self.peers)
        self.machines = {
            peer: Masking(peer, bytes([n + 1]) * 32, lambda: self.there)
            for n, peer in enumerate(self.peers)
        }

    def deal(self, plan: Plan, *, silent: Collection[PeerId] = ()) -> None:
        """All members follow a plan; the dealings of some are lost."""
        said = [
            (peer, effect)
            for peer, machine in self.machines.items()
            for effect in machine.follow(plan)
        ]
        for sender, effect in said:
            assert isinstance(effect, Send)
            assert isinstance(effect.message, Dealing)
            if sender not in silent and effect.peer in self.machines:
                self.machines[effect.peer].dealing(sender, effect.message)
        for machine in self.machines.values():
            assert machine.false_dealers() == []

    def open(self, *, silent: Collection[PeerId] = ()) -> None:
        """The attempt is committed; the openings of some are lost."""
        for peer, machine in self.machines.items():
            for effect in machine.open():
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Opening)
                if peer not in silent:
                    self.machines[effect.peer].opening(peer, effect.message)
        for machine in self.machines.values():
            assert machine.false_openers() == []


@pytest.mark.parametrize("count", [3, 4, 8, 16])
def test_pair_masks_cancel_and_the_seeds_take_out_the_rest(count: int) -> None:
    group = Group(count)
    group.deal(plan_of(group.peers))
    left: Counter[bytes] = Counter()
    for machine in group.machines.values():
        masks = machine.masks()
        assert masks is not None
        assert len(masks) == count
        assert all(masks)
        for seed, adds in masks:
            left[seed] += 1 if adds else -1
    group.open()
    [seeds] = {machine.seeds() for machine in group.machines.values()}
    assert seeds is not None
    left.subtract(seeds)
    assert not any(left.values())
    assert len({machine.fingerprint() for machine in group.machines.values()}) == 1


def test_no_seed_is_ever_used_twice() -> None:
    group, seeds = Group(4), []
    for step in range(3):
        for attempt in range(1, 4):
            group.deal(replace(plan_of(group.peers, attempt), step=STEP + step))
            for machine in group.machines.values():
                seeds += [seed for seed, _ in machine.masks() or ()]
        for machine in group.machines.values():
            machine.start_step()
    assert max(Counter(seeds).values()) == 2  # of a pair, each has the seed
    assert len(seeds) == 9 * 4 * 4


@pytest.mark.parametrize(("count", "lost"), [(4, 1), (8, 1), (8, 2), (16, 2), (16, 5)])
def test_those_who_are_left_open_what_is_committed(count: int, lost: int) -> None:
    group = Group(count)
    group.deal(plan_of(group.peers))
    group.open(silent=group.peers[:lost])
    [seeds] = {group.machines[peer].seeds() for peer in group.peers[lost:]}
    assert seeds is not None
    assert all(seeds)


@pytest.mark.parametrize(("count", "lost"), [(4, 2), (8, 3), (16, 6)])
def test_too_few_open_nothing_and_say_so(count: int, lost: int) -> None:
    group = Group(count)
    group.deal(plan_of(group.peers))
    group.open(silent=group.peers[:lost])
    machine = group.machines[group.peers[-1]]
    assert machine.seeds() is None
    assert machine.closed_to() == group.peers[:lost]
    assert not machine.is_lost()
    group.there -= set(group.peers[:lost])
    assert machine.is_lost()


def test_nobody_masks_before_all_have_dealt() -> None:
    group = Group(4)
    group.deal(plan_of(group.peers), silent=[group.peers[2]])
    for peer in (0, 1, 3):
        machine = group.machines[group.peers[peer]]
        assert machine.masks() is None
        assert machine.fingerprint() is None
        assert machine.missing() == [group.peers[2]]


def test_shares_are_shown_for_one_attempt_of_a_step() -> None:
    group = Group(4)
    group.deal(plan_of(group.peers))
    group.open()
    for machine in group.machines.values():
        assert not machine.may_follow(plan_of(group.peers, 2))
        assert machine.open() == []


def test_shares_are_shown_again_for_that_attempt_only() -> None:
    group = Group(4)
    group.deal(plan_of(group.peers))
    machine, other = group.machines[group.peers[0]], group.peers[1]
    assert machine.show_again(other) == []
    shown = machine.open()
    assert len(shown) == 3
    assert machine.show_again(other) == [one for one in shown if one.peer == other]
    assert not machine.show_again(group.peers[0])
    machine.follow(plan_of(group.peers, 2))
    assert machine.show_again(other) == []


def test_who_deals_for_a_later_attempt_opens_no_earlier_one() -> None:
    group = Group(4)
    group.deal(plan_of(group.peers))
    machine = group.machines[group.peers[0]]
    machine.open()
    for later, peer in enumerate(group.peers[1:], 1):
        [to_us] = [
            one.message
            for one in group.machines[peer].follow(plan_of(group.peers, 2))
            if one.peer == group.peers[0]
        ]
        machine.dealing(peer, to_us)
        assert machine.is_lost() == (later >= 2), "of four three are needed"


def test_an_observer_opens_the_sum_and_shows_nothing() -> None:
    group = Group(4)
    watcher = PEERS[9]
    group.machines[watcher] = Masking(watcher, b"w" * 32, lambda: group.there)
    group.deal(plan_of(group.peers, observers=(watcher,)))
    group.open()
    seeds = group.machines[watcher].seeds()
    assert seeds == group.machines[group.peers[0]].seeds()
    assert seeds is not None


class TestPlans:
    @pytest.mark.parametrize(
        ("members", "seen", "follows"),
        [
            (3, 3, True),
            (3, 4, True),
            (2, 2, False),
            (4, 6, False),
            (5, 6, True),
            (14, 16, False),
            (15, 16, True),
        ],
    )
    def test_a_plan_hides_us_among_all_siblings_but_one(
        self, members: int, seen: int, follows: bool
    ) -> None:
        machine = Masking(PEERS[0], b"s" * 32, lambda: set(PEERS[:seen]))
        assert machine.may_follow(plan_of(PEERS[:members])) is follows

    def test_who_only_claims_to_serve_need_not_be_named(self) -> None:
        seen, roll = set(PEERS[:8]), set(PEERS[:5])
        machine = Masking(PEERS[0], b"s" * 32, lambda: seen, lambda: roll)
        assert machine.may_follow(plan_of(PEERS[:5]))
        assert machine.may_follow(plan_of(PEERS[1:8]))
        assert not machine.may_follow(plan_of(PEERS[2:8]))
        seen -= set(PEERS[3:5])  # they are lost
        assert machine.may_follow(plan_of(PEERS[:3]))

    def test_invented_members_do_not_hide_us(self) -> None:
        machine = Masking(PEERS[0], b"s" * 32, lambda: set(PEERS[:4]))
        assert not machine.may_follow(plan_of([*PEERS[:4], STRANGER]))

    def test_a_member_named_twice_counts_once(self) -> None:
        machine = Masking(PEERS[0], b"s" * 32, lambda: set(PEERS[:2]))
        assert not machine.may_follow(plan_of([PEERS[0], PEERS[1], PEERS[1]]))


class TestLies:
    def dealt(self) -> tuple[Group, Plan, Dealing]:
        """Before anything is delivered: what the first member deals to the last."""
        group = Group(4)
        plan = plan_of(group.peers)
        for peer, machine in group.machines.items():
            for effect in machine.follow(plan):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Dealing)
                if peer == PEERS[0] and effect.peer == PEERS[3]:
                    said = effect.message
        return group, plan, said

    @pytest.mark.parametrize("change", ["share", "pair", "no pair", "hashes", "too few"])
    def test_a_dealing_that_contradicts_itself(self, change: str) -> None:
        group, _, said = self.dealt()
        changed = {
            "share": {"share": bytes(17)},
            "pair": {"pair": b"short"},
            "no pair": {"pair": b""},
            "hashes": {"hashes": tuple(reversed(said.hashes))},
            "too few": {"hashes": said.hashes[:3]},
        }[change]
        machine = group.machines[PEERS[3]]
        machine.dealing(PEERS[0], replace(said, **changed))  # type: ignore[arg-type]
        assert machine.false_dealers() == [PEERS[0]]
        assert PEERS[0] in machine.missing()

    def test_the_first_dealing_stands_and_a_replay_of_another_attempt_is_nothing(self) -> None:
        group, plan, said = self.dealt()
        machine = group.machines[PEERS[3]]
        machine.dealing(PEERS[0], said)
        machine.dealing(PEERS[0], replace(said, pair=bytes(32)))
        assert machine.false_dealers() == []
        masks = [peer for peer in group.peers if peer not in machine.missing()]
        assert masks == [PEERS[0], PEERS[3]]
        machine.follow(replace(plan, attempt=2))
        assert machine.false_dealers() == []
        assert PEERS[0] in machine.missing()  # what was dealt for attempt 1 counts for no other

    def test_strangers_deal_nothing(self) -> None:
        group, _, said = self.dealt()
        machine = group.machines[PEERS[3]]
        machine.dealing(STRANGER, said)
        assert machine.false_dealers() == []
        assert STRANGER not in machine.missing()

    def test_shares_that_were_not_dealt_are_seen(self) -> None:
        group = Group(4)
        group.deal(plan_of(group.peers))
        liar, machine = group.peers[1], group.machines[group.peers[0]]
        machine.open()
        for effect in group.machines[liar].open():
            assert isinstance(effect, Send)
            assert isinstance(effect.message, Opening)
            true = effect.message
        machine.opening(liar, replace(true, shares=(bytes(17), *true.shares[1:])))
        assert machine.false_openers() == [liar]
        assert machine.seeds() is None

    def test_a_false_dealer_counts_for_nothing_whichever_shares_are_here(self) -> None:
        """The dealer publishes what it deals, but it deals no seed: all agree that it has none."""
        group = Group(4)
        plan = plan_of(group.peers)
        liar, shares = group.peers[0], [bytes([n]) * 17 for n in range(4)]
        hashes = tuple(share_hash(share, place) for place, share in enumerate(shares))
        for peer, machine in group.machines.items():
            for effect in machine.follow(plan):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Dealing)
                said = effect.message
                if peer == liar:
                    share = shares[group.peers.index(effect.peer)]
                    said = replace(said, hashes=hashes, share=share)
                group.machines[effect.peer].dealing(peer, said)
        honest = [group.machines[peer] for peer in group.peers[1:]]
        assert all(machine.false_dealers() == [] for machine in honest)
        openings = {}
        for peer, machine in zip(group.peers[1:], honest, strict=True):
            for effect in machine.open():
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Opening)
                openings[peer] = effect.message
        for machine in honest:
            for peer, said_then in openings.items():
                machine.opening(peer, said_then)
            assert machine.false_openers() == []
        [seeds] = {machine.seeds() for machine in honest}
        assert seeds is not None
        assert seeds[0] == b""
        assert all(seeds[1:])

    def test_a_flood_of_attempts_displaces_only_its_sender(self) -> None:
        group, _, said = self.dealt()
        machine = group.machines[PEERS[3]]
        machine.dealing(PEERS[0], said)
        for attempt in range(2, 100):
            machine.dealing(PEERS[1], replace(said, attempt=attempt))
        assert len(machine._dealings) == MAX_EARLY + 1
        assert machine.false_dealers() == []
        assert PEERS[0] not in machine.missing()
