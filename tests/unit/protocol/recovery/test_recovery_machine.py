"""Rolling back together, resuming, and following the right lineage."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from protocol.effects import Explain, Publish
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, peer_id_from_key, rank
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.pace import ANSWER_S, ASIDE_S, FORGET_S, HEARD_S, RENEWALS
from protocol.recovery.choice import SEED, Claims, next_era
from protocol.recovery.deciding import SILENT_SHARE
from protocol.recovery.effects import Adopt, RecoveryContext, RecoveryEffect, SaveNow
from protocol.recovery.evidence import DOUBTED_AFTER, Evidence
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, PATIENCE_S, Knowledge
from protocol.recovery.machine import SETTLE_S, Recovery
from protocol.recovery.stored import ERA_BITS, STORED, Copy, Lineage, Stored, begun, check_stored
from protocol.recovery.trouble import IN_VAIN_S

PEERS = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(4))
FIRST = Lineage(1, electors=tuple(PEERS))
BEGUN = begun(0, 0, (), (PEERS[0],), b"")
EVERY = 10


def digest(stage: int, version: int, variant: int = 0) -> bytes:
    return bytes([stage, version % 256, variant]) + bytes(29)


def copies(*held: tuple[int, int]) -> tuple[Copy, ...]:
    return tuple(sorted(Copy(stage, version, digest(stage, version)) for stage, version in held))


def stored(*held: tuple[int, int], lineage: Lineage = FIRST) -> Stored:
    return Stored(lineage, copies(*held))


def adopted(effects: Iterable[RecoveryEffect]) -> Lineage | None:
    return next((e.lineage for e in effects if isinstance(e, Adopt)), None)


def begun_at(effects: Iterable[RecoveryEffect]) -> int | None:
    """Return the version at which another lineage begins."""
    lineage = adopted(effects)
    return None if lineage is None else lineage.version


def in_turn(peers: Iterable[PeerId], lineage: Lineage = FIRST) -> list[PeerId]:
    of = lineage.number, *lineage.hashes
    return sorted(peers, key=lambda peer: rank("restore", *of, peer))


def first(peers: Iterable[PeerId], lineage: Lineage = FIRST) -> PeerId:
    return in_turn(peers, lineage)[0]


def machine(me: PeerId, *held: tuple[int, int], lineage: Lineage = FIRST) -> Recovery:
    made = Recovery(Knowledge(me, 2, EVERY, lineage), 5)
    made.set_copies(copies(*held), 0.0)
    return made


def context(
    *versions: int | None,
    live: Iterable[PeerId] = PEERS,
    quorum: bool = True,
    era: int = FIRST.era,
    reached: int = 0,
) -> RecoveryContext:
    live = frozenset(live)
    serving = any(version is not None for version in versions)
    eras = {peer: {era: reached} for peer in live if serving}
    return RecoveryContext(live, versions, eras, lambda now: quorum)


def running(me: PeerId, *held: tuple[int, int]) -> Recovery:
    """One that has seen a swarm train up to step 27."""
    made = machine(me, *held)
    for other in PEERS:
        made.receive(other, stored((0, 20), (1, 20), (0, 10), (1, 10)), 1.0)
    assert adopted(made.update(context(27, 27), 10.0)) is None
    return made


class TestLost:
    def test_the_first_by_rank_rolls_back_to_the_newest_whole_version(self) -> None:
        made = running(first(PEERS), (0, 20))
        assert adopted(made.update(context(27, None), 20.0)) is None, "it may be a hand-over"
        effects = made.tick(20.0 + ANSWER_S)
        lineage = adopted(effects)
        assert (lineage.version, lineage.number) == (20, 1)
        told = [(e.words.partition(":")[0], e.level) for e in effects if isinstance(e, Explain)]
        assert ("training goes on from step 20", "warning") in told
        assert lineage.hashes == (digest(0, 20), digest(1, 20))

    @pytest.mark.parametrize(("gone", "waits"), [(False, True), (True, False)])
    def test_a_replica_that_is_only_silent_is_waited_for_as_long_as_that_pays(
        self, gone: bool, waits: bool
    ) -> None:
        """Seven steps of ten seconds would be made again."""
        me = first(PEERS)
        silent = next(peer for peer in PEERS if peer != me)
        made = machine(me, (0, 20))
        for other in PEERS:
            made.receive(other, stored((0, 20), (1, 20)), 1.0)
        there = (frozenset({me}), frozenset({silent}))
        for version in range(18, 28):
            seen = replace(context(version, version), serving=there)
            made.update(seen, 10.0 * version)
        began, patience_s = 300.0, SILENT_SHARE * 7 * 10.0
        alone = context(27, None, live=set(PEERS) - {silent})
        lost = replace(alone, serving=(there[0], frozenset()), is_gone=lambda peer: gone)
        made.update(lost, began)
        assert (adopted(made.tick(began + ANSWER_S)) is None) == waits
        if waits:
            assert adopted(made.tick(began + ANSWER_S + patience_s - 2.0)) is None
            assert adopted(made.tick(began + ANSWER_S + patience_s + 0.1)) is not None

    def test_a_stage_that_others_see_is_not_lost(self) -> None:
        made = running(first(PEERS), (0, 20))
        made.update(replace(context(27, None), unseen=frozenset({1})), 20.0)
        assert adopted(made.tick(20.0 + PATIENCE_S)) is None
        made.update(context(27, None), 200.0)
        assert adopted(made.tick(200.0 + ANSWER_S)) is not None

    def test_who_is_not_followed_goes_back_to_those_that_train(self) -> None:
        made = running(PEERS[0])
        alone, idle = Lineage(9 << 32, electors=FIRST.electors), 10.0 + BRIEF_PATIENCE_S
        for other in PEERS[1:]:
            made.receive(other, stored(lineage=alone), idle)
        assert made.lineage == alone
        for other in PEERS[1:]:
            assert adopted(made.receive(other, stored((0, 20), (1, 20)), idle + 1)) is None
        back = None
        for second in range(2, int(ASIDE_S + FORGET_S) + 2):
            seats = {peer: {FIRST.era: 27 + second} for peer in PEERS[1:]}
            train = replace(context(None, None), eras=seats)
            back = back or adopted(made.update(train, idle + second))
        assert back == FIRST

    def test_a_quorum_that_comes_with_time_alone_is_noticed(self) -> None:
        made = running(first(PEERS), (0, 20), (1, 20))
        seen = context(27, None)
        made.update(replace(seen, quorum=lambda now: now >= 60.0), 20.0)
        assert adopted(made.tick(59.0)) is None
        due = made.next_deadline()
        assert due <= 60.0
        assert adopted(made.tick(60.0)) is not None

    def test_much_is_not_thrown_away_at_once(self) -> None:
        """The copies of the last versions may be with somebody who comes back in a moment."""
        made = machine(first(PEERS))
        for other in PEERS:
            made.receive(other, stored((0, 50), (0, 10), (1, 10)), 1.0)
        made.update(context(57, 57), 10.0)
        made.update(context(57, None), 20.0)
        assert adopted(made.tick(30.0)) is None
        assert begun_at(made.tick(20.0 + ANSWER_S + PATIENCE_S)) == 10

    def test_a_beginning_that_nobody_has_any_more_is_left(self) -> None:
        made = running(first(PEERS), (0, 10), (1, 10))
        made.update(context(27, None), 20.0)
        lineage = adopted(made.tick(20.0 + ANSWER_S))
        for other in PEERS:  # the copies of stage 1 at version 20 went with their last holder
            made.receive(other, stored((0, 20), (0, 10), (1, 10), lineage=lineage), 22.0)
        late = 22.0 + ANSWER_S + HEARD_S * in_turn(PEERS, lineage).index(first(PEERS))
        made.update(context(20, None, era=lineage.era), 22.0)
        again = adopted(
            [*made.tick(22.0 + ANSWER_S), *made.tick(late), *made.tick(late + ANSWER_S)]
        )
        assert (again.version, again.number) == (10, 2)


@pytest.mark.parametrize("versions", [(27, 28), (28, 27)])
def test_a_step_that_cannot_close_any_more_is_done_again(versions: tuple[int, int]) -> None:
    """Its gradients died with those who held them, after the next stage had closed it; or its
    activations with their senders, who had closed it, and with who had got them."""
    made = running(first(PEERS))
    made.update(context(*versions), 20.0)
    assert adopted(made.tick(20.0 + BRIEF_PATIENCE_S - 0.1)) is None
    assert adopted(made.tick(20.0 + BRIEF_PATIENCE_S)) is None, "believed a moment later"
    assert adopted(made.tick(20.0 + BRIEF_PATIENCE_S + ANSWER_S)) is not None


def test_a_stage_of_whose_step_something_comes_is_not_stuck() -> None:
    """It averages over a slow line, and the stage after it, held by one, has long closed."""
    made = running(first(PEERS))
    for second in range(20, 100, 10):
        made.update(replace(context(27, 28), moved=({PEERS[1]: second}, {})), float(second))
        assert adopted(made.tick(second + 9.0)) is None
    assert adopted(made.tick(90.0 + BRIEF_PATIENCE_S)) is None, "believed a moment later"
    assert adopted(made.tick(90.0 + BRIEF_PATIENCE_S + ANSWER_S)) is not None


def test_a_stage_whose_neighbour_goes_on_is_not_stuck() -> None:
    """Others close its steps: we are set aside, or parted from them."""
    made = running(first(PEERS))
    for second in range(20, 100, 10):
        made.update(context(27, 28 + second // 10), float(second))
        made.tick(second + 9.0)
        assert not made._trouble.words()
    made.tick(90.0 + made._trouble._stuck_s())
    assert "cannot close step 27" in made._trouble.words()


def test_who_names_a_later_lineage_has_left_ours() -> None:
    other = PEERS[1]
    later, latest = (replaced(FIRST, era=(n << 32) + 7) for n in (1, 2))
    made = machine(PEERS[0], (0, 20), lineage=later)
    assert not made.known.has_left(other), "nothing is known of it"
    for now, (lineage, has_left) in enumerate([(FIRST, False), (later, False), (latest, True)]):
        made.receive(other, stored((0, 20), lineage=lineage), float(now))
        assert made.known.has_left(other) == has_left
    made.forget(other)
    assert not made.known.has_left(other)


def test_our_copy_of_what_we_have_made_counts_before_a_view_shows_it() -> None:
    """Who pauses alone leaves with a version that was served for a moment."""
    made = machine(PEERS[0], (0, 20), (1, 20))
    made.update(context(20, 20), 1.0)
    made.set_copies(copies((0, 20), (0, 25), (1, 20), (1, 25)), 2.0)
    assert made.known.newest_whole().version == 20, "nobody has seen it"
    made.closed(0, 25, digest(0, 25), [], 3.0)
    assert made.known.newest_whole().version == 25
    made.known.begin(begun(2, 20, (digest(0, 20), digest(1, 20)), tuple(PEERS), b"later"))
    assert made.known.reached() == 20, "of another lineage"


class TestBegin:
    """A member that comes back without a state must not begin where others have long been."""

    def test_a_moment_after_somebody_has_come(self) -> None:
        made = machine(PEERS[0])
        made.update(context(None, 0, live=PEERS[:3]), 10.0)
        assert not made.may_begin(0, 10.0), "more may be coming"
        assert made.may_begin(0, 10.0 + SETTLE_S)

    def test_not_where_it_has_seen_its_stage_past_the_beginning(self) -> None:
        """Its worker died just when the others, just restarted, did not serve yet."""
        made = machine(PEERS[0])
        made.update(context(1, 0), 1.0)
        made.update(context(0, 0), 2.0)
        assert not made.may_begin(0, 100.0)
        assert made.may_begin(1, 100.0)

    def test_not_where_others_have_closed_a_step_without_it(self) -> None:
        """They may all have gone since: what it knows of the step is its commit."""
        made = machine(PEERS[0])
        made.update(context(0, 0), 1.0)
        assert made.may_begin(0, 100.0)
        made.known.left_behind(0)
        assert not made.may_begin(0, 100.0)
        assert made.may_begin(1, 100.0)

    def test_not_before_it_is_settled_where(self) -> None:
        made = machine(PEERS[0])
        assert not made.may_begin(0, 100.0)


class TestBeginning:
    """A run that has nothing yet is begun by a decision."""

    @staticmethod
    def new(me: PeerId, others: Iterable[PeerId] = PEERS) -> Recovery:
        made = machine(me, lineage=SEED)
        for other in others:
            made.receive(other, Stored(), 0.1)
        made.update(context(None, None, live={me, *others}), 0.2)
        return made

    def test_the_first_names_those_who_are_here_and_the_others_follow(self) -> None:
        decider = first(PEERS, SEED)
        made = self.new(decider)
        assert not made.open
        assert adopted(made.tick(0.1 + SETTLE_S)) is None, "more may be coming"
        begun = adopted(made.tick(0.2 + SETTLE_S))
        assert (begun.number, begun.version, begun.electors) == (0, 0, tuple(PEERS))
        assert made.may_begin(0, 0.2 + SETTLE_S)
        for other in PEERS:
            if other != decider:
                follower = self.new(other)
                assert adopted(follower.receive(decider, Stored(begun), 2.3)) == begun
                assert follower.may_begin(1, 2.3)

    @pytest.mark.parametrize("steps", [0, 5])
    def test_of_two_that_began_apart_who_has_nothing_follows(self, steps: int) -> None:
        """Of two that have nothing it is the one whose lineage is the earlier one."""
        made = self.new(PEERS[0], ())
        ours = adopted(made.tick(0.2 + SETTLE_S))
        for theirs in (replaced(FIRST, era=ours.era - 1), replaced(FIRST, era=ours.era + 1)):
            made = self.new(PEERS[0], ())
            made.tick(0.2 + SETTLE_S)
            made.receive(PEERS[1], Stored(theirs), 3.0)
            seen = context(0, 0, live=PEERS[:2], era=theirs.era, reached=steps)
            assert (adopted(made.update(seen, 3.0)) == theirs) == (bool(steps) or theirs > ours)

    @pytest.mark.parametrize("steps", [0, 5])
    def test_who_has_nothing_stays_in_the_one_that_trains(self, steps: int) -> None:
        """More follow a later one, in which nobody serves yet: two rules would take turns."""
        later = replaced(FIRST, era=FIRST.era + 1)
        made = machine(PEERS[0], lineage=FIRST)
        made.receive(PEERS[1], Stored(FIRST), 0.1)
        for other in PEERS[2:]:
            made.receive(other, Stored(later), 0.1)
        seen = replace(context(0, 0), eras={PEERS[1]: {FIRST.era: steps}})
        assert adopted(made.update(seen, 1.0)) == (None if steps else later)

    def test_who_goes_back_to_the_one_that_trains_does_not_leave_it_again_at_once(self) -> None:
        """One has decided another where the electors of the first step have gone, and one serves
        the first all the same."""
        later = replaced(FIRST, era=FIRST.era + 1, electors=tuple(PEERS[:3]))
        lineage = replaced(FIRST, electors=(PEERS[3],))
        made = machine(PEERS[0], lineage=lineage)
        for other in PEERS[1:]:
            made.receive(other, Stored(later if other == PEERS[2] else lineage), 0.1)
        seen = context(0, 0, live=PEERS[:3])
        gone = replace(seen, is_gone=PEERS[3].__eq__)
        assert adopted(made.update(replace(gone, eras={}), 1.0)) == later
        trains = replace(gone, eras={PEERS[1]: {lineage.era: 5}})
        assert adopted(made.update(trains, 2.0)) == lineage
        for at in (2.1, 2.2):  # it sees the trouble, and what the other has decided
            assert adopted(made.update(trains, at)) is None

    def test_who_has_made_a_step_does_not_at_once(self) -> None:
        made = self.new(PEERS[0], ())
        ours = adopted(made.tick(0.2 + SETTLE_S))
        assert ours is not None
        made.closed(0, 1, digest(0, 1), (), 2.5)
        made.receive(PEERS[1], Stored(FIRST), 3.0)
        seen = context(1, 1, live=PEERS[:2], era=FIRST.era, reached=5)
        assert adopted(made.update(seen, 3.0)) is None

    def test_a_lineage_whose_electors_are_not_here_is_not_followed(self) -> None:
        made, invented = self.new(PEERS[0]), peer_id_from_key(bytes([99]) * 32)
        said = Stored(replaced(FIRST, electors=tuple(sorted((PEERS[1], invented)))))
        assert adopted(made.receive(PEERS[1], said, 1.0)) is None

    @pytest.mark.parametrize("gone", [True, False])
    def test_where_all_electors_have_gone_another_is_decided(self, gone: bool) -> None:
        me = first(PEERS[:2])
        lineage = replaced(FIRST, electors=tuple(PEERS[2:]))
        made = machine(me, lineage=lineage)
        for other in PEERS[:2]:
            made.receive(other, Stored(lineage), 0.1)
        seen = context(0, 0, live=PEERS[:2])
        made.update(replace(seen, is_gone=lambda peer: gone and peer in PEERS[2:]), 1.0)
        begun = adopted(made.tick(1.0 + ANSWER_S))
        assert (begun is not None) == gone

    @pytest.mark.parametrize(("serve", "say"), [(True, False), (False, True), (False, False)])
    def test_where_most_electors_are_in_another_one_it_is_decided_anew(
        self, serve: bool, say: bool
    ) -> None:
        """They serve it, or say that they follow a later one, which nobody does."""
        elsewhere, me = serve or say, first(PEERS[:2])
        lineage = replaced(FIRST, electors=(me, *PEERS[2:]))
        made = machine(me, lineage=lineage)
        for other in PEERS[:2]:
            made.receive(other, Stored(lineage), 0.1)
        for number, peer in enumerate(PEERS[2:], 2) if say else ():
            later = Lineage(number << ERA_BITS | 1, electors=(peer,))
            made.receive(peer, Stored(later), 0.1)
        where = {peer: {lineage.era + serve: 0} for peer in PEERS[2:]}
        seen = replace(context(0, 0), eras={peer: {lineage.era: 0} for peer in PEERS[:2]} | where)
        made.update(seen, 1.0)
        assert adopted(made.tick(1.0 + PATIENCE_S)) is None
        turns_s = len(PEERS) * HEARD_S
        begun = adopted(made.tick(1.0 + PATIENCE_S + ANSWER_S + turns_s))
        assert (begun is not None) == elsewhere


class TestResume:
    def test_our_own_copies_are_waited_for_until_our_disk_can_be_read(self) -> None:
        made = Recovery(Knowledge(PEERS[0], 2, EVERY, FIRST), 5)
        made.update(context(None, None, live=PEERS[:1]), 0.2)
        assert adopted(made.tick(30.0)) is None
        assert not made.open
        assert adopted(made.set_copies(copies((0, 20), (1, 20)), 30.0)) is None
        assert begun_at(made.tick(30.0 + SETTLE_S)) == 20

    def test_it_goes_on_at_the_newest_version_that_every_stage_has(self) -> None:
        me = first(PEERS[:2])
        made = machine(me, (0, 30), (0, 20))
        other = next(p for p in PEERS[:2] if p != me)
        made.receive(other, stored((1, 20), (1, 30)), 0.1)
        made.update(context(None, None, live=PEERS[:2]), 0.2)
        assert not made.open
        assert begun_at(made.tick(0.2 + SETTLE_S)) == 30
        assert made.open

    @pytest.mark.parametrize(
        ("made", "words"), [(30, "no newer version is known"), (92, "62 steps are done again")]
    )
    def test_steps_that_no_disk_took_are_not_said_to_be_there(self, made: int, words: str) -> None:
        before = Evidence()
        for version in range(made - 1, made + 1):
            before.closed(0, version, digest(0, version), (), float(version))
        back = Recovery(Knowledge(PEERS[0], 2, EVERY, evidence=before))
        back.set_copies(copies((0, 30), (1, 30)), 0.0)
        back.update(context(None, None, live=PEERS[:1]), 0.2)
        adopt = next(e for e in back.tick(0.2 + SETTLE_S) if isinstance(e, Adopt))
        assert adopt.lineage.version == 30
        assert adopt.reason == f"the swarm was shut down; {words}"

    @staticmethod
    def begun_at(version: int, *held: tuple[int, int]) -> Recovery:
        """One that goes on at the version that another says it has, of each stage."""
        made = machine(first(PEERS[:2]), *held)
        other = next(p for p in PEERS[:2] if p != first(PEERS[:2]))
        made.receive(other, stored((0, version), (1, version)), 0.1)
        made.update(context(None, None, live=PEERS[:2]), 0.2)
        lineage = adopted([*made.tick(0.2 + SETTLE_S), *made.tick(SETTLE_S + PATIENCE_S)])
        assert lineage.version == version
        made.receive(other, stored((0, version), (1, version), lineage=lineage), 200.0)
        made.update(context(None, None, live=PEERS[:2]), 200.0)
        return made

    def test_what_nobody_gives_is_given_up_for_what_is_here(self) -> None:
        """One word keeps nobody from going on: it names versions of all stages and sends none."""
        made = self.begun_at(90, (0, 20), (1, 20))
        for attempt in range(DOUBTED_AFTER):
            assert adopted(made.begun_with(0, had=False, now=300.0 + attempt)) is None
        assert begun_at(made.tick(310.0 + ANSWER_S + PATIENCE_S)) == 20

    def test_what_was_had_meanwhile_is_not_given_up(self) -> None:
        made = self.begun_at(90, (0, 20), (1, 20))
        for attempt in range(2 * DOUBTED_AFTER):
            made.begun_with(0, had=attempt % DOUBTED_AFTER > 0, now=300.0 + attempt)
        assert adopted(made.tick(310.0 + ANSWER_S + PATIENCE_S)) is None

    def test_what_nobody_gives_is_asked_for_again_where_there_is_nothing_else(self) -> None:
        """Its only holder may have a poor line."""
        made = self.begun_at(90)
        for attempt in range(2 * DOUBTED_AFTER):
            made.begun_with(0, had=False, now=300.0 + attempt)
        assert adopted(made.tick(310.0 + ANSWER_S + PATIENCE_S)) is None
        assert made.known.newest_whole().version == 90

    def test_who_holds_another_stage_follows_who_knows_so_in_five_minutes(self) -> None:
        made, now = self.begun_at(90, (0, 20), (1, 20)), 200.0
        begins, states = made.lineage, (digest(0, 20), digest(1, 20))
        later = begun(begins.number + 1, 20, states, tuple(PEERS[:3]), b"")
        made.receive(PEERS[2], stored((0, 20), (1, 20), lineage=later), now)
        while made.lineage == begins and now < 200.0 + IN_VAIN_S:
            now += 1.0
            made.update(context(90, None, live=PEERS[:3], era=begins.era), now)
        assert made.lineage == later
        assert now > IN_VAIN_S

    def test_one_checkpoint_interval_is_waited_for_only_briefly(self) -> None:
        made = machine(PEERS[0], (0, 20), (0, 30))
        made.receive(PEERS[1], stored((1, 20)), 0.1)
        made.update(context(None, None, live=PEERS[:2]), 0.2)
        assert adopted(made.tick(SETTLE_S + BRIEF_PATIENCE_S - 1.0)) is None
        late = 0.2 + SETTLE_S + BRIEF_PATIENCE_S + HEARD_S
        assert begun_at([*made.tick(late - HEARD_S), *made.tick(late)]) == 20


def test_the_record_is_said_again_before_it_expires() -> None:
    made = machine(PEERS[0], (0, 10))
    made.update(context(11, 11), 1.0)
    said = [e for e in made.tick(MAX_ADVERT_TTL_S / RENEWALS + 1) if isinstance(e, Publish)]
    assert [e.kind for e in said] == [STORED]


def begins(made: Recovery, seen: RecoveryContext) -> Lineage | None:
    """Return what begins after five minutes, and while copies are waited for."""
    found = None
    for now in range(0, int(IN_VAIN_S + PATIENCE_S), 2):
        found = adopted(made.update(seen, float(now))) or found
        assert now >= IN_VAIN_S or found is None
    return found


class TestStandstill:
    """No step is closed: nobody has the commit before, or the state of a stage."""

    def still(
        self,
        lineage: Lineage,
        version: int,
        *,
        quorum: bool,
        moved: Callable[[int], int] = lambda _: 3,
        movers: int = len(PEERS),
    ) -> bool:
        """Whether another lineage begins in five minutes; ``movers``: so many of the others say
        that their steps go on."""
        me = first(PEERS, lineage)
        others = [peer for peer in PEERS if peer != me]
        held = ((0, 20), (1, 20)) if version else ()
        made, effects = machine(me, *held, lineage=lineage), list[RecoveryEffect]()
        for now in range(0, int(IN_VAIN_S + 2 * ANSWER_S + HEARD_S), 2):
            seen = context(version, version, quorum=quorum, era=lineage.era)
            there = (frozenset({me}), frozenset(PEERS))
            far = dict.fromkeys(others, 3) | dict.fromkeys(others[:movers], moved(now))
            effects += made.update(replace(seen, serving=there, moved=({me: 3}, far)), float(now))
            assert now >= IN_VAIN_S or adopted(effects) is None
        return adopted(effects) is not None

    def test_it_ends_where_a_majority_is_there(self) -> None:
        assert self.still(FIRST, 27, quorum=True)
        assert not self.still(FIRST, 27, quorum=False)
        assert not self.still(FIRST, 27, quorum=True, moved=lambda now: now)

    def test_who_leaves_is_no_progress_nor_is_what_is_made_again(self) -> None:
        assert self.still(FIRST, 27, quorum=True, moved=lambda now: 9 - now // 40)
        assert self.still(FIRST, 27, quorum=True, moved=lambda now: 5 if 99 < now < 150 else 9)

    @pytest.mark.parametrize(("movers", "ends"), [(1, True), (2, False)])
    @pytest.mark.parametrize("version", [0, 27])
    def test_one_that_says_for_ever_that_its_step_goes_on_keeps_nobody(
        self, version: int, movers: int, ends: bool
    ) -> None:
        found = self.still(FIRST, version, quorum=True, moved=lambda now: now, movers=movers)
        assert found is ends

    def test_a_lineage_without_a_step_ends_though_its_first_electors_are_silent(self) -> None:
        """As after a power cut at a lone founder's."""
        assert self.still(FIRST, 0, quorum=False)
        assert not self.still(FIRST, 0, quorum=False, moved=lambda now: now)

    def test_it_ends_too_where_a_stage_has_gone_with_the_only_other_elector(self) -> None:
        """Whose connection nobody saw end. The copies that are left are older."""
        begin = Lineage(1 << 32, 20, (digest(0, 20), digest(1, 20)), tuple(PEERS[:2]))
        me = first(PEERS, begin)
        made = machine(me, (0, 10), (0, 20), (1, 10), lineage=begin)
        seen = context(20, None, quorum=False, era=begin.era)
        there = (frozenset({me}), frozenset[PeerId]())
        found = begins(made, replace(seen, serving=there, moved=({me: 3}, {})))
        assert found.version == 10

    @pytest.mark.parametrize(
        ("apart", "elector_is_here"), [(True, True), (False, True), (False, False)]
    )
    def test_it_ends_where_the_stage_that_is_missing_cannot_begin_in_our_lineage(
        self, apart: bool, elector_is_here: bool
    ) -> None:
        """Two lineages without a step wait for each other's stages, and no stage begins without an
        elector; a volunteer that comes is waited for as long as it takes."""
        me, away = first(PEERS), peer_id_from_key(bytes(range(32)))
        made = machine(me, lineage=Lineage(FIRST.era, electors=(me if elector_is_here else away,)))
        others = [peer for peer in PEERS if peer != me]
        where = 5 if apart else FIRST.era
        eras = {me: {FIRST.era: 0}} | {peer: {where: 0} for peer in others}
        there = (frozenset({me}), frozenset[PeerId]())
        found = begins(made, replace(context(0, None), serving=there, eras=eras))
        assert (found is not None) is (apart or not elector_is_here)

    def test_who_has_begun_another_gives_the_others_time_to_follow(self) -> None:
        """They are its electors, and still serve the one before."""
        me, away = first(PEERS), peer_id_from_key(bytes(range(32)))
        lineage = Lineage(FIRST.era, electors=(away,))
        made = machine(me, lineage=lineage)
        for other in PEERS:
            made.receive(other, Stored(lineage), 0.0)
        there = (frozenset({me}), frozenset[PeerId]())
        found = begins(made, replace(context(0, None), serving=there))
        assert found == made.lineage, "once"
        assert set(found.electors) == set(PEERS)


class TestEnded:
    """The processes of so many electors have ended that nobody closes the step."""

    def alone(self, electors: int, *serving: PeerId, saves: bool = True) -> list[RecoveryEffect]:
        """Return what happens in half a minute, the last of which saves what it is asked to."""
        me, effects = PEERS[0], list[RecoveryEffect]()
        made = machine(me, (0, 20), (1, 20))
        for now in range(36):
            if adopted(effects) is not None:
                break
            seen = context(27, 27, live=[me])
            there = (frozenset({me}), frozenset(serving or {me}))
            ended = lambda: electors if now >= 5 else 0  # noqa: B023, E731
            effects += made.update(replace(seen, serving=there, ended=ended), float(now))
            if saves and any(isinstance(effect, SaveNow) for effect in effects):
                effects += made.set_copies(copies((0, 27), (1, 27)), float(now))
        return effects

    def test_of_two_the_other_goes_on_from_what_it_serves(self) -> None:
        effects = self.alone(2)
        assert [e.lineage.version for e in effects if isinstance(e, Adopt)] == [27]
        assert sum(isinstance(e, SaveNow) for e in effects) == 1

    def test_not_before_that_is_written_down(self) -> None:
        effects = self.alone(2, saves=False)
        assert sum(isinstance(e, SaveNow) for e in effects) == 1
        assert adopted(effects) is None

    def test_who_serves_a_part_only_goes_back_to_a_checkpoint(self) -> None:
        effects = self.alone(2, PEERS[1])
        assert [e.lineage.version for e in effects if isinstance(e, Adopt)] == [20]
        assert not any(isinstance(e, SaveNow) for e in effects)

    def test_of_more_most_come_back(self) -> None:
        assert adopted(self.alone(4)) is None


class TestChoice:
    def test_who_decides_the_same_again_begins_another_lineage(self) -> None:
        """In the first one there may be versions that it or others have made since."""
        one, two = (next_era(FIRST, FIRST, PEERS[0], seq, FIRST.electors) for seq in (1, 2))
        assert one.number == two.number == 1
        assert one.era != two.era

    def test_copies_of_another_lineage_do_not_count(self) -> None:
        later = Lineage(1 << 32, 10, (digest(0, 10), digest(1, 10)))
        old = stored((0, 30), (1, 30), (0, 10), (1, 10))
        assert Claims({PEERS[0]: old}, later).newest_whole(2).version == 0
        new = stored((0, 10), (1, 10), (0, 20), lineage=later)
        assert Claims({PEERS[0]: old, PEERS[1]: new}, later).newest_whole(2).version == 10

    @pytest.mark.parametrize("me", [0, 1])
    def test_of_as_many_claims_to_two_states_our_own_counts(self, me: int) -> None:
        said = [Stored(SEED, (Copy(0, 10, bytes([n]) * 32),)) for n in (1, 2)]
        claims = Claims(dict(zip(PEERS, said, strict=False)), me=PEERS[me])
        assert claims.hashes(10) == (said[me].copies[0].hash,)


class TestRecord:
    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            (Stored(FIRST, (Copy(7, 1, digest(7, 1)),)), "stored-absurd"),
            (Stored(FIRST, copies((1, 1), (0, 1))[::-1]), "stored-absurd"),
            (Stored(Lineage(1, 5, (), FIRST.electors)), "stored-absurd"),
            (Stored(Lineage(1)), "stored-absurd"),
            (Stored(Lineage(0, electors=FIRST.electors)), "stored-absurd"),
            (Stored(Lineage(1, electors=FIRST.electors[::-1])), "stored-absurd"),
            (Stored(Lineage(1, electors=FIRST.electors[:1] * 2)), "stored-absurd"),
            (Stored(replaced(BEGUN, electors=(PEERS[1],))), "stored-forged"),
            (
                Stored(replaced(BEGUN, version=3, hashes=(bytes(32),) * 2)),
                "stored-forged",
            ),
            (Stored(replaced(BEGUN, era=BEGUN.era + (1 << 32))), "stored-forged"),
        ],
    )
    def test_absurd_ones_are_refused(self, record: Stored, reason: str) -> None:
        with pytest.raises(RemoteProtocolError) as refused:
            check_stored(record, 2)
        assert refused.value.reason == reason
