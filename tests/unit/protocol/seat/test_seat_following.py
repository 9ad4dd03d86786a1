"""A seat that was left behind leaves immediately and leads nothing; reports of absent members do
not count."""

from __future__ import annotations

import pytest
from protocol.membership.alarms import MAX_PEERS, MAX_TIMES, WINDOW_S, Alarms

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key, rank
from protocol.membership.contacts import CONTACT_S, LOST_AFTER_S, Contacts
from protocol.pipeline.effects import ApplyTask, Compute, Fault, Outcome, Task
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.seat.following import BEHIND_S, HEARSAY_S, LOOK_S, Following
from protocol.seat.probation import Proves
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView, leader
from protocol.wire.messages import Commit, CommitAck, Plan, Reduced
from protocol.wire.parts import PlanMember

STAGE, STEP, LAST = 1, 7, 99
ME, SIBLING, OTHER = (peer_id_from_key(bytes([n]) * 32) for n in range(3))


ATTEMPT = 3


@pytest.mark.parametrize(
    ("ahead", "attempt", "promised", "lost_after_s"),
    [
        (0, ATTEMPT, ATTEMPT, None),
        (1, ATTEMPT, ATTEMPT, BEHIND_S),  # we may still get what we lack
        (1, ATTEMPT, ATTEMPT - 1, 0.0),  # without us
        (1, ATTEMPT, ATTEMPT + 1, 0.0),  # we have promised not to go back to that attempt
        (2, ATTEMPT, ATTEMPT, 0.0),
        (9, ATTEMPT, None, BEHIND_S),  # an observer has what it needs to catch up
    ],
)
def test_who_was_left_out_waits_for_nothing(
    ahead: int, attempt: int, promised: int | None, lost_after_s: float | None
) -> None:
    following = Following(STAGE, Alarms())
    sibling = Replica(SIBLING, STEP + ahead, True, attempt, bytes(32))
    witness = Replica(OTHER, STEP + 2, True)
    view = SwarmView.of([[witness], [sibling]])
    following.compare(view, STEP, 100.0, promised, {SIBLING}, last=LAST)
    if lost_after_s is None:
        assert following.next_deadline() is None
        assert not following.is_lost(1e9)
        return
    assert following.behind
    assert following.next_deadline() == 100.0 + min(LOOK_S, lost_after_s)
    assert not following.is_lost(100.0 + lost_after_s - 0.1)
    assert following.is_lost(100.0 + lost_after_s)


def test_that_a_neighbour_has_closed_its_own_step_says_nothing_of_ours() -> None:
    following = Following(STAGE, Alarms())
    neighbour, sibling = Replica(OTHER, STEP + 1, True), Replica(SIBLING, STEP + 2, True)
    view = SwarmView.of([[neighbour], [sibling]])
    following.compare(view, STEP, 100.0, ATTEMPT, {SIBLING}, last=LAST)
    assert not following.is_lost(100.0 + BEHIND_S - 0.1)
    assert following.is_lost(100.0 + BEHIND_S)


@pytest.mark.parametrize("promised", [None, ATTEMPT])
def test_only_the_next_version_with_its_digest_says_that_the_round_was_committed(
    promised: int | None,
) -> None:
    following = Following(STAGE, Alarms())
    for ahead, digest, said in ((2, bytes(32), False), (1, b"", False), (1, bytes(32), True)):
        sibling = Replica(SIBLING, STEP + ahead, True, ATTEMPT, digest)
        view = SwarmView.of([[], [sibling]])
        found = following.compare(view, STEP, 100.0, promised, {SIBLING}, last=LAST)
        assert found == (sibling if said else None)


def test_one_word_alone_is_not_enough_to_give_up_what_we_hold() -> None:
    following = Following(STAGE, Alarms())
    liar = Replica(SIBLING, STEP + 2, True, ATTEMPT, bytes(32))
    view = SwarmView.of([[Replica(OTHER, STEP, True)], [liar]])
    following.compare(view, STEP, 100.0, ATTEMPT, {SIBLING}, last=LAST)
    assert not following.is_lost(100.0 + BEHIND_S - 0.1)
    assert following.is_lost(100.0 + BEHIND_S)


def test_nothing_is_later_than_the_end_of_the_run() -> None:
    following = Following(STAGE, Alarms())
    view = SwarmView.of([[], [Replica(SIBLING, STEP + 9, True, ATTEMPT, bytes(32))]])
    assert following.compare(view, STEP, 100.0, ATTEMPT, {SIBLING}, last=STEP) is None
    assert not following.behind
    following.compare(view, STEP, 100.0, ATTEMPT, {SIBLING}, last=STEP + 1)
    assert following.behind


class TestHearsay:
    """Identities are free: the word of one that does not count yet ends nothing that goes on."""

    def hear(self, following: Following, now: float, near: int = STEP + 1, **how: bool) -> object:
        stages = [[Replica(OTHER, near, True)], [Replica(SIBLING, STEP + 1, True, 1, bytes(32))]]
        seen, said = SwarmView.of(stages), {SIBLING}
        return following.compare(seen, STEP, now, 1, said, said, last=LAST, **how)

    def test_it_proves_no_commit_and_holds_nobody_up(self) -> None:
        following = Following(STAGE, Alarms())
        assert self.hear(following, 100.0) is None
        assert not following.behind
        assert not following.is_lost(1e9)

    def test_it_is_looked_into_where_we_can_close_nothing(self) -> None:
        following = Following(STAGE, Alarms())
        self.hear(following, 100.0, in_touch=False)
        self.hear(following, 130.0, in_touch=False)
        assert not following.behind
        assert following.next_deadline() == 100.0 + HEARSAY_S
        assert not following.is_lost(100.0 + HEARSAY_S - 0.1)
        assert following.is_lost(100.0 + HEARSAY_S)

    def test_it_is_nothing_again_once_we_are_in_touch(self) -> None:
        following = Following(STAGE, Alarms())
        self.hear(following, 100.0, in_touch=False)
        self.hear(following, 130.0)
        self.hear(following, 140.0, in_touch=False)
        assert not following.is_lost(140.0 + HEARSAY_S - 0.1)

    def test_it_is_believed_along_with_a_neighbour_that_needed_our_next_version(self) -> None:
        following = Following(STAGE, Alarms())
        assert self.hear(following, 100.0, near=STEP + 2) is None, "no proof of the commit"
        assert following.behind
        assert following.is_lost(100.0 + BEHIND_S)

    def test_it_is_over_with_who_said_it(self) -> None:
        following = Following(STAGE, Alarms())
        self.hear(following, 100.0, in_touch=False)
        following.compare(SwarmView.of([[], []]), STEP, 101.0, ATTEMPT, set(), last=LAST)
        assert following.next_deadline() is None
        assert not following.is_lost(1e9)

    def test_a_stage_goes_on_beside_a_stranger_that_names_a_version(self) -> None:
        made = seat(None, proves=lambda peer: False)
        made.quorum.settle([ME], [ME], 0.0)
        stage = [Replica(ME, STEP, True), Replica(SIBLING, 10**6, True)]
        made.update_view(SwarmView.of([[Replica(OTHER, STEP, True)], stage]), 1.0)
        assert made.leader.leading
        faults = [one for one in made.tick(2.0 + BEHIND_S) if isinstance(one, Fault)]
        assert not faults


def test_a_seat_that_was_left_behind_says_so_at_once() -> None:
    contacts = Contacts()
    made = seat(contacts)
    contacts.said(1, 1.0)
    contacts.heard(SIBLING, (), (STAGE,), 1, 1.0)
    view = [
        [Replica(OTHER, STEP + 2, True)],
        [Replica(ME, STEP, True), Replica(SIBLING, STEP + 2, True)],
    ]
    made.update_view(SwarmView.of(view), 1.0)
    assert not made.leader.leading
    faults = [effect for effect in made.tick(1.0) if isinstance(effect, Fault)]
    assert [fault.kind for fault in faults] == ["behind"]


def test_who_is_slow_to_apply_is_not_left_behind() -> None:
    """It knows the commit and holds all that it covers: the next version is on its way."""
    made = seat(None)
    stage = Replica(ME, STEP, True)
    members = [PlanMember(ME, b""), PlanMember(SIBLING, b"\x0f")]
    made.update_view(SwarmView.of([[], [stage, Replica(SIBLING, STEP, True)]]), 0.0)
    order = Plan(STAGE, STEP, 1, members, [0, 0, 64], [])
    [contribute] = tasks(made.receive(SIBLING, order, 1.0))
    made.computed(contribute, Outcome(), 1.1)
    [decode] = tasks(made.receive(SIBLING, Reduced(STAGE, STEP, 1, 1, 1.0), 1.2, bytes(32)))
    made.computed(decode, Outcome(), 1.2)
    digest = made.member.ready
    [apply] = tasks(made.receive(SIBLING, Commit(STAGE, STEP, 1, digest, 0.0), 1.3))
    assert isinstance(apply, ApplyTask)
    faster = Replica(SIBLING, STEP + 1, True, 1, digest)
    made.update_view(SwarmView.of([[], [stage, faster]]), 2.0)
    for now in (2.0 + BEHIND_S, 9 * BEHIND_S):
        assert not [effect for effect in made.tick(now) if isinstance(effect, Fault)]
        assert not made._following.behind
    made.computed(apply, Outcome(hash="a"), 10 * BEHIND_S)
    assert made.step == STEP + 1


def tasks(effects: list[SeatEffect]) -> list[Task]:
    return [effect.task for effect in effects if isinstance(effect, Compute)]


def test_who_was_left_behind_does_not_lead() -> None:
    """It wakes up and still says that it serves: the others would wait for its plan."""
    first, second = sorted((ME, SIBLING), key=lambda peer: rank("leader", STAGE, STEP, peer))
    for version, leads in ((STEP - 2, second), (STEP - 1, first), (STEP, first)):
        stage = [Replica(first, version, True), Replica(second, STEP, True)]
        assert leader(SwarmView.of([[], stage]), STAGE, STEP) == leads


def seat(contacts: Contacts | None, proves: Proves | None = None) -> Seat:
    return Seat(
        Place(ME, STAGE, 2, 4),
        size=64,
        steps=99,
        tokens_per_step=1,
        step=STEP,
        serving=True,
        touch=contacts,
        proves=proves,
    )


def acknowledgements(effects: list[SeatEffect]) -> list[PeerId]:
    sent = [effect for effect in effects if isinstance(effect, Send)]
    return [effect.peer for effect in sent if isinstance(effect.message, CommitAck)]


class TestTheAbsent:
    """Messages in our buffers during a sleep may be from members that have died since."""

    def heard(self, contacts: Contacts, now: float) -> None:
        contacts.said(round(now), now)
        contacts.heard(SIBLING, (), (STAGE,), round(now), now)

    def test_a_commit_counts_from_who_is_there(self) -> None:
        contacts = Contacts()
        made = seat(contacts)
        stage = [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)]
        made.update_view(SwarmView.of([[Replica(OTHER, STEP, True)], stage]), 1.0)
        self.heard(contacts, 1.0)
        woke = 1.0 + CONTACT_S + 0.1
        commit = Commit(STAGE, STEP, 1, bytes(32), 0.0)
        assert not acknowledgements(made.receive(SIBLING, commit, woke))
        assert not made.member.knows_commit
        self.heard(contacts, woke)
        assert acknowledgements(made.receive(SIBLING, commit, woke + 0.1)) == [SIBLING]
        assert made.member.knows_commit

    def test_a_sibling_proves_a_commit_only_while_it_is_there(self) -> None:
        contacts = Contacts()
        made = seat(contacts)
        newer = Replica(SIBLING, STEP + 1, True, attempt=1, digest=bytes(32))
        view = SwarmView.of([[Replica(OTHER, STEP, True)], [Replica(ME, STEP, True), newer]])
        self.heard(contacts, 1.0)
        made.update_view(view, 1.0 + CONTACT_S + 0.1)
        assert not made.member.knows_commit
        self.heard(contacts, 6.0)
        deadline = made.next_deadline()
        assert deadline is not None
        assert deadline < 6.0, "it looks again though nothing has changed"
        made.tick(6.1)
        assert made.member.knows_commit

    def test_whom_a_plan_names_is_lost_though_we_have_never_met(self) -> None:
        """All who had met it have restarted since: nobody else would ever list it."""
        contacts = Contacts()
        contacts.heard(SIBLING, (), (STAGE,), 0, 9.0)
        contacts.expect((SIBLING, OTHER), 10.0)
        assert contacts.lost(10.0 + LOST_AFTER_S - 0.1) == (SIBLING,), "it was heard at 9"
        assert contacts.lost(10.0 + LOST_AFTER_S) == (OTHER, SIBLING)
        contacts.heard(OTHER, (), (STAGE,), 0, 15.5)
        assert contacts.lost(16.0) == (SIBLING,)


# --- who is ahead alone ---------------------------------------------------------------------


def ahead(*more: Replica, version: int = STEP + 2) -> SwarmView:
    """The sibling serves a version that is later than ours, and so may others of our stage."""
    return SwarmView.of([[], [Replica(SIBLING, version, True, ATTEMPT, bytes(32)), *more]])


def raised(times: int) -> Alarms:
    """The sibling has raised so many alarms alone."""
    alarms = Alarms()
    for _ in range(times):
        alarms.raised(SIBLING, 0.0)
    return alarms


@pytest.mark.parametrize("times", [0, 1, 3])
def test_who_has_raised_alarms_alone_is_believed_alone_after_twice_as_long(times: int) -> None:
    alarms = raised(times)
    following = Following(STAGE, alarms)
    following.compare(ahead(), STEP, 0.0, ATTEMPT, {SIBLING}, last=LAST)
    assert following.behind is (not times), "it stops nobody from leading"
    assert following.looks_again
    assert not following.is_lost(BEHIND_S * 2**times - 0.1)
    assert following.is_lost(BEHIND_S * 2**times)
    assert alarms.times(SIBLING, BEHIND_S) == times + 1


@pytest.mark.parametrize("promised", [ATTEMPT, None])
def test_its_word_proves_no_commit_then(promised: int | None) -> None:
    view = ahead(version=STEP + 1)
    for times in (0, 1):
        following = Following(STAGE, raised(times))
        proof = following.compare(view, STEP, 0.0, promised, {SIBLING}, last=LAST)
        assert (proof is not None) is (not times)


def test_a_neighbour_bears_it_out_with_a_version_that_takes_one_of_ours() -> None:
    for neighbour, at_once in ((STEP + 1, False), (STEP + 2, True)):
        following = Following(STAGE, Alarms())
        view = SwarmView.of([[Replica(OTHER, neighbour, True)], ahead().serving(STAGE)])
        following.compare(view, STEP, 0.0, ATTEMPT, {SIBLING}, last=LAST)
        assert following.is_lost(0.0) is at_once


def test_another_one_bears_it_out_from_then_on_though_it_comes_and_goes() -> None:
    alarms = raised(2)
    following = Following(STAGE, alarms)
    both = ahead(Replica(OTHER, STEP + 2, True))
    for now in range(40):
        view = both if now % 2 else ahead()
        following.compare(view, STEP, float(now), None, {SIBLING}, last=LAST)
        if now < 1 + BEHIND_S:
            assert not following.is_lost(now)
    following.compare(both, STEP, 41.0, None, {SIBLING}, last=LAST)
    assert following.is_lost(41.0)
    assert alarms.times(SIBLING, 41.0) == 2, "it was not alone"


def test_who_needs_nobody_to_go_on_without_us_raises_no_alarm() -> None:
    alarms = raised(0)
    following = Following(STAGE, alarms)
    how = {"last": LAST, "suffice": lambda ahead: ahead == {SIBLING}}
    for begun in (0.0, 60.0, 120.0):
        following.compare(ahead(), STEP, begun, ATTEMPT, {SIBLING}, **how)
        assert following.is_lost(begun + BEHIND_S)
    assert alarms.times(SIBLING, 200.0) == 0
    following.compare(ahead(), STEP, 200.0, ATTEMPT, {SIBLING}, **how)
    assert following.takes_back(ahead(version=STEP), STEP, 201.0), "but this is a lie"
    assert alarms.times(SIBLING, 201.0) == 1


@pytest.mark.parametrize("electors", [(SIBLING,), (ME, SIBLING, OTHER)])
def test_a_seat_counts_as_alarm_what_needed_others(electors: tuple[PeerId, ...]) -> None:
    contacts = Contacts()
    made = seat(contacts)
    made.quorum.settle([SIBLING], electors, 0.0)
    us, sibling = Replica(ME, STEP, True), Replica(SIBLING, STEP + 2, True)
    made.update_view(SwarmView.of([[], [us, sibling]]), 1.0)
    faults = [one for one in made.tick(1.0 + BEHIND_S) if isinstance(one, Fault)]
    assert len(faults) == 1
    assert contacts.alarms.times(SIBLING, 10.0) == (len(electors) > 1)


def test_what_is_taken_back_was_an_alarm() -> None:
    alarms = raised(0)
    following = Following(STAGE, alarms)
    following.compare(ahead(), STEP, 0.0, ATTEMPT, {SIBLING}, last=LAST)
    assert not following.takes_back(ahead(), STEP, 1.0)
    assert not following.takes_back(ahead(version=STEP), STEP + 1, 3.0), "we have caught up"
    assert following.takes_back(ahead(version=STEP), STEP, 4.0)
    assert not following.takes_back(ahead(version=STEP), STEP, 5.0), "once"
    assert alarms.times(SIBLING, 5.0) == 1


def test_a_seat_takes_nothing_for_committed_that_was_taken_back() -> None:
    made = seat(None)
    us, sibling = Replica(ME, STEP, True), Replica(SIBLING, STEP + 1, True, 2, bytes(32))
    made.update_view(SwarmView.of([[], [us, sibling]]), 0.0)
    assert made.member.knows_commit
    made.update_view(SwarmView.of([[], [us, Replica(SIBLING, STEP, True)]]), 1.0)
    assert not made.member.knows_commit
    made.update_view(SwarmView.of([[], [us, sibling]]), 2.0)
    assert not made.member.knows_commit, "not a second time"
    assert made.leader.leading is (made.current_leader() == ME)


def test_what_a_leader_has_said_stays() -> None:
    made = seat(None)
    us, sibling = Replica(ME, STEP, True), Replica(SIBLING, STEP, True)
    made.update_view(SwarmView.of([[], [us, sibling]]), 0.0)
    made.receive(SIBLING, Commit(STAGE, STEP, 1, bytes([1]) * 32, 0.0), 1.0)
    later = Replica(SIBLING, STEP + 1, True, 2, bytes(32))
    made.update_view(SwarmView.of([[], [us, later]]), 2.0)
    assert made.member.applied == (1, bytes([1]) * 32)
    made.update_view(SwarmView.of([[], [us, sibling]]), 3.0)
    assert made.member.applied == (1, bytes([1]) * 32)


def test_alarms_are_forgotten_and_bounded() -> None:
    alarms = Alarms()
    for now in range(2 * MAX_TIMES):
        alarms.raised(SIBLING, float(now))
    assert alarms.times(SIBLING, 0.0) == MAX_TIMES
    assert alarms.times(SIBLING, WINDOW_S + 2 * MAX_TIMES - 2) == 1
    assert alarms.times(SIBLING, WINDOW_S + 2 * MAX_TIMES) == 0
    for number in range(MAX_PEERS):
        alarms.raised(PeerId(f"peer {number}"), WINDOW_S)
    assert alarms.times(SIBLING, 0.0) == 0
    assert alarms.times(PeerId("peer 0"), WINDOW_S) == 1


def test_what_is_known_without_a_link_takes_nothing_back() -> None:
    alarms = Alarms()
    following = Following(STAGE, alarms)
    following.compare(ahead(), STEP, 0.0, ATTEMPT, {SIBLING}, last=LAST)
    assert not following.takes_back(SwarmView.of([[], []]), STEP, 1.0)
    assert not following.takes_back(ahead(version=STEP), STEP, 2.0), "its advert may be old"
    assert not alarms.times(SIBLING, 2.0)


def test_who_is_out_of_touch_believes_and_goes_on_believing() -> None:
    following = Following(STAGE, raised(3))
    for now, in_touch in ((0.0, False), (1.0, True)):
        how = {"last": LAST, "in_touch": in_touch}
        following.compare(ahead(), STEP, now, ATTEMPT, {SIBLING}, **how)
        assert following.behind
    assert following.is_lost(BEHIND_S)


def test_what_we_have_decided_ourselves_is_proven_by_anybody() -> None:
    view = ahead(version=STEP + 1)
    for decided in ((ATTEMPT, bytes(32)), (ATTEMPT, bytes([1]) * 32), None):
        following = Following(STAGE, raised(1))
        how = {"last": LAST, "decided": decided}
        proof = following.compare(view, STEP, 0.0, ATTEMPT, {SIBLING}, **how)
        assert (proof is not None) is (decided == (ATTEMPT, bytes(32)))


def test_a_sibling_that_is_ahead_alone_is_named_where_its_stage_needs_it() -> None:
    """Nobody would set it aside otherwise, and the step could not be closed without it."""
    made = seat(Contacts())
    us = Replica(ME, STEP, True)
    made.quorum.settle([ME, SIBLING], [ME, SIBLING], 0.0)
    made.update_view(SwarmView.of([[], [us, Replica(SIBLING, STEP + 2, True)]]), 0.0)
    made.quorum.missing = (SIBLING,)
    assert SIBLING in made.status(1.0).missing
    made.update_view(SwarmView.of([[], [us, Replica(SIBLING, STEP, True)]]), 1.0)
    made.quorum.missing = (SIBLING,)
    assert SIBLING not in made.status(1.0).missing, "it is back"
