"""Buckets of a plan: who is dealt into which, and that each hides its members by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.secrecy.buckets import BUCKET, buckets_of
from protocol.secrecy.machine import Masking
from protocol.secrecy.shares import threshold
from protocol.wire.messages import Dealing, Opening, Plan
from protocol.wire.parts import PlanMember

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(33)]


def plan_of(members: Collection[PeerId], state: bytes = b"s" * 32, step: int = 5) -> Plan:
    return Plan(0, step, 1, [PlanMember(peer, b"") for peer in members], [0], [], state)


class TestTheDeal:
    @pytest.mark.parametrize("count", range(1, 8))
    def test_fewer_than_eight_have_one_sum(self, count: int) -> None:
        assert buckets_of(plan_of(PEERS[:count])) == ()

    @pytest.mark.parametrize("count", range(8, 33))
    def test_every_bucket_has_four_or_more_and_all_are_alike(self, count: int) -> None:
        sizes = Counter(buckets_of(plan_of(PEERS[:count])))
        assert set(sizes) == set(range(count // BUCKET))
        assert min(sizes.values()) >= BUCKET
        assert max(sizes.values()) - min(sizes.values()) <= 1

    def test_every_state_and_step_deals_anew(self) -> None:
        """Any two of twelve are in one bucket in 3 of 11 steps."""
        together = 0
        for step in range(400):
            dealt = buckets_of(plan_of(PEERS[:12], bytes([step % 251]) * 32, step))
            together += dealt[0] == dealt[1]
        assert 0.2 < together / 400 < 0.35
        assert buckets_of(plan_of(PEERS[:12], b"a" * 32)) != buckets_of(plan_of(PEERS[:12]))


class Group:
    """Replicas of one stage; all messages arrive but those of who is silent."""

    def __init__(self, count: int, plan: Plan) -> None:
        self.peers, self.plan = PEERS[:count], plan
        self.machines = {
            peer: Masking(peer, bytes([n + 1]) * 32, lambda: set(self.peers), bucketed=True)
            for n, peer in enumerate(self.peers)
        }
        for peer, machine in list(self.machines.items()):
            for effect in machine.follow(plan):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Dealing)
                self.machines[effect.peer].dealing(peer, effect.message)
        assert not any(machine.false_dealers() for machine in self.machines.values())

    def open(self, silent: Collection[PeerId] = ()) -> None:
        for peer, machine in self.machines.items():
            for effect in machine.open():
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Opening)
                if peer not in silent:
                    self.machines[effect.peer].opening(peer, effect.message)
        assert not any(machine.false_openers() for machine in self.machines.values())

    def members(self, bucket: int) -> list[PeerId]:
        dealt = zip(self.peers, buckets_of(self.plan), strict=True)
        return [peer for peer, of in dealt if of == bucket]


@pytest.mark.parametrize("count", [8, 12, 15, 32])
def test_in_each_bucket_pair_masks_cancel_and_its_members_seeds_take_out_the_rest(
    count: int,
) -> None:
    group = Group(count, plan_of(PEERS[:count]))
    group.open()
    [seeds] = {machine.seeds() for machine in group.machines.values()}
    assert seeds is not None
    own = dict(zip(group.peers, seeds, strict=True))
    for bucket in range(count // BUCKET):
        members, left = group.members(bucket), Counter[bytes]()
        for peer in members:
            masks = group.machines[peer].masks()
            assert masks is not None
            assert len(masks) == len(members)
            for seed, adds in masks:
                left[seed] += 1 if adds else -1
        left.subtract(own[peer] for peer in members)
        assert not any(left.values())


@pytest.mark.parametrize("count", [8, 12, 16])
def test_a_bucket_that_is_lost_after_the_commit_is_opened_by_the_others(count: int) -> None:
    """As many are lost as may be, and of one bucket as many as it has."""
    group = Group(count, plan_of(PEERS[:count]))
    lost = group.members(0)[: count - threshold(count)]
    group.open(silent=lost)
    [seeds] = {machine.seeds() for peer, machine in group.machines.items() if peer not in lost}
    assert seeds is not None
    assert all(seeds)


def test_members_that_deal_otherwise_do_not_agree() -> None:
    """A leader that shows them two states; the plans themselves are a proof against it."""
    plan = plan_of(PEERS[:8])
    other = next(
        found
        for n in range(9)
        if buckets_of(found := plan_of(PEERS[:8], bytes([n]) * 32)) != buckets_of(plan)
    )
    seen = {Group(8, of).machines[PEERS[0]].fingerprint() for of in (plan, other, plan)}
    assert len(seen) == 2


def test_who_deals_a_pair_mask_across_buckets_contradicts_itself() -> None:
    plan = plan_of(PEERS[:8])
    dealt = buckets_of(plan)
    last = max(at for at in range(8) if dealt[at] != dealt[0])
    one, other = (
        Masking(PEERS[at], bytes([at + 1]) * 32, lambda: set(PEERS[:8]), bucketed=True)
        for at in (0, last)
    )
    other.follow(plan)
    for effect in one.follow(plan):
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Dealing)
        if effect.peer == PEERS[last]:
            assert not effect.message.pair
            other.dealing(PEERS[0], replace(effect.message, pair=b"p" * 32))
    assert other.false_dealers() == [PEERS[0]]
