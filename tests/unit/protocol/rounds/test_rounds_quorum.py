"""The side that may close a step when the swarm is split."""

import itertools
import math
from collections.abc import Iterable

import pytest

from protocol.decree.decree import electors
from protocol.ids import PeerId, peer_id_from_key, rank, short
from protocol.limits import MAX_ELECTORS
from protocol.membership.contacts import DEAD_AFTER_S, MAX_CONTACTS, Contacts
from protocol.pace import HEARD_S
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.view import Replica, SwarmView
from protocol.wire.messages import LedgerReport
from tests.support.rounds import leader_of
from tests.support.seats import view_of

PEERS = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(6))
ME, OTHER, THIRD, *_ = PEERS
STAGE = 1


def hear(contacts: Contacts, other: PeerId, stages: Iterable[int], now: float) -> None:
    """A heartbeat comes that was sent when our own had just arrived there."""
    seq = round(now * 1000)
    contacts.said(seq, now)
    contacts.heard(other, stages, seq, now)


def hearing(*others: PeerId, at: float = 10.0) -> Contacts:
    """The knowledge of one that has just heard these."""
    contacts = Contacts()
    for other in others:
        hear(contacts, other, (STAGE,), at)
    return contacts


def contacts_of(
    me: PeerId, side: set[PeerId], *, since: float, now: float, everybody: list[PeerId]
) -> Contacts:
    """The knowledge of ``me`` at ``now`` if a split at ``since`` left it with ``side``."""
    contacts = Contacts()
    others = [peer for peer in everybody if peer != me]
    for other in others:
        hear(contacts, other, (STAGE,), since)
    for second in range(1, math.ceil(now - since)):
        contacts.said(-second, since + second)
    for other in others:
        if other in side:
            hear(contacts, other, (STAGE,), now)
    return contacts


def quorum(me: PeerId, contacts: Contacts, everybody: list[PeerId]) -> Quorum:
    made = Quorum(me, STAGE, contacts)
    made.settle(everybody, everybody, 1, 100.0)
    return made


def may_close(me: PeerId, side: set[PeerId], everybody: list[PeerId], after_s: float) -> bool:
    contacts = contacts_of(me, side, since=100.0, now=100.0 + after_s, everybody=everybody)
    made = quorum(me, contacts, everybody)
    now = 100.0 + after_s
    return bool(made.holds(now) and made.may_go_on_without(set(everybody) - side, now))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_some_suffice_if_they_could_close_the_step_alone(count: int) -> None:
    electing = PEERS[:count]
    made = quorum(electing[0], Contacts(), electing)
    first = min(electing, key=lambda peer: rank("elector", peer))
    for size in range(count + 1):
        for some in itertools.combinations(electing, size):
            most = 2 * size > count or (2 * size == count and first in some)
            assert made.suffice({*some, PEERS[5]}) is most


def test_a_majority_may_depend_on_one() -> None:
    electing, contacts, now = PEERS[:3], Contacts(), 100.0
    me, other, third = electing
    made = quorum(me, contacts, electing)
    assert not made.needs(other, (), now), "it is not heard"
    hear(contacts, other, (STAGE,), now)
    assert made.needs(other, (), now)
    assert not made.needs(third, (), now)
    assert not made.needs(PEERS[4], (), now), "it is no elector"
    hear(contacts, third, (STAGE,), now)
    assert not made.needs(other, (), now)
    assert made.needs(other, {third}, now)
    assert made.needs(other, {other, third}, now), "to let it back"
    hear(contacts, other, (STAGE,), now + HEARD_S)
    assert made.needs(other, (), now + HEARD_S), "the third one hears us no more"


def test_one_that_has_ended_still_counts_and_most_that_have_end_the_lineage() -> None:
    """It may come back, and vote for what those decree who believe it alive."""
    contacts = Contacts()
    made = quorum(PEERS[0], contacts, PEERS[:3])
    for peer in PEERS[1:3]:
        hear(contacts, peer, (STAGE,), 100.0)
    contacts.left(PEERS[1])
    assert made.suffice({PEERS[0], PEERS[1]})
    assert made.ended() == 0
    contacts.left(PEERS[2])
    assert not made.suffice({PEERS[0]})
    assert made.ended() == 3
    assert made.may_roll_back(100.0)


def test_electors_that_follow_a_later_lineage_do_not_come_back() -> None:
    """One went on alone, cut off; those that it left are too few, and no process has ended."""
    left = set[PeerId]()
    made = Quorum(PEERS[0], STAGE, Contacts(), left.__contains__)
    made.settle(PEERS[:3], PEERS[:3], 1, 100.0)
    left.add(PEERS[1])
    assert made.ended() == 0
    left.add(PEERS[2])
    assert made.ended() == 3


def test_who_gives_this_stage_up_and_keeps_the_one_beside_it_is_no_elector() -> None:
    """The others do not know it as one: they would refuse each other's plans."""
    made = quorum(ME, Contacts(), PEERS[:3])
    here = [Replica(p, 0, True, leaving=p == OTHER) for p in PEERS[:3]]
    beside = [Replica(OTHER, 0, True), Replica(PEERS[3], 0, True)]
    named = made.choose(PEERS[:3], (OTHER, PEERS[3]), SwarmView.of([beside, here]))
    assert set(named) == {ME, THIRD, PEERS[3]}


def test_a_refusal_says_what_is_missing() -> None:
    me, *others = PEERS[:3]
    now = 100.0 + DEAD_AFTER_S + 1
    alone = quorum(me, contacts_of(me, {me}, since=100.0, now=now, everybody=PEERS[:3]), PEERS[:3])
    assert alone.holds(now).reason == "1 of 3 electors are in touch with us, too few"
    assert alone.may_roll_back(now).reason == "1 of 3 electors are within reach, too few"
    missing = quorum(me, Contacts(), PEERS[:3]).may_go_on_without(others, 100.0)
    assert missing.reason == f"{short(min(others))} is missing, and not lost yet"
    made = leader_of(Place(me, STAGE, 2, 1), 64, 0, quorum=alone)
    made.update_view(view_of(0, [], [me]), True, now)
    made.report(me, LedgerReport(STAGE, 0, 1, b"\1", b"\0", 0), now)
    assert made.refused == made.may_plan.reason == alone.holds(now).reason


class TestSplit:
    @pytest.mark.parametrize("count", range(2, 7))
    def test_one_side_at_most_goes_on(self, count: int) -> None:
        everybody = PEERS[:count]
        for size in range(1, count):
            for chosen in itertools.combinations(everybody, size):
                one, other = set(chosen), set(everybody) - set(chosen)
                sides = [
                    may_close(min(side), side, everybody, after_s)
                    for side in (one, other)
                    for after_s in (DEAD_AFTER_S + 1,)
                ]
                assert sum(sides) == 1, "an even split is decided by the first by rank"

    def test_nobody_goes_on_without_others_before_they_have_stopped(self) -> None:
        side, everybody = set(PEERS[:4]), PEERS
        after_s = (HEARD_S + DEAD_AFTER_S) / 2
        assert not may_close(PEERS[0], side, everybody, after_s), "they are silent, not lost"
        assert not may_close(PEERS[5], set(PEERS[4:]), everybody, after_s), "and do not count us"


class TestEvidence:
    def test_half_of_a_swarm_may_be_killed_at_once_unless_the_first_is_among_it(self) -> None:
        everybody = PEERS
        for dead in itertools.combinations(everybody, 3):
            me = next(p for p in everybody if p not in dead)
            contacts = Contacts()
            for other in everybody:
                if other != me:
                    hear(contacts, other, (STAGE,), 10.0)
            for peer in dead:
                contacts.closed(peer, by_peer=True, now=10.1)
            made = quorum(me, contacts, everybody)
            first = min(everybody, key=lambda peer: rank("elector", peer))
            assert bool(made.holds(10.2)) == (first not in dead)
            assert made.ended() == (0 if first not in dead else len(everybody))
            assert made.may_go_on_without(dead, 10.2)

    def test_what_waited_while_we_were_paused_proves_nothing(self) -> None:
        """It comes all at once on waking: heartbeats of a time when we still counted, then the end
        of a link that was given up because of our silence."""
        contacts = hearing(OTHER)
        contacts.heard(OTHER, (STAGE,), 10_000, 20.0)
        assert not contacts.present(OTHER, 20.0)
        contacts.closed(OTHER, by_peer=True, now=20.0)
        assert not contacts.is_gone(OTHER)
        assert not quorum(ME, contacts, PEERS[:3]).holds(20.0)

    def test_all_know_once_those_in_touch_have_acknowledged_it(self) -> None:
        contacts = hearing(OTHER, THIRD)
        contacts.said(1, 11.0)
        contacts.heard(OTHER, (STAGE,), 1, 11.5)
        assert not contacts.all_know(10.5, 11.5)
        assert contacts.all_know(10.5, 10.0 + HEARD_S), "the third one is out of touch"
        contacts.heard(THIRD, (STAGE,), 1, 12.0)
        assert contacts.all_know(10.5, 12.0)
        assert not contacts.all_know(11.5, 12.0), "nothing was said since"

    def test_an_echo_of_what_we_never_said_proves_nothing(self) -> None:
        contacts = Contacts()
        contacts.said(1, 10.0)
        for echo in (-1, 0, 2):
            contacts.heard(OTHER, (STAGE,), echo, 10.0)
            assert not contacts.present(OTHER, 10.0)

    def test_nobody_is_missed_any_more_in_the_next_step(self) -> None:
        made = quorum(ME, Contacts(), [ME, OTHER])
        assert not made.may_go_on_without({OTHER}, 101.0)
        assert made.missing == (OTHER,)
        made.settle([ME], [ME], 1, 102.0)
        assert not made.missing


@pytest.mark.parametrize("gone", ["nobody", "leavers", "others"])
def test_who_follows_a_later_lineage_does_not_count_for_ours(gone: str) -> None:
    """It may have closed the step in ours; a replica that slept would close it again with its
    help. It does not count for us."""
    me, missing, *others = PEERS[:5]
    left = {"nobody": set[PeerId](), "leavers": set(others), "others": set(PEERS[5:])}[gone]
    now = 100.0 + DEAD_AFTER_S + 1
    side = set(PEERS[:5]) - {missing}
    contacts = contacts_of(me, side, since=100.0, now=now, everybody=PEERS[:5])
    made = Quorum(me, STAGE, contacts, left.__contains__)
    made.settle(PEERS[:5], PEERS[:5], 1, 100.0)
    may = gone != "leavers"
    assert bool(made.holds(now)) == may
    assert made.may_roll_back(now), "a roll-back closes nothing"


class TestRollingBack:
    """An unfulfilled wait divides two replicas; a roll-back needs both."""

    def test_those_who_set_each_other_aside_are_within_reach(self) -> None:
        """Of three electors two are left, and have set each other aside."""
        me, other, dead = PEERS[:3]
        for who_does in ("we", "it", "both"):
            contacts = Contacts()
            made = quorum(me, contacts, [me, other, dead])
            contacts.said(0, 100.0)
            if who_does != "it":
                made.aside = frozenset([other])
            for second in range(1, 20):
                contacts.said(second, 100.0 + second)
                echo = second if who_does == "we" else 0
                contacts.heard(other, (STAGE,), echo, 100.0 + second)
            assert not made.holds(119.5), "no step is closed so"
            assert made.may_roll_back(119.5)
            assert not made.may_roll_back(119.0 + HEARD_S), "it is silent now"

    def test_who_has_left_or_whose_link_has_ended_is_not_within_reach(self) -> None:
        contacts = hearing(OTHER, THIRD)
        assert contacts.meets(OTHER, 10.5)
        assert contacts.meets(THIRD, 10.5)
        contacts.left(OTHER)
        contacts.closed(THIRD, by_peer=True, now=10.5)
        assert not contacts.meets(OTHER, 10.5)
        assert not contacts.meets(THIRD, 10.5)

    def test_one_side_of_a_split_at_most_rolls_back(self) -> None:
        for size in range(1, len(PEERS)):
            for chosen in itertools.combinations(PEERS, size):
                sides = set(chosen), set(PEERS) - set(chosen)
                assert sum(may_roll_back(side, after_s=12.0) for side in sides) == 1


def may_roll_back(side: set[PeerId], *, after_s: float) -> bool:
    now = 100.0 + after_s
    contacts = contacts_of(min(side), side, since=100.0, now=now, everybody=PEERS)
    return bool(quorum(min(side), contacts, PEERS).may_roll_back(now))


def test_a_convicted_elector_does_not_count_for_ever() -> None:
    """Whichever of two is the first: the other one closes steps, or begins another lineage when all
    know of the proof."""
    for me, convict in itertools.permutations(PEERS[:2]):
        contacts = hearing(convict, at=0)
        made = Quorum(me, STAGE, contacts)
        made.settle([me, convict], [me, convict], 1, 0)
        first = min([me, convict], key=lambda peer: rank("elector", peer))
        contacts.expel(convict)
        for second in range(1, 40):
            contacts.said(second, second)
            assert bool(made.holds(second)) == (me == first)
        assert made.ended() == (0 if me == first else 2)
        assert made.may_go_on_without([convict], 39)


def test_whom_a_plan_names_is_missed_however_many_strangers_were_here() -> None:
    """Nobody is planned without before it is lost, so who is named and never comes has to be."""
    contacts = hearing(OTHER, at=100.0)
    for number in range(2 * MAX_CONTACTS):
        contacts.heard(PeerId(f"stranger {number}"), (), 0, number / 100)
    made = Quorum(ME, STAGE, contacts)
    made.settle([ME, OTHER, THIRD], [ME, OTHER], 1, 100.0)
    assert contacts.lost(100.0) & {OTHER, THIRD} == set()
    contacts.heard(OTHER, (STAGE,), 0, 100.0 + DEAD_AFTER_S)
    assert contacts.lost(100.0 + DEAD_AFTER_S) & {OTHER, THIRD} == {THIRD}


def test_convicts_without_end_take_no_room_and_are_lost() -> None:
    contacts = hearing(OTHER)
    for number in range(3 * MAX_CONTACTS):
        contacts.expel(PeerId(f"convict {number}"))
    assert len(contacts.lost(10.0)) == MAX_CONTACTS
    assert OTHER not in contacts.lost(10.0)
    assert len(contacts._contacts) == 1


class TestTheFirstStep:
    """The electors are those that the lineage names."""

    def test_who_holds_our_stage_or_is_in_touch_and_holds_none_may_come(self) -> None:
        """Whoever has decided the lineage begins a little before those that follow it."""
        me, other, third, stranger = PEERS[:4]
        contacts = Contacts()
        made = Quorum(me, STAGE, contacts, electors=[me, other, third])
        for peer in (other, stranger):
            hear(contacts, peer, (), 1.0)
        made.observe(view_of(0, [], [me]), 1.0)
        found = made.coming([me], [me], 1.0)
        assert found == {other}, "the third is silent, the stranger elects not"
        made.observe(SwarmView.of([[Replica(other, 0, False)], [Replica(me, 0, True)]]), 1.0)
        assert made.coming([me], [me], 1.0) == set(), "it has another stage"
        assert made.coming([me, other], [me], 1.0) == {other}, "or two"
        made.settle([me], [me, other], 1, 1.0)
        assert made.coming([me, other], [me], 1.0) == set()

    @pytest.mark.parametrize("gone", [True, False])
    def test_where_the_processes_of_all_have_ended_a_roll_back_waits_for_nobody(
        self, gone: bool
    ) -> None:
        me, *electing = PEERS[:3]
        contacts = Contacts()
        for peer in electing:
            hear(contacts, peer, (STAGE,), 0.0)
            contacts.closed(peer, by_peer=gone, now=0.1)
        made = Quorum(me, STAGE, contacts, electors=electing)
        made.observe(SwarmView(((),) * 2), 0.0)
        assert not made.holds(60.0)
        assert bool(made.may_roll_back(60.0)) == gone


class TestElectorsOfAPlan:
    """Two replicas of a stage and two of the stage before, all in touch with each other."""

    ME, LEADER, BEFORE, OTHER = PEERS[:4]
    VIEW = view_of(0, [BEFORE, OTHER], [ME, LEADER])

    def quorum(self) -> Quorum:
        everybody = PEERS[:4]
        contacts = contacts_of(self.ME, set(everybody), since=100.0, now=106.0, everybody=everybody)
        return quorum(self.ME, contacts, everybody)

    def refusal(self, named: list[PeerId]) -> str:
        return self.quorum().keeps([self.ME, self.LEADER], named, self.VIEW, 106.0).reason

    def test_a_leader_that_has_lost_its_neighbours_cannot_leave_them_out(self) -> None:
        few = "a plan keeps 2 of the 4 electors that we hear, too few"
        assert self.refusal([self.ME, self.LEADER]) == few
        others = [self.ME, self.LEADER, *PEERS[4:]]  # nor put others in their place
        assert self.refusal(others) == "a plan names 4 electors, of which we do not know 2"
        assert self.refusal(PEERS[:4]) == ""
        assert self.refusal([self.ME, self.LEADER, self.BEFORE]) == ""

    def test_nobody_can_be_added_whom_we_do_not_vouch_for(self) -> None:
        new, unproven = PEERS[4:]
        beside = [Replica(peer, 0, True) for peer in (self.BEFORE, self.OTHER, new, unproven)]
        view, made = SwarmView.of([beside, self.VIEW.stages[1]]), self.quorum()
        members, now = [self.ME, self.LEADER], 106.0
        assert not made.keeps(members, [*PEERS[:4], new], view, now)
        assert new in made.vouch(view, lambda peer: peer != unproven)
        assert made.keeps(members, [*PEERS[:4], new], view, now)
        assert not made.keeps(members, [*PEERS[:4], unproven], view, now)
        made.settle(PEERS[:4], PEERS[:4], 1, now)
        assert not made.keeps(members, [*PEERS[:4], new], view, now), "in another step"

    def test_there_are_seven_at_most(self) -> None:
        many = [peer_id_from_key(bytes([n]) * 32) for n in range(50, 54)]
        view = SwarmView.of([[Replica(peer, 0, True) for peer in many], self.VIEW.stages[1]])
        made = self.quorum()
        made.vouch(view, lambda _peer: True)
        assert made.keeps([self.ME, self.LEADER], [*PEERS[:4], *many[:3]], view, 106.0)
        assert not made.keeps([self.ME, self.LEADER], [*PEERS[:4], *many], view, 106.0)

    def test_a_plan_names_its_members_whoever_else_is_left_out(self) -> None:
        words = "a plan does not name its own members as electors"
        assert self.refusal([self.ME, self.BEFORE, self.OTHER]) == words
        many = [peer_id_from_key(bytes([n]) * 32) for n in range(50, 70)]
        chosen = electors(STAGE, many, PEERS)
        assert len(chosen) == MAX_ELECTORS
        assert set(chosen) <= set(many)
        assert chosen == electors(STAGE, reversed(many), ())
        assert chosen != electors(STAGE + 1, many, ()), "not always the same in all stages"
