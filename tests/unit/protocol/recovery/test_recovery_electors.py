"""The electors of the latest decrees say whether the run has gone on, and where."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from protocol.ids import PeerId, peer_id_from_key, rank
from protocol.pace import FORGET_S, HEARD_S
from protocol.recovery.effects import Adopt, FetchLine, RecoveryContext
from protocol.recovery.evidence import MAX_ELECTOR_SETS, Evidence
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, PATIENCE_S, Knowledge
from protocol.recovery.machine import SETTLE_S, Recovery
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.wire.fields import ERA_BITS

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(1, 20)]
BY_RANK = sorted(PEERS[:4], key=lambda peer: rank("elector", peer))
ME, MEMBERS, GUESTS, BESIDE = PEERS[0], PEERS[:4], PEERS[4:12], PEERS[12:14]
FIRST = Lineage(1, electors=tuple(sorted(MEMBERS)))
AGAIN = Lineage((1 << ERA_BITS) + 7, electors=FIRST.electors)
"""The run from the seed, one roll-back later."""
FAR = (Copy(0, 230, bytes(32)),)


def nobody(_peer: PeerId) -> bool:
    return False


def decreed(*sets: Collection[PeerId]) -> Evidence:
    """What is known after decrees that have named these electors."""
    made = Evidence()
    for version, electors in enumerate(sets, 40):
        made.closed(0, version, bytes(32), electors, 0.0, electors)
    return made


class TestElectors:
    @pytest.mark.parametrize(
        ("following", "seconded"),
        [
            (BY_RANK[1:3], False),  # half, without the first
            (BY_RANK[:2], True),
            (BY_RANK[1:4], True),
            ([], False),
        ],
    )
    def test_a_majority_of_them_seconds(self, following: list[PeerId], seconded: bool) -> None:
        assert decreed(BY_RANK).seconded(following.__contains__, nobody) is seconded

    def test_those_whose_process_has_ended_count_for_neither_side(self) -> None:
        made, gone = decreed(BY_RANK), BY_RANK[2:]
        assert not made.seconded({BY_RANK[1]}.__contains__, nobody)
        assert not made.seconded(nobody, lambda peer: peer != BY_RANK[0]), "all but we are gone"
        assert not made.seconded({BY_RANK[1]}.__contains__, gone.__contains__), "one of two"

    def test_those_of_earlier_decrees_count_and_are_bounded(self) -> None:
        parted = [MEMBERS, [ME]]
        assert decreed(*parted).seconded(MEMBERS.__contains__, nobody), "before they parted"
        pairs = [[ME, PEERS[1 + n]] for n in range(MAX_ELECTOR_SETS)]
        assert not decreed(*parted, *pairs).seconded(set(MEMBERS[2:]).__contains__, nobody)

    def test_those_that_are_named_again_are_kept_once(self) -> None:
        made = decreed(MEMBERS, *[[ME]] * 2 * MAX_ELECTOR_SETS)
        assert made.seconded(MEMBERS.__contains__, nobody)

    def test_other_electors_are_news_that_survive_the_process(self) -> None:
        made = decreed([ME])
        assert not made.closed(0, 41, bytes(32), [ME], 1.0, [ME])
        assert made.closed(0, 42, bytes(32), [ME], 2.0, MEMBERS)
        again = Evidence(made.kept())
        assert again.last_electors == [frozenset(MEMBERS)]
        assert not again.closed(0, 43, bytes(32), [ME], 3.0, MEMBERS)


COPIES = [Copy(stage, version, bytes(32)) for stage in (0, 1) for version in (20, 30)]


class TestResume:
    """One that comes back with copies of all stages, alone at first."""

    def back(self, electors: Collection[PeerId]) -> Recovery:
        made = Recovery(Knowledge(ME, 2, 10, FIRST, evidence=decreed(electors)), 7)
        made.evidence.closed_at = None
        made.set_copies(COPIES, 0.0)
        return made

    def begun(self, made: Recovery, *live: PeerId, until: float) -> int | None:
        """Return where it begins before a time."""
        made.update(RecoveryContext(frozenset({ME, *live}), (None, None)), 0.0)
        effects = [effect for now in range(int(until)) for effect in made.tick(float(now))]
        return next((e.lineage.version for e in effects if isinstance(e, Adopt)), None)

    def test_alone_where_the_others_had_left_before(self) -> None:
        assert self.begun(self.back([ME]), until=SETTLE_S + 1) == 30

    @pytest.mark.parametrize("electors", [MEMBERS[:2], MEMBERS[:3]])
    def test_alone_it_waits_for_those_who_may_have_gone_on(self, electors: list[PeerId]) -> None:
        made = self.back(electors)
        assert self.begun(made, until=SETTLE_S + 1) is None
        assert made.waiting.until == SETTLE_S + PATIENCE_S
        assert all(peer[-6:] in made.waiting.what for peer in electors[1:])
        assert "version 30 is the newest" in made.waiting.what
        assert self.begun(made, until=SETTLE_S + PATIENCE_S) is None
        assert self.begun(made, until=SETTLE_S + PATIENCE_S + 1) == 30
        assert made.waiting is None

    def test_with_all_electors_though_one_has_more(self) -> None:
        """The other one was killed before it had written down the last version."""
        made = self.back(MEMBERS[:2])
        made.receive(MEMBERS[1], Stored(FIRST, (*COPIES, Copy(0, 40, bytes(32)))), 0.0)
        assert self.begun(made, MEMBERS[1], until=SETTLE_S + HEARD_S + 1) == 30
        assert SETTLE_S + HEARD_S < BRIEF_PATIENCE_S

    def test_not_before_they_have_said_what_they_have(self) -> None:
        made = self.back(MEMBERS[:2])
        assert self.begun(made, MEMBERS[1], until=BRIEF_PATIENCE_S) is None


def training(electors: Sequence[PeerId] = tuple(sorted(MEMBERS))) -> Recovery:
    """A replica that has made version 39 with three others; eight guests have once worked with it
    in another stage, and are linked."""
    made = Recovery(Knowledge(ME, 2, 10, FIRST), 5)
    made.set_copies([Copy(0, 10, bytes(32))], 0.0)
    for other in PEERS[1:12]:
        made.receive(other, Stored(FIRST), 1.0)
    for step in range(1, 40):
        made.update(context(step), float(step))
        made.closed(0, step, bytes([step]) * 32, {*MEMBERS, *GUESTS}, float(step), electors)
    return made


def context(version: int, followers: Collection[PeerId] = ()) -> RecoveryContext:
    """The followers serve the other lineage, which is far ahead."""
    with_us = {peer for peer in (*MEMBERS, *BESIDE) if peer not in followers}
    ours, theirs = {FIRST.era: 0}, {AGAIN.era: 200 + version}
    return RecoveryContext(
        frozenset(PEERS[:14]),
        (version, version),
        dict.fromkeys(with_us - {ME}, ours) | dict.fromkeys(followers, theirs),
        serving=(frozenset(with_us),),
    )


def goes_over(followers: Sequence[PeerId], electors: Sequence[PeerId]) -> bool:
    """Whether a replica that trains wants the state of another line, which these train."""
    made = training(electors)
    effects = [e for peer in followers for e in made.receive(peer, Stored(AGAIN, FAR), 40.0)]
    for step in range(40, 40 + 2 * int(FORGET_S)):
        made.closed(0, step, bytes([step]) * 32, set(MEMBERS), float(step), electors)
        effects += made.update(context(step, followers), float(step))
    return any(isinstance(effect, FetchLine) for effect in effects)


LAST = max(MEMBERS[1:], key=lambda peer: rank("elector", peer))


@pytest.mark.parametrize(
    ("followers", "electors", "goes"),
    [
        (GUESTS, MEMBERS, False),
        (GUESTS, (), True),
        ([*MEMBERS[2:], *GUESTS], [ME, *MEMBERS[2:]], True),
        ([LAST, *GUESTS], [ME, LAST, *BESIDE], False),
    ],
    ids=["no elector", "no electors are known", "most electors", "half of the electors"],
)
def test_members_that_have_once_worked_with_us_do_not_reset_a_run_that_trains(
    followers: Sequence[PeerId], electors: Sequence[PeerId], goes: bool
) -> None:
    assert goes_over(followers, electors) == goes


def test_a_pause_of_some_seconds_is_no_reason_to_follow_voices_but_two_minutes_are() -> None:
    made = training()
    for peer in GUESTS:
        made.receive(peer, Stored(AGAIN), 40.0)
    made.update(context(39), 41.0)
    for now in range(42, 42 + int(PATIENCE_S)):
        made.update(context(39), float(now))
        assert made.lineage == FIRST
    serving = {peer: {AGAIN.era: 0} for peer in GUESTS}
    made.update(replace(context(39), eras=serving), 60.0 + PATIENCE_S)
    assert made.lineage == AGAIN
