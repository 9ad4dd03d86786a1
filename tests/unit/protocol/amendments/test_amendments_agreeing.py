"""What a stage may agree on: as everybody would decide it, and never less than what holds."""

import pytest

from model_zoo.specs.optimizer import OptimizerSpec
from protocol.agreed import AgreedAmendment, AgreedList
from protocol.amendments.agreeing import may_follow, to_agree_on, told_by
from protocol.amendments.amendment import digest_of
from protocol.amendments.book import Amendments
from protocol.ids import SwarmId
from protocol.wire.fields import Envelope
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
    (listed((ONE, 9)), listed((ONE, 12)), False),
    (listed((ONE, 12)), (), False),  # nor what is agreed on: a liar could put it off for ever
    (listed((ONE, 12)), listed((ONE, 14)), False),
)


@pytest.mark.parametrize(("own", "named", "followed"), FIRST)
def test_the_first_stage_decides_as_everybody_would(
    known: Amendments, own: AgreedList, named: AgreedList, followed: bool
) -> None:
    answer = may_follow(known, own, named, None, STEP, unsure=False)
    assert bool(answer) is followed
    assert followed or answer.reason


LATER = (
    # own, named, told by the stage before, whether it is followed at step 10
    ((), (), (), True),
    ((), listed((ONE, 12)), listed((ONE, 12)), True),
    ((), listed((ONE, 12)), listed((ONE, 12), (TWO, 15)), True),
    ((), listed((ONE, 12)), (), False),  # until we have heard it, too
    ((), (), listed((ONE, 12)), True),  # we have heard it before the leader: there is time
    ((), listed((ONE, 13)), listed((ONE, 12)), False),
    ((), (), listed((ONE, 9)), False),
    ((), listed((ONE, 9)), listed((ONE, 9)), True),  # late, but most of the stage before have it
    ((), listed((ONE, 9)), (), False),
    (listed((ONE, 9)), (), (), False),
    (listed((ONE, 9)), listed((ONE, 9)), (), True),
    (listed((ONE, 9)), listed((ONE, 9)), listed((ONE, 12)), True),  # what holds stays
    (listed((ONE, 12)), listed((ONE, 14)), listed((ONE, 14)), False),
    ((), listed((UNKNOWN, 12)), (), False),
)


@pytest.mark.parametrize(("own", "named", "told", "followed"), LATER)
def test_later_stages_follow_the_stage_before(
    known: Amendments, own: AgreedList, named: AgreedList, told: AgreedList, followed: bool
) -> None:
    assert bool(may_follow(known, own, named, told, STEP, unsure=False)) is followed


UNSURE = (
    # own, named, whether it is followed by who has just begun from a copy
    (listed((ONE, 12)), (), True),
    ((), listed((ONE, 4)), True),
    (listed((ONE, 12)), listed((ONE, 14)), True),
    (listed((ONE, 9)), (), False),
    (listed((ONE, 9)), listed((ONE, 14)), False),
    ((), listed((UNKNOWN, 4)), False),
)


@pytest.mark.parametrize("told", [None, ()])
@pytest.mark.parametrize(("own", "named", "followed"), UNSURE)
def test_who_begins_from_a_copy_takes_over_what_others_agreed_on(
    known: Amendments,
    own: AgreedList,
    named: AgreedList,
    followed: bool,
    told: AgreedList | None,
) -> None:
    assert bool(may_follow(known, own, named, told, STEP, unsure=True)) is followed


class TestTold:
    def test_most_are_believed(self, known: Amendments) -> None:
        lists = [listed((ONE, 12)), listed((ONE, 12)), listed((ONE, 99))]
        assert told_by(known, lists, 3) == listed((ONE, 12))

    def test_what_they_have_in_common_counts(self, known: Amendments) -> None:
        lists = [listed((ONE, 12)), listed((ONE, 12), (TWO, 15)), ()]
        assert told_by(known, lists, 3) == listed((ONE, 12))
        assert told_by(known, lists[1:2] * 2, 3) == listed((ONE, 12), (TWO, 15))

    def test_of_two_that_differ_neither_is_believed(self, known: Amendments) -> None:
        assert told_by(known, [(), listed((ONE, 12))], 2) == ()

    def test_those_that_are_not_at_our_step_count_as_well(self, known: Amendments) -> None:
        assert told_by(known, [listed((ONE, 12))], 2) == ()

    def test_what_nobody_can_have_agreed_on_is_not_heard(self, known: Amendments) -> None:
        for lie in (listed((UNKNOWN, 0)), listed((TWO, 0)), (AgreedAmendment(bytes(32), 0),)):
            assert told_by(known, [lie] * 3, 3) == ()


class TestLeading:
    def test_the_first_stage_proposes(self, known: Amendments) -> None:
        chosen = to_agree_on(known, (), None, STEP, unsure=False)
        assert chosen == listed((ONE, STEP + NOTICE), (TWO, STEP + NOTICE))

    def test_later_ones_take_over_what_goes_beyond_theirs(self, known: Amendments) -> None:
        told = listed((ONE, 12), (TWO, 15))
        assert to_agree_on(known, listed((ONE, 12)), told, STEP, unsure=False) == told

    def test_from_a_copy_what_others_have_agreed_on_counts(self, known: Amendments) -> None:
        told = listed((ONE, 14))
        assert to_agree_on(known, listed((ONE, 12)), told, STEP, unsure=True) == told
        held = listed((ONE, 10))
        assert to_agree_on(known, held, told, STEP, unsure=True) == held
