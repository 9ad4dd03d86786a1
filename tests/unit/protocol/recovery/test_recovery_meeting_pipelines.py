"""Lines of a run of several stages meet: no member has worked with all of its own line."""

import pytest

from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import HEARD_S
from protocol.recovery.deciding import MAX_TURNS
from protocol.recovery.effects import Adopt, FetchLine, RecoveryContext, RecoveryEffect
from protocol.recovery.knowledge import PATIENCE_S, Knowledge
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.wire.fields import ERA_BITS

ME, NEXT, LAST, OTHER, *_ = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(8))
STAGES, EVERY, TOGETHER, MADE = 3, 10, 100, 500
OURS, THEIRS = 7, 8
FIRST = Lineage(1, electors=(ME,))
LATEST_S = PATIENCE_S + (MAX_TURNS + 2) * HEARD_S
"""So long after a stage was lost somebody has begun anew."""


def copy(stage: int, version: int, line: int) -> Copy:
    made = line if version > TOGETHER else 0
    return Copy(stage, version, bytes([stage, version % 251, version // 251, made]) + bytes(28))


def served_apart(*copies: int) -> Stored:
    """What a member says that rolled back to where all were together, and these copies of its."""
    begun = tuple(copy(stage, TOGETHER, 0).hash for stage in range(STAGES))
    lineage = Lineage((1 << ERA_BITS) | THEIRS, TOGETHER, begun, (OTHER,))
    return Stored(lineage, tuple(copy(stage, v, THEIRS) for stage in range(STAGES) for v in copies))


class Member:
    """The first stage's replica: it has trained with all, and then without the other one."""

    def __init__(self) -> None:
        self.machine = Recovery(Knowledge(ME, STAGES, EVERY, FIRST, founder=ME), 5)
        for version in range(1, MADE + 1):
            together = (NEXT, OTHER) if version <= TOGETHER else (NEXT,)
            self.machine.closed(0, version, copy(0, version, OURS).hash, together, version / 50)
        self.version, self.has_quorum = MADE, True
        self.effects = list[RecoveryEffect]()

    @property
    def adopted(self) -> list[Adopt]:
        return [effect for effect in self.effects if isinstance(effect, Adopt)]

    @property
    def fetches(self) -> list[FetchLine]:
        return [effect for effect in self.effects if isinstance(effect, FetchLine)]

    def train_beside(self, theirs: Stored, at: int, now: float, seconds: int) -> None:
        """Go on, as the other one does from the version ``at``."""
        self.effects += self.machine.set_copies([copy(0, MADE - EVERY, OURS)], now)
        for peer, stage in ((NEXT, 1), (LAST, 2)):
            ours = Stored(FIRST, (copy(stage, MADE - EVERY, OURS),))
            self.effects += self.machine.receive(peer, ours, now)
        self.effects += self.machine.receive(OTHER, theirs, now)
        for second in range(seconds):
            self.version += 1
            state = copy(0, self.version, OURS).hash
            self.machine.closed(0, self.version, state, (NEXT,), now + second)
            self.see({NEXT, LAST}, theirs.lineage, at + second, now + second)

    def see(self, with_us: set[PeerId], lineage: Lineage, at: int, now: float) -> None:
        stages = (ME, NEXT, LAST)
        serving = tuple(frozenset({peer} & (with_us | {ME})) for peer in stages)
        seats = {peer: {FIRST.era: self.version} for peer in with_us} | {OTHER: {lineage.era: at}}
        context = RecoveryContext(
            frozenset({ME, OTHER, *with_us}),
            tuple(self.version if there else None for there in serving),
            seats,
            serving=serving,
            quorum=lambda _: self.has_quorum,
        )
        self.effects += self.machine.update(context, now)


def test_one_member_takes_no_three_along_that_are_one_in_each_stage() -> None:
    member = Member()
    member.train_beside(served_apart(990), 1000, 11.0, 60)
    assert not member.fetches
    assert not member.adopted


@pytest.mark.parametrize("copies", [(), (140, 150)])
def test_a_stage_that_is_missing_for_a_moment_ends_no_line(copies: tuple[int, ...]) -> None:
    member, theirs = Member(), served_apart(*copies)
    member.train_beside(theirs, 110, 11.0, 40)
    member.see({LAST}, theirs.lineage, 151, 51.0)
    assert not member.adopted
    assert not member.fetches


def test_a_stage_that_is_lost_for_good_ends_it_once_the_state_of_the_other_is_here() -> None:
    """We believe the state at which the other line begins, so it might be a decision to follow."""
    member, theirs = Member(), served_apart(140, 150)
    together = Stored(FIRST, served_apart(TOGETHER).copies)
    member.machine.receive(OTHER, together, 10.0)
    member.train_beside(theirs, 110, 11.0, 40)
    for second in range(int(LATEST_S)):
        member.see(set(), theirs.lineage, 151 + second, 51.0 + second)
    assert not member.adopted
    (wanted,) = member.fetches
    assert wanted.copies == (copy(0, 150, THEIRS),)
    member.effects += member.machine.fetched(51.0 + LATEST_S)
    (adopt,) = member.adopted
    assert adopt.lineage == theirs.lineage
    assert adopt.given_up.steps == member.version - TOGETHER


def test_who_comes_back_first_waits_for_the_rest_of_its_line() -> None:
    evidence = Member().machine.evidence
    evidence.closed(0, MADE, copy(0, MADE, OURS).hash, (NEXT,), 10.0, (ME, NEXT, LAST))
    evidence.closed_at = None
    theirs = served_apart(110, 120)
    member = Member()
    member.machine = Recovery(Knowledge(ME, STAGES, EVERY, FIRST, evidence=evidence), 9)
    own = [copy(0, MADE - EVERY, OURS), copy(0, MADE, OURS), copy(1, MADE, OURS)]
    member.effects += member.machine.set_copies(own, 10.0)
    member.effects += member.machine.receive(OTHER, theirs, 11.0)
    seen = RecoveryContext(
        frozenset({ME, OTHER}),
        (None,) * STAGES,
        {OTHER: {theirs.lineage.era: 125}},
    )
    member.effects += member.machine.update(seen, 11.0)
    for second in range(int(PATIENCE_S)):
        member.effects += member.machine.tick(11.0 + second)
    assert not member.fetches
    assert not member.adopted
    for second in range(int(LATEST_S)):
        member.effects += member.machine.tick(11.0 + PATIENCE_S + second)
        if member.fetches:
            break
    (wanted,) = member.fetches
    assert wanted.copies == (copy(0, 120, THEIRS), copy(1, 120, THEIRS))
    member.effects += member.machine.fetched(11.0 + 2 * PATIENCE_S)
    (adopt,) = member.adopted
    assert (adopt.given_up.version, adopt.given_up.steps) == (MADE, MADE - TOGETHER)


def test_a_line_that_cannot_decide_is_not_waited_for_without_end() -> None:
    """A stage is lost, and with it the majority of our electors."""
    member, theirs = Member(), served_apart(140, 150)
    member.has_quorum = False
    member.train_beside(theirs, 110, 11.0, 40)
    for second in range(int(PATIENCE_S) + 2):
        member.see(set(), theirs.lineage, 151 + second, 51.0 + second)
        assert bool(member.fetches) == (second >= PATIENCE_S)
    assert not member.adopted
