"""Two lines of one run meet: which stands, and how the other one is given up."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import ASIDE_S, FETCH_S, FORGET_S
from protocol.recovery.effects import Adopt, FetchLine, RecoveryContext, RecoveryEffect
from protocol.recovery.evidence import Evidence, Kept
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, PATIENCE_S, Knowledge
from protocol.recovery.lines import MOST_FAILURES, Line
from protocol.recovery.machine import SETTLE_S, Recovery
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.wire.fields import ERA_BITS

ME, FRIEND, THIRD, FOURTH, FIFTH, *_ = PEERS = sorted(
    peer_id_from_key(bytes([n]) * 32) for n in range(8)
)
EVERY, TOGETHER = 10, 35
OURS, THEIRS = 7, 8
"""What a state is made of, in each line."""


def digest(version: int, line: int) -> bytes:
    return bytes([version % 251, version // 251, line if version > TOGETHER else 0]) + bytes(29)


def begun(number: int, version: int, line: int) -> Lineage:
    era = (number << ERA_BITS) | line
    return Lineage(era, version, (digest(version, line),) if version else (), (ME,))


def stored(lineage: Lineage, line: int, *versions: int) -> Stored:
    return Stored(lineage, tuple(Copy(0, v, digest(v, line)) for v in sorted(versions)))


class Trained:
    """One of a run of one stage that has trained with others, and then by itself."""

    def __init__(
        self,
        version: int,
        *,
        others: Iterable[PeerId] = (FRIEND,),
        founder: PeerId | None = None,
        beside: Iterable[PeerId] = (),
        lineage: Lineage | None = None,
    ) -> None:
        self.lineage = begun(1, TOGETHER, OURS) if lineage is None else lineage
        self.version, self.beside = version, tuple(beside)
        self.machine = Recovery(Knowledge(ME, 1, EVERY, self.lineage, founder=founder), 5)
        self.machine.set_copies(stored(self.lineage, OURS, version - version % EVERY).copies, 0.0)
        for step in range(1, version + 1):
            known = (*others, *self.beside) if step <= TOGETHER else self.beside
            self.machine.closed(0, step, digest(step, OURS), known, 10.0 * step / version)
        for peer in self.beside:
            self.machine.receive(peer, stored(self.lineage, OURS, version - EVERY), 9.0)
        self.fetches: list[FetchLine] = []
        self.adopted: list[Adopt] = []
        self.see({}, 10.0)

    def context(self, served: dict[PeerId, tuple[Lineage, int]]) -> RecoveryContext:
        """Return our view: we serve, and others serve these lineages at these versions."""
        with_us = dict.fromkeys(self.beside, (self.lineage, self.version))
        seats = with_us | served
        return RecoveryContext(
            frozenset({ME, *seats}),
            (self.version,),
            {peer: {lineage.era: version} for peer, (lineage, version) in seats.items()},
            serving=(frozenset({ME, *self.beside}),),
        )

    def see(self, served: dict[PeerId, tuple[Lineage, int]], now: float) -> None:
        self.take(self.machine.update(self.context(served), now))

    def take(self, effects: list[RecoveryEffect]) -> None:
        self.fetches += [e for e in effects if isinstance(e, FetchLine)]
        self.adopted += [e for e in effects if isinstance(e, Adopt)]

    def go_on(self, now: float) -> None:
        """Close one more step."""
        self.version += 1
        state = digest(self.version, OURS)
        self.machine.closed(0, self.version, state, self.beside, now)

    def meet(
        self, theirs: Lineage, version: int, *members: PeerId, copies: Iterable[int] = ()
    ) -> None:
        """Meet members of another line, which goes on as we do, for a minute."""
        for peer in members:
            self.take(self.machine.receive(peer, stored(theirs, THEIRS, *copies), 11.0))
        for second in range(60):
            now = 11.0 + second
            self.go_on(now)
            self.see(dict.fromkeys(members, (theirs, version + second)), now)


def test_three_stand_before_fewer_then_steps_then_the_founder_then_the_lower_id() -> None:
    """More members count only from three on."""
    lines = [
        Line(begun(1, 60, 4), frozenset(PEERS[4:7]), 40),
        Line(begun(1, 50, 3), frozenset({THIRD, FOURTH}), 91),
        Line(begun(1, 35, 2), frozenset({FRIEND}), 90),
        Line(begun(1, 35, 1), frozenset({ME}), 90),
        Line(begun(1, 35, 1), frozenset({FIFTH}), 90),
        Line(begun(1, 50, 3), frozenset({THIRD, FOURTH}), 85),
    ]
    places = [line.place(FRIEND) for line in lines]
    assert places == sorted(set(places))


class TestTraining:
    theirs = begun(1, 100, THEIRS)

    def test_the_shorter_line_is_given_up_once_the_others_state_is_here(self) -> None:
        made = Trained(200)
        made.meet(self.theirs, 300, FRIEND, copies=(290, 300))
        assert not made.adopted, "it trains on while it fetches"
        (wanted,) = made.fetches
        assert wanted == FetchLine(
            self.theirs, (Copy(0, 300, digest(300, THEIRS)),), (FRIEND,), FETCH_S
        )
        made.take(made.machine.fetched(80.0))
        (adopt,) = made.adopted
        assert adopt.lineage == self.theirs
        given_up = adopt.given_up
        assert (given_up.version, given_up.steps) == (made.version, made.version - TOGETHER)
        assert given_up.fetched == wanted.copies
        assert given_up.members == (FRIEND,)

    @pytest.mark.parametrize("version", [200, 400])
    def test_another_line_is_seen_whichever_stands(self, version: int) -> None:
        made = Trained(version)
        assert not made.machine.lines.beside()
        made.meet(self.theirs, 300, FRIEND)
        assert not made.fetches, "nor adopted: a word without a state takes nobody along"
        assert not made.adopted
        assert made.machine.lines.beside() == [Line(self.theirs, frozenset({FRIEND}), 359)]
        made.see({}, 80.0)
        assert not made.machine.lines.beside()

    @pytest.mark.parametrize(
        ("version", "founder", "beside", "met", "stands"),
        [
            (400, None, (), FRIEND, True),
            (299, ME, (), FRIEND, True),
            (299, FRIEND, (), FRIEND, False),
            (299, None, (), FRIEND, True),
            (200, None, (), THIRD, True),
            (200, None, (THIRD,), FRIEND, False),
            (200, None, (THIRD, FOURTH), FRIEND, True),
        ],
        ids=["longer", "founder's", "not it", "nobody's", "stranger", "two", "three"],
    )
    def test_which_stands(
        self,
        version: int,
        founder: PeerId | None,
        beside: tuple[PeerId, ...],
        met: PeerId,
        stands: bool,
    ) -> None:
        """One alone takes no three along, nor does a stranger any."""
        made = Trained(version, founder=founder, beside=beside)
        made.meet(self.theirs, 300, met, copies=(290, 300, 320))
        assert (not made.fetches) == stands
        assert made.machine.lineage == made.lineage

    def test_nor_does_one_that_stands_still(self) -> None:
        made = Trained(200)
        made.machine.receive(FRIEND, stored(self.theirs, THEIRS, 290, 300), 11.0)
        for second in range(60):
            made.go_on(11.0 + second)
            made.see({FRIEND: (self.theirs, 300)}, 11.0 + second)
        assert not made.fetches
        assert not made.machine.lines.beside()

    def test_nor_does_a_state_that_is_not_to_be_had(self) -> None:
        made = Trained(200)
        made.meet(self.theirs, 300, FRIEND, copies=(290, 300))
        for failure in range(MOST_FAILURES):
            made.take(made.machine.not_fetched(80.0 + failure))
        assert len(made.fetches) == MOST_FAILURES
        assert not made.adopted
        made.take(made.machine.tick(80.0 + MOST_FAILURES + ASIDE_S))
        made.see({FRIEND: (self.theirs, 400)}, 80.0 + MOST_FAILURES + ASIDE_S)
        assert len(made.fetches) == MOST_FAILURES + 1, "it is tried again after a while"

    def test_a_state_that_comes_too_slowly_gives_way_to_another_line(self) -> None:
        """A donor's bytes may drip: its line stands before the other one, but is refused for a
        while, and may take twice as long the next time."""
        made, third = Trained(200, others=(FRIEND, THIRD)), begun(1, 110, THEIRS + 1)
        made.meet(self.theirs, 300, FRIEND, copies=(290, 300))
        made.take(made.machine.receive(THIRD, stored(third, THEIRS + 1, 900), 71.0))
        made.take(made.machine.receive(FRIEND, stored(self.theirs, THEIRS, 900), 71.0))

        def both(now: float) -> None:
            made.go_on(now)
            at = int(now)
            made.see({FRIEND: (self.theirs, 360 + at), THIRD: (third, 290 + at)}, now)

        for second in range(60):
            both(71.0 + second)
        fails = 71.0 + FETCH_S
        both(fails - 1)
        made.take(made.machine.not_fetched(fails))
        both(fails + 1)
        assert [one.lineage for one in made.fetches] == [self.theirs, third]
        made.take(made.machine.not_fetched(fails + FETCH_S + 1))
        both(fails + FETCH_S + 2)
        assert [one.within_s for one in made.fetches] == [FETCH_S, FETCH_S, 2 * FETCH_S]
        assert made.fetches[-1].lineage == self.theirs

    def test_three_take_along_one_that_has_gone_further(self) -> None:
        three = (FRIEND, THIRD, FOURTH)
        made = Trained(500, others=three)
        made.meet(self.theirs, 300, *three, copies=(290, 300))
        (wanted,) = made.fetches
        assert wanted.copies == (Copy(0, 300, digest(300, THEIRS)),)
        made.take(made.machine.fetched(80.0))
        assert [one.lineage for one in made.adopted] == [self.theirs]

    def test_a_pause_of_the_line_that_stands_does_not_end_it(self) -> None:
        """The others may be about to come over."""
        two = (FRIEND, THIRD)
        made = Trained(500, others=two)
        made.meet(self.theirs, 300, *two, copies=(290, 300))
        begins = 11.0 + 60
        for second in range(int(BRIEF_PATIENCE_S + 2 * PATIENCE_S)):
            made.see(dict.fromkeys(two, (self.theirs, made.version - 1)), begins + second)
        assert not made.fetches
        assert not made.adopted

    def test_once_it_is_passed_it_is_given_up_all_the_same(self) -> None:
        two = (FRIEND, THIRD)
        made = Trained(500, others=two)
        made.meet(self.theirs, 300, *two, copies=(550, 560))
        made.see(dict.fromkeys(two, (self.theirs, made.version + 1)), 11.0 + 60 + PATIENCE_S)
        assert made.fetches
        assert not made.adopted

    def test_a_state_that_is_here_is_used_though_a_third_line_stands_before_both(self) -> None:
        """Else two that take turns could be fetched without end."""
        made, third = Trained(200, others=(FRIEND, THIRD)), begun(1, 110, THEIRS + 1)
        made.meet(self.theirs, 300, FRIEND, copies=(290, 300))
        made.take(made.machine.receive(THIRD, stored(third, THEIRS + 1, 700), 71.0))
        for second in range(60):
            made.go_on(71.0 + second)
            both = {FRIEND: (self.theirs, 360 + second), THIRD: (third, 700 + second)}
            made.see(both, 71.0 + second)
        assert [one.lineage for one in made.fetches] == [self.theirs]
        made.take(made.machine.receive(FRIEND, stored(self.theirs, THEIRS, 410), 131.0))
        made.take(made.machine.fetched(131.0))
        assert [one.lineage for one in made.adopted] == [self.theirs]


class TestReturning:
    """A member comes back, and finds another that serves."""

    def back(
        self, *versions: int, theirs: Lineage, at: int, copies: Iterable[int], now: float = 0.0
    ) -> Trained:
        made = Trained(max(versions, default=TOGETHER))
        evidence, lineage = made.machine.evidence, made.lineage
        evidence.closed_at = None
        evidence.closed(0, evidence.version, digest(evidence.version, OURS), (), 0.0, PEERS[:3])
        evidence.closed_at = None
        made.machine = Recovery(Knowledge(ME, 1, EVERY, lineage, evidence=evidence, founder=ME), 9)
        made.take(made.machine.set_copies(stored(lineage, OURS, *versions).copies, 10.0))
        alone = RecoveryContext(frozenset({ME}), (None,))
        made.take(made.machine.update(alone, 10.0))
        if now:
            made.take(made.machine.tick(now))
        begins = 10.0 + now
        made.take(made.machine.receive(FRIEND, stored(theirs, THEIRS, *copies), begins))
        seats = {FRIEND: {theirs.era: at}}
        seen = RecoveryContext(frozenset({ME, FRIEND}), (None,), seats)
        made.take(made.machine.update(seen, begins))
        for second in range(1, int(BRIEF_PATIENCE_S + 2 * SETTLE_S)):
            if not made.adopted:
                made.take(made.machine.tick(begins + second))
        return made

    @pytest.mark.parametrize("now", [0.0, PATIENCE_S / 2])
    def test_it_fetches_the_state_of_the_line_that_goes_further(self, now: float) -> None:
        """Ours has made the version at which theirs begins, too, as another state."""
        theirs = begun(1, 100, THEIRS)
        made = self.back(360, 370, theirs=theirs, at=388, copies=(370, 380), now=now)
        assert [one.copies[0].version for one in made.fetches] == [380]
        assert not made.adopted
        made.take(made.machine.fetched(200.0))
        assert [one.lineage for one in made.adopted] == [theirs]
        assert not any(one.ours for one in made.adopted)

    def test_it_waits_two_minutes_at_most_for_one_that_sends_slowly(self) -> None:
        theirs = begun(1, 100, THEIRS)
        made = self.back(360, 370, theirs=theirs, at=388, copies=(370, 380))
        for second in range(int(PATIENCE_S) + 30):
            made.take(made.machine.tick(50.0 + second))
        assert len(made.fetches) == 1
        assert [(one.ours, one.lineage.version) for one in made.adopted] == [(True, 370)]

    def test_who_undoes_a_checkpoint_interval_at_most_joins_at_once(self) -> None:
        made = self.back(360, 370, theirs=begun(2, 362, OURS), at=364, copies=())
        assert [(one.ours, one.lineage.version) for one in made.adopted] == [(False, 362)]
        assert not made.fetches

    def test_without_a_readable_copy_it_goes_over_at_once(self) -> None:
        made = self.back(theirs=begun(1, 20, THEIRS), at=50, copies=(40, 50), now=PATIENCE_S / 2)
        assert [one.lineage.version for one in made.adopted] == [20]
        assert not made.fetches

    def test_who_has_far_more_steps_goes_on_with_them(self) -> None:
        """The others follow once it serves; until then they help it to close no step."""
        made = self.back(300, 370, theirs=begun(1, 0, THEIRS), at=15, copies=(10,))
        made.take(made.machine.tick(PATIENCE_S + 60.0))
        assert [(one.ours, one.lineage.version) for one in made.adopted] == [(True, 370)]
        assert made.machine.lineage.electors == (ME,)


class TestBegunApart:
    """Two groups have begun the run without each other: they have worked with none of the other."""

    ours, theirs = begun(0, 0, OURS), begun(0, 0, THEIRS)

    def group(self, founder: PeerId | None, beside: tuple[PeerId, ...]) -> Trained:
        made = Trained(200, others=(), beside=beside, founder=founder, lineage=self.ours)
        made.meet(self.theirs, 40, FRIEND, FIFTH, copies=(50, 60))
        return made

    @pytest.mark.parametrize("beside", [(THIRD,), (THIRD, FOURTH)])
    def test_the_founders_stands_however_far_the_other_has_gone(
        self, beside: tuple[PeerId, ...]
    ) -> None:
        made = self.group(FRIEND, beside)
        (wanted,) = made.fetches
        assert wanted.copies == (Copy(0, 60, digest(60, THEIRS)),)
        made.take(made.machine.fetched(80.0))
        assert [one.lineage for one in made.adopted] == [self.theirs]

    @pytest.mark.parametrize("founder", [ME, THIRD, None])
    def test_no_other_is_believed(self, founder: PeerId | None) -> None:
        assert not self.group(founder, (THIRD,)).fetches

    def test_nor_is_the_founders_before_it_has_a_checkpoint(self) -> None:
        made = Trained(200, others=(), beside=(THIRD,), founder=FRIEND, lineage=self.ours)
        made.machine.receive(FRIEND, stored(self.theirs, THEIRS, 8), 11.0)
        for second in range(60):
            made.go_on(11.0 + second)
            made.see({FRIEND: (self.theirs, second // 6)}, 11.0 + second)
        assert not made.fetches

    @pytest.mark.parametrize("version", [EVERY, EVERY + 1])
    def test_the_founder_goes_over_alone_until_then(self, version: int) -> None:
        made = Trained(version, others=(), founder=ME, lineage=self.ours)
        made.machine.receive(FRIEND, stored(self.theirs, THEIRS, 300), 11.0)
        for second in range(60):
            made.see({FRIEND: (self.theirs, 300 + second)}, 11.0 + second)
        assert bool(made.fetches) == (version == EVERY)


class TestFounding:
    def newcomer(self, *, saw_training: bool) -> Recovery:
        made = Recovery(Knowledge(ME, 1, EVERY, evidence=Evidence(Kept(saw_training=saw_training))))
        made.set_copies((), 0.0)
        made.update(RecoveryContext(frozenset({ME}), (None,)), 0.0)
        return made

    def test_who_has_only_copied_from_a_run_with_versions_never_begins_it_again(self) -> None:
        made = self.newcomer(saw_training=True)
        for now in (SETTLE_S, PATIENCE_S + 60.0, 100_000.0):
            assert not [e for e in made.tick(now) if isinstance(e, Adopt)]
            assert not made.open
            assert not made.may_begin(0, now)
        assert made.waiting.until is None

    def test_who_was_there_before_the_first_step_begins_with_whoever_is_here(self) -> None:
        made = self.newcomer(saw_training=False)
        assert [e.ours for e in made.tick(SETTLE_S) if isinstance(e, Adopt)] == [True]
        assert made.lineage.electors == (ME,)

    @pytest.mark.parametrize(("founder", "begins"), [(FRIEND, False), (ME, True)])
    def test_nor_does_who_hears_of_versions_from_a_peer_whose_advert_does_not_count(
        self, founder: PeerId, begins: bool
    ) -> None:
        """As with a clock that is wrong: nobody is a member, though the text was copied."""
        made = Recovery(Knowledge(ME, 1, EVERY, founder=founder))
        made.set_copies((), 0.0)
        made.update(RecoveryContext(frozenset({ME}), (None,), heard=lambda: 700), 0.0)
        assert any(isinstance(e, Adopt) for e in made.tick(SETTLE_S)) == begins

    @pytest.mark.parametrize("was_there", [False, True])
    def test_nor_does_who_sees_the_state_of_the_run_vanish_unless_it_was_there_when_it_began(
        self, was_there: bool
    ) -> None:
        """Whoever has closed the first step has gone, with all that came of it."""
        made = self.newcomer(saw_training=False)
        electors = (ME, FRIEND) if was_there else (FRIEND,)
        theirs, live = Lineage(THEIRS, electors=electors), frozenset({ME, FRIEND})
        made.receive(FRIEND, stored(theirs, THEIRS), 0.5)
        seen = RecoveryContext(live, (700,), {FRIEND: {theirs.era: 700}})
        made.update(replace(seen, versions=(None,)), 1.0)
        assert made.lineage == theirs
        made.update(seen, 1.0)
        made.update(replace(seen, versions=(None,), eras={}), 10.0)
        effects = [*made.tick(20.0), *made.tick(20.0 + 2 * PATIENCE_S)]
        assert any(isinstance(e, Adopt) for e in effects) is was_there


def test_a_line_is_seen_for_a_while_before_ours_is_given_up() -> None:
    made, theirs = Trained(200), begun(1, 100, THEIRS)
    made.machine.receive(FRIEND, stored(theirs, THEIRS, 300), 11.0)
    made.see({FRIEND: (theirs, 300)}, 11.0)
    made.go_on(11.0)
    made.see({FRIEND: (theirs, 310)}, 10.5 + FORGET_S)
    assert not made.fetches
    made.go_on(11.5 + FORGET_S)
    made.see({FRIEND: (theirs, 311)}, 11.5 + FORGET_S)
    assert made.fetches


def test_a_line_that_was_just_left_is_no_reason_to_go_back() -> None:
    """Else two rules could take turns without end."""
    made, theirs = Trained(200), begun(1, 100, THEIRS)
    made.meet(theirs, 300, FRIEND, copies=(290, 300))
    made.take(made.machine.fetched(80.0))
    assert made.machine.lineage == theirs
    left = {FRIEND: (made.lineage, 900)}
    made.machine.receive(FRIEND, stored(made.lineage, OURS, 890, 900), 81.0)
    for second in range(int(ASIDE_S) - 5):
        made.take(made.machine.update(replace(made.context(left), versions=(400,)), 81.0 + second))
        left = {FRIEND: (made.lineage, 901 + second)}
    assert len(made.fetches) == 1
    assert len(made.adopted) == 1
