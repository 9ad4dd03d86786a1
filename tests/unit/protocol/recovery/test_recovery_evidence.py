"""The records that decide where the run continues: counted work, within possible versions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from client.store.persisted import Persisted
from client.store.records import EVIDENCE
from client.train.recovery.history import why_unusable
from protocol.ids import PeerId, peer_id_from_key, rank
from protocol.pace import ANSWER_S, FORGET_S, HEARD_S
from protocol.recovery.choice import next_era
from protocol.recovery.deciding import MAX_TURNS
from protocol.recovery.effects import Adopt, RecoveryContext, RecoveryEffect
from protocol.recovery.evidence import (
    AHEAD_STEPS,
    DOUBTED_AFTER,
    MAX_DOUBTED,
    MAX_PROVEN,
    Evidence,
    Kept,
    Known,
)
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, PATIENCE_S, Knowledge
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import STORED_BODIES, Copy, Lineage, Stored, begun, check_stored
from protocol.view import Replica, SwarmView
from protocol.waypoints.chain import Waypoint
from protocol.wire.fields import MAX_NUMBER

ME, SIBLING, NEXT, *STRANGERS = (peer_id_from_key(bytes([n]) * 32) for n in range(90))
FIRST = begun(0, 0, (), (ME,), b"")
EVERY, STEPS = 10, 100_000
HASH = bytes(31)


def digest(stage: int, version: int, forged: int = 0) -> bytes:
    return bytes([stage, version % 256, forged]) + bytes(29)


def stored(*held: tuple[int, int], lineage: Lineage = FIRST, forged: int = 0) -> Stored:
    copies = sorted(Copy(stage, version, digest(stage, version, forged)) for stage, version in held)
    return Stored(lineage, tuple(copies))


def lineage(number: int, version: int, forged: int = 0) -> Lineage:
    hashes = (digest(0, version, forged), digest(1, version, forged)) if version else ()
    return Lineage((number << 32) | FIRST.era, version, hashes, (ME,))


def adopted(effects: list[RecoveryEffect]) -> Lineage | None:
    return next((e.lineage for e in effects if isinstance(e, Adopt)), None)


def context(
    *versions: int | None,
    live: tuple[PeerId, ...] = (ME, SIBLING, NEXT),
    serving: Mapping[PeerId, Mapping[int, int]] | None = None,
    unlinked: tuple[PeerId, ...] = (),
    quorum: bool = True,
) -> RecoveryContext:
    eras = {peer: {FIRST.era: 0} for peer in live} if serving is None else serving
    seen = (frozenset((*live, *unlinked)), versions, eras, lambda now: quorum)
    return RecoveryContext(*seen, unlinked=frozenset(unlinked))


def training(*others: PeerId, until: int = 27, steps: int = STEPS) -> Recovery:
    """One at stage 0 that has closed all steps up to ``until`` with others, the last at 10 s."""
    made = Recovery(Knowledge(ME, 2, EVERY, FIRST, steps=steps))
    made.set_copies([Copy(0, 20, digest(0, 20)), Copy(0, 10, digest(0, 10))], 0.0)
    for other in others:
        made.receive(other, stored((0, 20), (1, 20), (0, 10), (1, 10)), 1.0)
    for version in range(1, until + 1):
        made.closed(0, version, digest(0, version), others, 10.0 * version / until)
    assert adopted(made.update(context(until, until, live=(ME, *others)), 10.0)) is None
    return made


class TestInventedMembers:
    def test_links_and_seats_by_word_have_no_voice(self) -> None:
        made = training(SIBLING, NEXT)
        live = (ME, SIBLING, NEXT, *STRANGERS[:80])
        for now in (11.0, 10.0 + BRIEF_PATIENCE_S + 1, 10.0 + BRIEF_PATIENCE_S + FORGET_S + 2):
            made.update(context(27, 27, live=live), now)
            for author in STRANGERS[:80]:
                said = stored((0, 26), (1, 26), lineage=lineage(1, 0))
                assert adopted(made.receive(author, said, now)) is None
            assert adopted(made.tick(now)) is None

    @pytest.mark.parametrize("after", [BRIEF_PATIENCE_S + 1, PATIENCE_S + 1])
    def test_one_that_has_worked_makes_no_version_with_those_it_invents(self, after: float) -> None:
        """It vouches for its inventions, and they say what it says."""
        made, now = training(SIBLING, NEXT), 10.0 + after
        made.update(context(27, None, unlinked=tuple(STRANGERS[:40])), now)
        made.tick(now + ANSWER_S)
        false = stored((0, 30), (1, 30), lineage=lineage(0, 30, forged=9), forged=9)
        effects = [
            e for p in (NEXT, *STRANGERS[:40]) for e in made.receive(p, false, now + ANSWER_S)
        ]
        assert adopted(effects) is None
        assert made.known.newest_whole().version == 20
        made.receive(SIBLING, false, now + ANSWER_S)
        assert made.known.newest_whole().version == 30, "two say so who have both worked"

    def test_they_delay_a_decision_by_one_turn_at_most(self) -> None:
        made = training(SIBLING, NEXT)
        live = (ME, *STRANGERS[:80])
        made.set_copies([Copy(s, 20, digest(s, 20)) for s in (0, 1)], 15.0)
        made.update(context(27, None, live=live), 20.0)
        effects = [*made.tick(20.0 + ANSWER_S), *made.tick(20.0 + ANSWER_S + HEARD_S)]
        assert adopted(effects) is not None

    @pytest.mark.parametrize("elector", [SIBLING, STRANGERS[0]])
    def test_in_trouble_no_lineage_is_followed_that_a_stranger_alone_elects(
        self, elector: PeerId
    ) -> None:
        made = training(SIBLING, NEXT)
        made.update(context(27, None, live=(ME, SIBLING, STRANGERS[0])), 20.0)
        later = begun(1, 20, (digest(0, 20), digest(1, 20)), (elector,), b"")
        said = stored((0, 20), (1, 20), lineage=later)
        followed = adopted([*made.receive(STRANGERS[0], said, 20.0), *made.tick(20.0 + ANSWER_S)])
        assert (followed == later) == (elector == SIBLING), "else it decides itself"

    @pytest.mark.parametrize("held", [(), ((0, 20),), ((0, 5000),)])
    def test_members_without_a_state_of_a_lineage_lead_nobody_there(
        self, held: tuple[tuple[int, int], ...]
    ) -> None:
        """Two that have worked with us were alone with a liar, and follow it; nobody has its
        states."""
        made, later, now = training(SIBLING, NEXT), lineage(3, 5000), 20.0
        made.update(context(27, None, serving={}, quorum=False), now)
        said = Stored(later, stored(*held).copies)
        told = [e for other in (SIBLING, NEXT) for e in made.receive(other, said, now)]
        told += made.tick(now + ANSWER_S)
        assert adopted(told) == (later if held == ((0, 5000),) else None)

    def test_nor_for_ever_one_that_comes_back_and_knows_nobody(self) -> None:
        made = Recovery(Knowledge(ME, 2, EVERY, FIRST))
        made.set_copies([Copy(s, 20, digest(s, 20)) for s in (0, 1)], 0.0)
        made.update(context(None, None, live=(ME, STRANGERS[0]), serving={}), 0.0)
        found, now = None, 0.0
        while found is None and now < FORGET_S + MAX_TURNS * HEARD_S + 2:
            now += 1.0  # somebody changes its record every second
            said = stored((0, 20), (1, 20), (0, 1 + int(now) % 7))
            found = adopted([*made.receive(STRANGERS[0], said, now), *made.tick(now)])
        assert found.version == 20


class TestForgedVersions:
    def test_no_version_beyond_the_runs_steps_and_none_that_one_alone_names(self) -> None:
        """Also in trouble, and from the only other one that we have worked with."""
        made = training(NEXT)
        made.update(context(27, None, live=(ME, NEXT)), 30.0)
        for version in (777_777, STEPS + 1, 5_000):
            said = stored((0, version), (1, version), lineage=lineage(1, version))
            assert adopted(made.receive(NEXT, said, 30.0)) is None
            assert made.known.newest_whole().version == 0, (
                "nobody says any more that it has version 20"
            )

    @pytest.mark.parametrize(
        ("version", "forged", "found"), [(STEPS + 1, 0, ()), (20, 9, (digest(0, 20),))]
    )
    def test_nor_one_that_all_name_who_have_worked(
        self, version: int, forged: int, found: tuple[bytes, ...]
    ) -> None:
        """Beyond the run, or another than we have made."""
        made = training(SIBLING, NEXT)
        for other in (SIBLING, NEXT):
            made.receive(other, stored((0, version), (1, version), forged=forged), 11.0)
        assert made.known.newest_whole().hashes[:1] == found

    def test_a_newcomer_knows_at_least_how_long_the_run_is(self) -> None:
        made = Recovery(Knowledge(ME, 2, EVERY, FIRST, steps=STEPS))
        made.set_copies([], 0.0)
        said = stored((0, 777_777), (1, 777_777), lineage=lineage(1, 777_777))
        made.receive(STRANGERS[0], said, 0.1)
        seats = {STRANGERS[0]: {1 << 32: 0}}
        effects = made.update(context(None, None, live=(ME, STRANGERS[0]), serving=seats), 0.2)
        assert adopted([*effects, *made.tick(10.0), *made.tick(200.0)]) != said.lineage

    @pytest.mark.parametrize("odd_one_out", [False, True])
    def test_a_state_that_we_made_is_not_another_unless_we_are_the_odd_one_out(
        self, odd_one_out: bool
    ) -> None:
        made = training(SIBLING, NEXT)
        if odd_one_out:
            made.evidence.reopened(0)
        truth = lineage(1, 20, forged=9)
        made.update(context(27, None), 30.0)
        for other in (SIBLING, NEXT):
            made.receive(other, stored((0, 20), (1, 20), lineage=truth, forged=9), 30.5)
        made.tick(30.0 + ANSWER_S)
        assert made.lineage == (truth if odd_one_out else FIRST)

    def test_a_strangers_copy_counts_if_one_whom_we_know_had_named_it(self) -> None:
        made = training(NEXT)
        made.forget(NEXT)
        made.update(context(27, None, live=(ME, STRANGERS[0])), 20.0)
        made.receive(STRANGERS[0], stored((1, 20)), 20.1)
        assert made.known.newest_whole().hashes == (digest(0, 20), digest(1, 20))
        made.receive(STRANGERS[0], stored((1, 20), forged=9), 20.2)
        assert made.known.newest_whole().version == 0

    def test_most_of_those_who_have_worked_are_believed_of_a_state(self) -> None:
        made = training(SIBLING, NEXT)
        live = (ME, SIBLING, NEXT, *STRANGERS[:9])
        made.update(context(27, 27, live=live), 11.0)
        for author in STRANGERS[:9]:
            made.receive(author, stored((1, 20), forged=9), 11.0)
        assert made.known.newest_whole().hashes == (digest(0, 20), digest(1, 20))

    def test_a_version_that_is_alone_far_ahead_is_not_believed(self) -> None:
        made = training(SIBLING, NEXT)
        at = {SIBLING: 27, NEXT: 27, STRANGERS[0]: 1 << 39}
        view = SwarmView.of(
            [[Replica(SIBLING, 27, serving=True)], [Replica(p, at[p], True) for p in at][1:]]
        )
        assert made.known.versions(view) == (27, 27)

    def test_our_own_version_needs_nobody_who_bears_it_out(self) -> None:
        """Else who is left alone one step ahead sees no stage that is behind."""
        made = training(SIBLING, NEXT)
        view = SwarmView.of([[Replica(ME, 28, serving=True)], [Replica(NEXT, 27, serving=True)]])
        assert made.known.versions(view) == (28, 27)

    def test_nor_is_the_only_one_that_is_left_further_ahead_than_we_can_have_left_it(self) -> None:
        made = training(SIBLING, NEXT)
        view = SwarmView.of([[], [Replica(NEXT, 1 << 39, serving=True)]])
        assert made.known.versions(view) == (None, 27 + AHEAD_STEPS)


class TestHealth:
    def test_who_trains_follows_nobody(self) -> None:
        made = training(SIBLING, NEXT)
        for other in (SIBLING, NEXT):
            assert adopted(made.receive(other, stored(lineage=lineage(1, 0)), 11.0)) is None
        made.closed(0, 28, digest(0, 28), [SIBLING], 11.0 + FORGET_S - 1)
        assert adopted(made.tick(11.0 + FORGET_S - 0.1)) is None

    @pytest.mark.parametrize("era", [0, 1, 5 << 32])
    def test_an_era_has_one_beginning(self, era: int) -> None:
        made, now = (
            Recovery(Knowledge(ME, 2, EVERY, lineage=Lineage(5 << 32, electors=(ME,)))),
            60.0,
        )
        made.set_copies([], 0.0)
        made.update(context(27, 27, serving={}), now)
        false = Lineage(era, 20, (digest(0, 20), digest(1, 20)), (ME,))
        now += BRIEF_PATIENCE_S + 1
        effects = [e for p in (SIBLING, NEXT) for e in made.receive(p, Stored(false), now)]
        assert adopted([*effects, *made.tick(now + FORGET_S)]) is None

    @pytest.mark.parametrize("newcomer", [False, True])
    @pytest.mark.parametrize(("number", "lost"), [(1, False), (1000, False), (1000, True)])
    def test_one_of_many_leads_nobody_where_there_is_no_trouble_or_far_ahead(
        self, newcomer: bool, number: int, lost: bool
    ) -> None:
        """It names true states and electors, again and again: a step may just be slow."""
        made = Recovery(Knowledge(ME, 2, EVERY, FIRST)) if newcomer else training(SIBLING, NEXT)
        live, told = (ME, SIBLING, NEXT, *STRANGERS[:2]), list[RecoveryEffect]()
        made.set_copies([Copy(0, 20, digest(0, 20))], 10.0)
        for other in live[1:]:
            made.receive(other, stored((0, 20), (1, 20)), 10.0)
        for now in range(11, 11 + int(BRIEF_PATIENCE_S + PATIENCE_S) + 20):
            states = digest(0, 20), digest(1, 20)
            later = begun(number, 20, states, tuple(sorted(live)), bytes([now]))
            seen = context(27, None if lost else 27, live=live, quorum=False)
            told += made.update(seen, float(now))
            told += made.receive(NEXT, stored((0, 20), (1, 20), lineage=later), float(now))
        assert adopted(told) is None

    def test_one_alone_does_not_throw_away_what_others_have(self) -> None:
        """In real trouble, too: it decides to restart at a version before the newest complete
        one."""
        made = training(SIBLING, NEXT)
        made.update(context(27, None), 30.0)
        for version in (0, 10):
            said = stored((0, 20), (1, 20), lineage=lineage(1, version))
            assert adopted(made.receive(SIBLING, said, 30.5)) is None

    def test_the_last_step_of_the_run_stands(self) -> None:
        made = training(NEXT, until=30, steps=30)
        assert adopted(made.receive(NEXT, stored(lineage=lineage(1, 20)), 500.0)) is None
        assert adopted(made.tick(500.0 + FORGET_S + PATIENCE_S)) is None

    def test_it_stands_only_once_every_stage_has_made_it(self) -> None:
        """What the other stage still needs may be with those that have left, though it moves."""
        for version in (30, 29):
            made = training(NEXT, until=29, steps=30)
            made.closed(0, 30, digest(0, 30), (NEXT,), 11.0)
            for now in range(12, 500, 4):
                seen = replace(context(30, version, live=(ME, NEXT)), moved=({}, {NEXT: now}))
                made.update(seen, float(now))
            told = made.receive(NEXT, stored((0, 20), (1, 20), lineage=lineage(1, 20)), 500.0)
            assert (adopted(told) is None) is (version == 30)


OTHERS = (SIBLING, NEXT, *STRANGERS[:2])
IN_TURN = sorted((ME, *OTHERS), key=lambda peer: rank("restore", FIRST.number, peer))
BEHIND = [peer for peer in IN_TURN if peer != ME]
LATER = stored((0, 20), (1, 20), lineage=lineage(1, 20))


class TestCannotGoOn:
    """Four others have worked with us; no majority is within reach, so we decide nothing."""

    def seen(self, *versions: int | None) -> RecoveryContext:
        return context(*versions, live=(ME, *OTHERS), quorum=False)

    def lost(self) -> Recovery:
        """One that sees a stage without its state since 20 s."""
        made = training(*OTHERS)
        assert adopted(made.update(self.seen(27, None), 20.0)) is None
        return made

    @pytest.mark.parametrize("peer", BEHIND)
    def test_one_members_decision_is_enough_when_it_was_its_turn(self, peer: PeerId) -> None:
        made, turn = self.lost(), 20.0 + ANSWER_S + HEARD_S * IN_TURN.index(peer)
        assert adopted([*made.receive(peer, LATER, 20.5), *made.tick(turn - 0.1)]) is None
        assert adopted(made.tick(turn)) == LATER.lineage

    def test_that_of_one_whom_another_has_followed_is_once_the_trouble_lasts(self) -> None:
        made = self.lost()
        told = [e for peer in BEHIND[-2:] for e in made.receive(peer, LATER, 20.5)]
        assert adopted([*told, *made.tick(19.9 + ANSWER_S)]) is None, "a hand-over takes a moment"
        assert adopted(made.tick(20.0 + ANSWER_S)) == LATER.lineage

    def test_trouble_that_has_ended_is_no_reason_to_follow_one(self) -> None:
        made = self.lost()
        made.tick(20.0 + ANSWER_S)
        told = made.receive(BEHIND[-1], LATER, 21.5)
        for now in range(22, 22 + int(PATIENCE_S)):
            told += made.update(self.seen(27, 27), float(now))
        assert adopted(told) is None

    def test_one_that_begins_lineage_after_lineage_leads_us_once(self) -> None:
        made, told = self.lost(), list[RecoveryEffect]()
        for tick in range(200, 200 + 10 * int(PATIENCE_S)):
            number, now = made.lineage.number + 1, tick / 10
            states = digest(0, 20), digest(1, 20)
            later = begun(number, 20, states, tuple(sorted((ME, *OTHERS))), bytes([tick % 256]))
            told += made.receive(BEHIND[0], stored((0, 20), (1, 20), lineage=later), now)
            told += made.update(self.seen(*((20, 20) if made.lineage.number else (27, None))), now)
        assert [e.lineage.number for e in told if isinstance(e, Adopt)] == [1]

    @pytest.mark.parametrize("number", [1, 2])
    def test_who_follows_a_later_lineage_elects_nothing_in_this_one(self, number: int) -> None:
        made, states = self.lost(), (digest(0, 20), digest(1, 20))
        told = made.receive(OTHERS[0], Stored(begun(number, 10, states, (ME,), b"")), 20.1)
        later = begun(1, 20, states, OTHERS[:1], b"")
        for peer in OTHERS[1:3]:
            told += made.receive(peer, stored((0, 20), (1, 20), lineage=later), 20.2)
        followed = adopted([*told, *made.tick(20.0 + ANSWER_S)])
        assert followed == (later if number == 1 else None)

    @pytest.mark.parametrize("number", [1, 2])
    def test_what_is_begun_beside_ours_gives_nobody_its_turn_again(self, number: int) -> None:
        """The order comes from our lineage's number, so who was the first would be it for ever."""
        made, states = self.lost(), LATER.lineage.hashes
        told = [e for peer in BEHIND for e in made.receive(peer, LATER, 20.5)]
        assert adopted([*told, *made.tick(20.0 + ANSWER_S)]) == LATER.lineage
        made.update(self.seen(21, None), 40.0)
        first = min(OTHERS, key=lambda peer: rank("restore", 1, *states, peer))
        named = (begun(number, 20, states, OTHERS, bytes([n])) for n in range(256))
        said = stored((0, 20), (1, 20), lineage=max(named, key=lambda of: of.era))
        told = made.receive(first, said, 40.5)
        for tick in range(401, 400 + 10 * int(HEARD_S + 2 * ANSWER_S)):
            told += made.tick(tick / 10)
        assert (adopted(told) == said.lineage) == (number == 2)

    @pytest.mark.parametrize(
        ("stage", "electors", "gone", "follows"),
        [
            (0, (ME, *OTHERS), OTHERS[:2], False),
            (0, (ME, *OTHERS), OTHERS[:3], True),
            (0, OTHERS[:1], OTHERS[:1], False),  # one that begins again and again, elected alone
            (1, OTHERS[:2], OTHERS[:2], False),  # of a stage that we serve no more
        ],
    )
    def test_a_lineage_that_most_of_its_electors_have_left_is_over(
        self, stage: int, electors: tuple[PeerId, ...], gone: tuple[PeerId, ...], follows: bool
    ) -> None:
        """Their own records say so. We see no trouble, and follow one that two follow."""
        made, late = training(*OTHERS), 10.0 + BRIEF_PATIENCE_S
        made.closed(stage, 28, digest(stage, 28), OTHERS, 10.0, electors)
        serving = frozenset({ME, *OTHERS}), frozenset(OTHERS)
        made.update(replace(self.seen(28, 28), serving=serving), 10.0)
        told = [e for peer in gone for e in made.receive(peer, LATER, late)]
        assert (adopted(told) == LATER.lineage) == follows

    @pytest.mark.parametrize("version", [20, 27])
    def test_its_first_electors_are_asked_until_its_first_step_is_closed(
        self, version: int
    ) -> None:
        """Others elect after it, whom only those know who have closed one."""
        states = digest(0, 20), digest(1, 20)
        ours = begun(1, 20, states, OTHERS[:2], b"")
        later = stored((0, 20), (1, 20), lineage=begun(2, 20, states, OTHERS, b""))
        kept = training(*OTHERS).evidence.kept()
        made = Recovery(Knowledge(ME, 2, EVERY, ours, evidence=Evidence(kept)))
        made.set_copies([Copy(0, 20, digest(0, 20))], 0.0)
        made.update(self.seen(version, version), 1.0)
        told = [e for peer in OTHERS[:2] for e in made.receive(peer, later, 40.0)]
        assert (adopted(told) == later.lineage) == (version == 20)


class TestLongAbsence:
    def kept(self) -> Kept:
        return training(SIBLING, NEXT).evidence.kept()

    def back(self) -> Recovery:
        evidence = Evidence(self.kept())
        return Recovery(Knowledge(ME, 2, EVERY, FIRST, steps=STEPS, evidence=evidence))

    def test_a_late_era_is_followed(self) -> None:
        """Hundreds of roll-backs and an hour later; those it worked with are there."""
        made = self.back()
        made.set_copies([], 0.0)
        late = lineage(700, 20_000)
        made.receive(SIBLING, stored((0, 20_010), lineage=late), 0.1)
        seats = {SIBLING: {late.era: 0}}
        effects = made.update(context(None, None, live=(ME, SIBLING), serving=seats), 0.2)
        assert adopted(effects) == late

    def test_also_if_all_whom_it_knew_have_gone_but_not_at_once(self) -> None:
        made = self.back()
        made.set_copies([Copy(0, 20, digest(0, 20)), Copy(1, 20, digest(1, 20))], 0.0)
        late = lineage(700, 20_000)
        made.receive(STRANGERS[0], stored((0, 20_010), lineage=late), 0.1)
        seats = {STRANGERS[0]: {late.era: 0}}
        effects = made.update(context(None, None, live=(ME, STRANGERS[0]), serving=seats), 0.2)
        assert adopted([*effects, *made.tick(BRIEF_PATIENCE_S)]) is None
        due = made.next_deadline()
        assert due is not None
        assert adopted(made.tick(0.2 + BRIEF_PATIENCE_S)) == late

    @pytest.mark.parametrize("made", [0, 20, 21])
    def test_who_comes_back_does_not_follow_who_does_not_know_its_lineage(self, made: int) -> None:
        """A newcomer that met nobody serves version 0, and who slept the version at which it fell
        asleep: that is no lineage that trains."""
        back = Recovery(Knowledge(ME, 2, EVERY, lineage=lineage(1, 20)))
        back.set_copies([Copy(0, 20, digest(0, 20))], 0.0)
        back.receive(SIBLING, Stored(FIRST), 0.0)
        serving = {SIBLING: {FIRST.era: made}}
        seen = context(None, None, live=(ME, SIBLING), serving=serving)
        effects = [*back.update(seen, 1.0), *back.tick(1.0 + BRIEF_PATIENCE_S)]
        assert adopted(effects) == (FIRST if made > 20 else None)

    @pytest.mark.parametrize("serves", [False, True])
    def test_newcomers_that_began_again_from_the_seed_follow_those_who_come_back(
        self, serves: bool
    ) -> None:
        """Two newcomers met nobody and serve version 0; two return whose lineage is a later one
        and who cannot serve, for most whom they know are away."""
        made = Recovery(Knowledge(ME, 2, EVERY, FIRST))
        made.set_copies([], 0.0)
        made.receive(SIBLING, Stored(FIRST), 0.0)
        made.update(context(0, 0, live=(ME, SIBLING), serving={SIBLING: {FIRST.era: 0}}), 1.0)
        later, live = lineage(1, 0), (ME, SIBLING, NEXT, STRANGERS[0])
        serving = {SIBLING: {FIRST.era: 0}, **({NEXT: {later.era: 0}} if serves else {})}
        made.update(context(0, 0, live=live, serving=serving), 5.0)
        effects = [e for who in live[2:] for e in made.receive(who, Stored(later), 6.0)]
        assert adopted(effects) == later

    def test_who_has_come_to_nothing_for_long_goes_by_all_it_is_linked_with(self) -> None:
        made = training(SIBLING, NEXT)
        late = lineage(1, 20)
        seats = {peer: {late.era: 0} for peer in STRANGERS[:3]}
        seen = context(None, None, live=(ME, *STRANGERS[:3]), serving=seats)
        made.update(RecoveryContext(seen.live, seen.versions, seats, lambda now: False), 20.0)
        for author in STRANGERS[:3]:
            made.receive(author, stored((0, 40), lineage=late), 21.0)
        assert adopted(made.tick(20.0 + PATIENCE_S - 1)) is None
        assert adopted(made.tick(20.0 + PATIENCE_S)) == late

    @pytest.mark.parametrize("version", [20, 40])
    def test_one_of_two_that_it_meets_then_does_not_name_a_version_that_nobody_has(
        self, version: int
    ) -> None:
        """It can show the lineage of a copy that we and others had; no word of its own suffices."""
        made = training(SIBLING, NEXT)
        other, liar = STRANGERS[:2]
        seats = {peer: {FIRST.era: 0} for peer in (other, liar)}
        seen = context(None, None, live=(ME, other, liar), serving=seats)
        made.update(RecoveryContext(seen.live, seen.versions, seen.eras, lambda now: False), 20.0)
        made.receive(other, stored((0, 20), (1, 20)), 21.0)
        late = lineage(2, version)
        made.receive(liar, stored((0, version), (1, version), lineage=late), 21.0)
        assert adopted(made.tick(20.0 + PATIENCE_S)) == (late if version == 20 else None)


LAST = begun(MAX_NUMBER, 0, (), (ME,), b"")


class TestBrick:
    @pytest.mark.parametrize("number", [0, 1, MAX_NUMBER - 1, MAX_NUMBER])
    def test_there_is_always_a_next_era_that_can_be_said(self, number: int) -> None:
        lineage = begun(number, 0, (), (ME,), b"")
        for _ in range(3):
            whole = Lineage(0, 20, (HASH + b"0", HASH + b"1"))
            lineage = next_era(lineage, whole, ME, 0, (ME,))
            check_stored(STORED_BODIES.parse(STORED_BODIES.encode(Stored(lineage))), 2)
            assert lineage.number > number or lineage.number == MAX_NUMBER

    def test_a_newcomer_that_was_led_there_can_still_roll_back(self) -> None:
        made = Recovery(Knowledge(ME, 2, EVERY, lineage=LAST))
        made.set_copies([Copy(s, 20, digest(s, 20)) for s in (0, 1)], 0.0)
        made.update(context(27, 27), 1.0)
        made.update(context(27, None, live=(ME,)), 20.0)
        assert adopted([*made.tick(20.0 + ANSWER_S), *made.tick(60.0)]) is not None

    @pytest.mark.parametrize(
        "unusable",
        [
            LAST,
            Lineage(1 << 32, 777_777, (HASH + b"0", HASH + b"1"), (ME,)),
            Lineage(1 << 32, 20, (HASH + b"0",), (ME,)),
            Lineage(1 << 32, 20, (), (ME,)),
            Lineage(1 << 32, 20, (HASH + b"0", HASH + b"1")),
        ],
    )
    def test_a_lineage_on_disk_that_cannot_be_is_of_no_use(self, unusable: Lineage) -> None:
        assert why_unusable(unusable, stages=2, steps=STEPS)
        assert not why_unusable(FIRST, stages=2, steps=STEPS)


def test_what_was_seen_outlives_the_process(tmp_path: Path) -> None:
    before = training(SIBLING, NEXT).evidence
    file = Persisted(tmp_path / EVIDENCE, Kept)
    file.save(before.kept())
    after = Evidence(file.read())
    assert after.kept() == before.kept()
    assert after.proves(SIBLING)
    assert not after.proves(STRANGERS[0])
    assert after.vouches(Copy(1, 20, digest(1, 20)), FIRST)
    assert after.denies(Copy(0, 20, digest(0, 20, 9)))


def test_what_was_said_of_either_lineage_stands_where_another_begins() -> None:
    later = lineage(1, 20)
    ahead, behind = stored((1, 20), (1, 30), lineage=later), stored((0, 30))
    evidence = Evidence(Kept(known=(Known(NEXT, 20, ahead), Known(SIBLING, 20, behind))))
    evidence.begin(FIRST, later)
    assert evidence.vouches(Copy(1, 30, digest(1, 30)), later)
    assert evidence.vouches(Copy(0, 30, digest(0, 30)), FIRST)
    assert not evidence.vouches(Copy(0, 30, digest(0, 30)), later)


def test_who_has_lost_its_key_does_not_wait_for_itself() -> None:
    before, again = Evidence(me=ME), STRANGERS[0]
    before.closed(0, 1, bytes(32), [SIBLING], 1.0, [ME, SIBLING])
    assert Evidence(before.kept(), ME).last_electors == [{ME, SIBLING}]
    assert Evidence(before.kept(), again).last_electors == [{again, SIBLING}]


def test_whom_we_work_with_still_is_kept_when_others_are_forgotten() -> None:
    crowd = [peer_id_from_key((1000 + n).to_bytes(32, "big")) for n in range(MAX_PROVEN)]
    evidence = Evidence(Kept(version=1, stages=(0,), known=(Known(SIBLING), Known(NEXT))))
    evidence.closed(0, 2, bytes(32), crowd[: MAX_PROVEN - 2], 1.0)
    evidence.closed(0, 3, bytes(32), [SIBLING, crowd[-1], crowd[-2]], 2.0)
    assert evidence.proves(SIBLING)
    assert not evidence.proves(NEXT)
    assert len(evidence.kept().known) == MAX_PROVEN


class TestCertified:
    """The state of a waypoint's version, against proven members that name another one."""

    forged = Lineage(1 << 32, 20, (digest(0, 20), digest(1, 20, forged=1)), (ME,))

    def troubled(self, *, certified: bool) -> Recovery:
        """Stage 1 is lost; both others have said all along that its version 20 is another one."""
        made = Recovery(Knowledge(ME, 2, EVERY, FIRST, steps=STEPS))
        made.set_copies([Copy(0, 20, digest(0, 20))], 0.0)
        copies = (Copy(0, 20, digest(0, 20)), Copy(1, 20, digest(1, 20, forged=1)))
        for other in (SIBLING, NEXT):
            made.receive(other, Stored(FIRST, copies), 1.0)
        for version in range(1, 28):
            made.closed(0, version, digest(0, version), (SIBLING, NEXT), 10.0 * version / 27)
        made.update(context(27, 27), 10.0)
        if certified:
            hashes = digest(0, 20), digest(1, 20)
            assert made.certify(Waypoint(FIRST.era, 20, hashes, ((ME, SIBLING, NEXT),)), 10.0) == []
        serving = {peer: {FIRST.era: 0} for peer in (SIBLING, NEXT)}
        made.update(context(27, None, serving=serving, quorum=False), 11.0)
        made.update(context(27, None, serving=serving, quorum=False), 11.0 + 2 * ANSWER_S)
        return made

    def test_whom_a_waypoint_names_is_proven_to_all_and_decides_for_nobody(self) -> None:
        """A newcomer in the stage beside ours may wait for its first microbatch from us."""
        made, late = training(SIBLING, NEXT), STRANGERS[0]
        assert not made.known.proves(late)
        hashes = digest(0, 20), digest(1, 20)
        made.certify(Waypoint(FIRST.era, 20, hashes, ((ME, SIBLING, NEXT, late),)), 10.0)
        assert made.known.proves(late)
        assert made.known.proves(NEXT)
        assert not made.known.proves(STRANGERS[1])
        assert not made.evidence.proves(late)
        assert made.known.weigh(late, Copy(1, 26, digest(1, 26))) == 0
        made.certify(Waypoint(FIRST.era, 40, hashes, ((ME, SIBLING, NEXT),)), 20.0)
        assert not made.known.proves(late)

    @pytest.mark.parametrize(
        ("certified", "number", "followed"), [(False, 1, True), (True, 1, False), (True, 3, True)]
    )
    def test_a_roll_back_to_another_state_is_not_followed(
        self, certified: bool, number: int, followed: bool
    ) -> None:
        """A later lineage may have made the version anew."""
        made, other = self.troubled(certified=certified), replaced(self.forged, era=number << 32)
        copies = (Copy(0, 20, digest(0, 20)), Copy(1, 20, digest(1, 20, forged=1)))
        told = [e for p in (SIBLING, NEXT) for e in made.receive(p, Stored(other, copies), 14.0)]
        assert adopted(told) == (other if followed else None)

    @pytest.mark.parametrize("certified", [False, True])
    def test_nor_decided(self, *, certified: bool) -> None:
        made = self.troubled(certified=certified)
        assert made.known.newest_whole().version == (0 if certified else 20)

    def test_one_to_the_certified_state_is_followed(self) -> None:
        made = self.troubled(certified=True)
        for other in (SIBLING, NEXT):
            made.receive(other, stored((0, 20), (1, 20)), 12.0)
        true = lineage(1, 20)
        told = [made.receive(p, stored((0, 20), (1, 20), lineage=true), 14.0) for p in (NEXT,)]
        assert adopted(told[0]) == true


class TestDoubts:
    """Who names a state and does not give it."""

    view = SwarmView.of(
        [
            [Replica(SIBLING, 7, serving=True), Replica(NEXT, 9, serving=True)],
            [Replica(NEXT, 9, serving=True)],
        ]
    )

    def test_it_does_not_count_where_another_serves(self) -> None:
        evidence = Evidence()
        for attempt in range(DOUBTED_AFTER):
            assert evidence.vetted(self.view).serving(0) == self.view.serving(0), attempt
            evidence.not_had([NEXT])
        found = evidence.vetted(self.view)
        assert [replica.peer for replica in found.serving(0)] == [SIBLING]
        assert found.serving(1) == self.view.serving(1), "nobody else serves this one"

    def test_beside_a_waypoints_member_no_other_counts_until_we_have_worked(self) -> None:
        newcomer = Evidence(Kept(known=(Known(SIBLING),)))
        found = newcomer.vetted(self.view)
        assert [replica.peer for replica in found.serving(0)] == [SIBLING]
        assert found.serving(1) == self.view.serving(1), "the waypoint names nobody who serves it"
        worked = Evidence(Kept(stages=(0,), known=(Known(SIBLING),)))
        assert worked.vetted(self.view) == self.view
        assert Evidence().vetted(self.view) == self.view

    def test_it_counts_again_once_it_has_given_something(self) -> None:
        evidence = Evidence()
        for _ in range(DOUBTED_AFTER):
            evidence.not_had([NEXT, SIBLING])
        evidence.had([NEXT])
        assert evidence.doubts(SIBLING)
        assert not evidence.doubts(NEXT)

    def test_many_identities_take_a_bounded_room(self) -> None:
        evidence = Evidence()
        many = [PeerId(str(number)) for number in range(2 * MAX_DOUBTED)]
        for _ in range(DOUBTED_AFTER):
            evidence.not_had(many)
        assert sum(map(evidence.doubts, many)) <= MAX_DOUBTED
        for _ in range(DOUBTED_AFTER):
            evidence.not_had([NEXT])
        assert evidence.doubts(NEXT)
