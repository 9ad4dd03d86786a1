"""What counts of what a founder has signed, and what does not."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from model_zoo.specs.course import Course, Turn
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol import limits
from protocol.agreed import AgreedAmendment, AgreedList
from protocol.amendments.amendment import AMENDMENT, Amendment, digest_of, sign_amendment
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import SwarmId
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope
from tests.support.amended_runs import FOUNDER, Run, amendment

SWARM, OTHER = SwarmId("ab" * 32), SwarmId("cd" * 32)
RUN = Run(OptimizerSpec(), 100, 3)
SOMEBODY = Signer(b"\x09" * 32)


def book(*known: Envelope) -> Amendments:
    made = Amendments(RUN, SWARM)
    for envelope in known:
        made.take(envelope)
    return made


def listed(*entries: tuple[Envelope, int]) -> AgreedList:
    return tuple(AgreedAmendment(digest_of(envelope), step) for envelope, step in entries)


ONE = amendment(RUN, SWARM, steps=200)
TWO = amendment(RUN, SWARM, number=2, before=ONE, steps=300)
FORK = amendment(RUN, SWARM, steps=150)
AFTER_FORK = amendment(RUN, SWARM, number=2, before=FORK, steps=400)


def resigned(**changes: object) -> Envelope:
    """An amendment with fields that no honest founder's program signs."""
    fields = structs.asdict(Amendment(1, b"", 0, 200, RUN.optimizer)) | changes
    body = msgspec.msgpack.encode(list(fields.values()))
    return FOUNDER.sign(AMENDMENT, body, SWARM)


def with_optimizer(**changes: object) -> Envelope:
    numbers = msgspec.to_builtins(RUN.optimizer) | changes
    return resigned(optimizer=numbers)


BAD: dict[str, Callable[[], Envelope]] = {
    "of somebody else": lambda: amendment(RUN, SWARM, by=SOMEBODY),
    "of another swarm": lambda: amendment(RUN, OTHER),
    "of another kind": lambda: FOUNDER.sign("manifest", TWO.body, SWARM),
    "with another body": lambda: structs.replace(ONE, body=TWO.body),
    "with another's name": lambda: structs.replace(
        amendment(RUN, SWARM, by=SOMEBODY), signer=FOUNDER.peer
    ),
    "truncated": lambda: FOUNDER.sign(AMENDMENT, ONE.body[:-1], SWARM),
    "with something behind": lambda: FOUNDER.sign(AMENDMENT, ONE.body + b"\x00", SWARM),
    "empty": lambda: FOUNDER.sign(AMENDMENT, b"", SWARM),
    "a first one that names another": lambda: resigned(before=bytes(32)),
    "a second one that names none": lambda: resigned(number=2),
    "one that names half a digest": lambda: resigned(number=2, before=bytes(16)),
    "number 0": lambda: resigned(number=0, before=bytes(32)),
    "too high a number": lambda: resigned(number=limits.MAX_AMENDMENTS + 1, before=bytes(32)),
    "no steps": lambda: resigned(steps=0),
    "too many steps": lambda: resigned(steps=limits.MAX_STEP + 1),
    "a step before the first": lambda: resigned(from_step=-1),
    "no rate": lambda: with_optimizer(lr=0.0),
    "an unknown schedule": lambda: with_optimizer(schedule="sawtooth"),
    "another optimizer": lambda: with_optimizer(name="muon"),
    "another clip": lambda: with_optimizer(clip=2.0),
    "another weight decay": lambda: with_optimizer(weight_decay=0.2),
    "a rate that is not canonical": lambda: with_optimizer(lr=1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ones_are_refused_and_cost_their_bringer(name: str) -> None:
    known = book(ONE)
    with pytest.raises(RemoteProtocolError) as refused:
        known.take(BAD[name]())
    assert refused.value.penalty >= 20
    assert [one.envelope for one in known.chain()] == [ONE]


def test_our_own_cannot_be_signed_out_of_range() -> None:
    with pytest.raises(LocalProtocolError):
        sign_amendment(FOUNDER, Amendment(1, b"", -1, 1, RUN.optimizer), SWARM)


def test_one_counts_whoever_brings_it_and_again_is_nothing_new() -> None:
    known = book()
    assert known.take(ONE) is not None
    assert known.take(ONE) is None
    assert known.take(structs.replace(ONE, signature=bytes(64))) is None  # not even looked at
    assert known.steps == 200


def test_out_of_order_they_count_when_those_before_are_here() -> None:
    known = book(TWO)
    assert known.steps == 100
    known.take(ONE)
    assert known.steps == 300
    assert [one.amendment.number for one in known.chain()] == [1, 2]


def test_a_shortened_run_may_have_later_versions() -> None:
    known = book(ONE, amendment(RUN, SWARM, number=2, before=ONE, steps=20))
    assert (known.steps, known.longest) == (20, 200)


class TestContradictions:
    def test_of_two_with_one_number_neither_counts_nor_any_after_them(self) -> None:
        known = book(ONE, TWO, FORK, AFTER_FORK)
        assert (known.steps, known.chain(), known.contradiction) == (100, (), 1)

    def test_a_second_one_that_names_another_first_contradicts_it(self) -> None:
        assert book(ONE, TWO, AFTER_FORK).contradiction == 2

    def test_what_was_agreed_on_stays(self) -> None:
        known = book(ONE)
        known.settle(listed((ONE, 9)))
        known.take(FORK)
        assert (known.steps, known.contradiction) == (200, None)
        known.take(TWO)
        assert known.steps == 300

    def test_a_stage_that_agreed_on_the_other_one_is_followed(self) -> None:
        assert [one.digest for one in book(ONE, FORK).chain(listed((FORK, 9)))] == [digest_of(FORK)]

    def test_a_third_is_not_kept(self) -> None:
        known = book(ONE, FORK)
        assert known.take(amendment(RUN, SWARM, steps=170)) is None
        assert len(known.envelopes) == 2


class TestAgreeing:
    def test_what_comes_late_holds_from_the_step_at_which_it_is_agreed_on(self) -> None:
        assert book(ONE).propose((), 10) == listed((ONE, 10))

    def test_a_later_step_is_kept_and_never_before_the_one_before(self) -> None:
        late = amendment(RUN, SWARM, from_step=60)
        then = amendment(RUN, SWARM, number=2, before=late, from_step=20)
        assert book(late, then).propose((), 10) == listed((late, 60), (then, 60))

    def test_what_is_agreed_on_is_not_proposed_again(self) -> None:
        agreed = listed((ONE, 18))
        assert book(ONE).propose(agreed, 30) == agreed
        assert book(ONE, TWO).propose(agreed, 30) == (*agreed, *listed((TWO, 30)))

    def test_an_unknown_one_is_not_known(self) -> None:
        assert not book().knows(listed((ONE, 9)))
        assert book(ONE).knows(listed((ONE, 9)))
        assert not book(ONE, TWO).knows(listed((TWO, 9)))
        assert not book(ONE, TWO).knows(listed((TWO, 9), (ONE, 9)))

    def test_a_shorter_list_is_not_settled_on(self) -> None:
        known = book(ONE, TWO)
        assert known.settle(listed((ONE, 9), (TWO, 12)))
        assert not known.settle(listed((ONE, 9)))
        assert not known.settle(listed((ONE, 9), (TWO, 12)))
        assert known.settle(listed((ONE, 9), (TWO, 14)))

    def test_what_is_kept_comes_back(self) -> None:
        known = book(ONE, TWO, FORK)
        known.settle(listed((ONE, 9)))
        kept = msgspec.msgpack.encode(known.kept)
        again = Amendments(RUN, SWARM, msgspec.msgpack.decode(kept, type=KeptAmendments))
        assert (again.chain(), again.agreed) == (known.chain(), known.agreed)

    def test_of_what_was_kept_only_what_verifies_counts(self) -> None:
        bad = amendment(RUN, OTHER, steps=300)
        assert Amendments(RUN, SWARM, KeptAmendments((bad, ONE))).steps == 200


class TestRates:
    HOT = structs.replace(RUN.optimizer, lr=5e-3, min_lr=5e-4)
    LAST = structs.replace(RUN.optimizer, schedule="constant", decay_from=None)

    def test_a_rate_holds_from_its_step_on(self) -> None:
        hot = amendment(RUN, SWARM, lr=5e-3, min_lr=5e-4)
        agreed = listed((hot, 20))
        assert book(hot).rate(agreed, 19) is None
        assert book(hot).rate(agreed, 20) == learning_rate(self.HOT, 20)

    def test_in_local_rounds_an_update_brings_the_rate_of_the_next_round(self) -> None:
        hot = amendment(RUN, SWARM, lr=5e-3, min_lr=5e-4)
        agreed = listed((hot, 20))
        known = Amendments(replace(RUN, local_rounds=LocalRounds(4)), SWARM)
        known.take(hot)
        known.settle(agreed)
        assert known.rate(agreed, 18) is None
        assert known.rate(agreed, 19) == learning_rate(self.HOT, 20)
        assert known.rate_at(19) is None
        assert known.rate_at(20) == learning_rate(self.HOT, 20)

    def test_of_several_the_last_that_holds_counts(self) -> None:
        course = Course(
            RUN.optimizer, (Turn(20, self.HOT), Turn(20, self.LAST), Turn(30, self.HOT))
        )
        assert course.at(19) == RUN.optimizer
        assert course.at(20) == course.at(29) == self.LAST
        assert course.at(10**9) == self.HOT
        assert course.learning_rate(500) == learning_rate(self.HOT, 500)


def test_what_a_run_was_before_each_amendment() -> None:
    known = book(ONE, TWO)
    assert [known.before(number)[0] for number in (1, 2, 3)] == [RUN.steps, 200, 300]
