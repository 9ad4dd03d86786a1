"""What a stage may agree on: as everybody would decide it, and never less than what holds."""

import pytest

from model_zoo.specs.optimizer import OptimizerSpec
from protocol.amendments.agreeing import NOTHING_TOLD, Told, may_follow, merged, told_by
from protocol.amendments.amendment import digest_of
from protocol.amendments.book import AgreedList, Amendments
from protocol.ids import SwarmId
from protocol.wire.fields import Envelope
from protocol.wire.parts import AgreedAmendment
from tests.support.amended_runs import Run, amendment

SWARM = SwarmId("ab" * 32)
RUN = Run(OptimizerSpec(), 100, 2)
NOTICE = 6
ONE = amendment(RUN, SWARM, steps=200)
TWO = amendment(RUN, SWARM, number=2, before=ONE, steps=300)
UNKNOWN = amendment(RUN, SWARM, number=3, before=TWO, steps=400)
STEP = 10


def listed(*entries: tuple[Envelope, int]) -> AgreedList:
    return tuple(AgreedAmendment(digest_of(envelope), step) for envelope, step in entries)


@pytest.fixture
def known() -> Amendments:
    book = Amendments(RUN, SWARM)
    book.take(ONE)
    book.take(TWO)
    return book


FIRST = (
    # own, named, whether it is followed at step 10 by the first stage
    ((), (), True),
    ((), listed((ONE, STEP + NOTICE)), True),
    ((), listed((ONE, STEP + NOTICE), (TWO, STEP + NOTICE)), True),
    ((), listed((ONE, STEP + NOTICE - 1)), False),  # others could not have heard of it
    ((), listed((ONE, STEP)), False),
    ((), listed((ONE, 0)), False),
    ((), listed((ONE, 10**6)), False),  # it would never hold
    ((), listed((TWO, STEP + NOTICE)), False),
    ((), listed((ONE, STEP + NOTICE), (TWO, STEP + NOTICE), (UNKNOWN, STEP + NOTICE)), False),
    (listed((ONE, 12)), listed((ONE, 12)), True),
    (listed((ONE, 12)), listed((ONE, 12), (TWO, STEP + NOTICE)), True),
    (listed((ONE, 9)), (), False),  # what holds is not taken back
    (listed((ONE, 10)), (), False),
    (listed((ONE, 9)), listed((ONE, 12)), False),
    (listed((ONE, 12)), (), True),  # after a roll-back most may not know of it
    (listed((ONE, 12)), listed((ONE, 14)), True),
    (listed((ONE, 12)), listed((ONE, 99)), False),
    (listed((ONE, 12)), listed((ONE, 10)), False),
)


@pytest.mark.parametrize(("own", "named", "followed"), FIRST)
def test_the_first_stage_decides_as_everybody_would(
    known: Amendments, own: AgreedList, named: AgreedList, followed: bool
) -> None:
    answer = may_follow(known, own, named, None, STEP)
    assert bool(answer) is followed
    assert followed or answer.reason


SURE = Told(listed((ONE, 12)), listed((ONE, 12)), frozenset(listed((ONE, 12))))
HOLDS = Told(listed((ONE, 9)), listed((ONE, 9)), frozenset(listed((ONE, 9))))
SAID_BY_ONE = Told(listed((ONE, 9)), (), frozenset(listed((ONE, 9))))
LATER = (
    # own, named, told by the stage before, whether it is followed at step 10
    ((), (), NOTHING_TOLD, True),
    ((), listed((ONE, 12)), SURE, True),
    ((), listed((ONE, 12)), NOTHING_TOLD, True),  # the leader has heard it before us
    ((), (), SURE, True),  # we have heard it before the leader: there is time
    ((), listed((ONE, 13)), SURE, False),
    ((), (), HOLDS, False),
    ((), listed((ONE, 9)), HOLDS, True),  # late, but all of the stage before have it
    ((), listed((ONE, 9)), SAID_BY_ONE, True),
    ((), (), SAID_BY_ONE, True),  # one replica cannot make us refuse
    ((), listed((ONE, 9)), NOTHING_TOLD, False),
    (listed((ONE, 9)), (), NOTHING_TOLD, False),
    (listed((ONE, 9)), listed((ONE, 9)), NOTHING_TOLD, True),
    (listed((ONE, 12)), listed((ONE, 14)), NOTHING_TOLD, True),
    ((), listed((UNKNOWN, 12)), NOTHING_TOLD, False),
)


@pytest.mark.parametrize(("own", "named", "told", "followed"), LATER)
def test_later_stages_follow_the_stage_before(
    known: Amendments, own: AgreedList, named: AgreedList, told: Told, followed: bool
) -> None:
    assert bool(may_follow(known, own, named, told, STEP)) is followed


class TestTold:
    def test_most_are_believed(self, known: Amendments) -> None:
        lists = [listed((ONE, 12)), listed((ONE, 12)), listed((ONE, 99))]
        told = told_by(known, lists, 3)
        assert told.usual == told.sure == listed((ONE, 12))

    def test_of_two_that_differ_neither_is_sure(self, known: Amendments) -> None:
        told = told_by(known, [(), listed((ONE, 12))], 2)
        assert told.usual == listed((ONE, 12))
        assert told.sure == ()

    def test_those_that_say_nothing_count_as_well(self, known: Amendments) -> None:
        assert told_by(known, [listed((ONE, 12))], 2).sure == ()

    def test_what_nobody_can_have_agreed_on_is_not_heard(self, known: Amendments) -> None:
        lies = [listed((UNKNOWN, 0)), listed((TWO, 0)), (AgreedAmendment(bytes(32), 0),)]
        assert told_by(known, lies, 3) == NOTHING_TOLD

    def test_nobody_said_anything(self, known: Amendments) -> None:
        assert told_by(known, [], 0) == NOTHING_TOLD


class TestMerged:
    def test_what_goes_beyond_ours_is_taken(self) -> None:
        told = Told(listed((ONE, 12), (TWO, 15)))
        assert merged(listed((ONE, 12)), told, STEP) == told.usual

    def test_a_shorter_one_is_not(self) -> None:
        assert merged(listed((ONE, 12)), NOTHING_TOLD, STEP) == listed((ONE, 12))

    def test_nor_one_that_takes_back_what_holds(self) -> None:
        own = listed((ONE, 10))
        assert merged(own, Told(listed((ONE, 20), (TWO, 30))), STEP) == own

    def test_another_step_is_taken_while_nothing_holds(self) -> None:
        assert merged(listed((ONE, 12)), Told(listed((ONE, 14))), STEP) == listed((ONE, 14))
