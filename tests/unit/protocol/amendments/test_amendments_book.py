"""What counts of what a founder has signed, and what does not."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol import limits
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


ONE = amendment(RUN, SWARM, steps=200)
TWO = amendment(RUN, SWARM, number=2, steps=300)
FORK = amendment(RUN, SWARM, steps=150)
WINNER, LOSER = sorted((ONE, FORK), key=digest_of, reverse=True)


def resigned(**changes: object) -> Envelope:
    """An amendment with fields that no honest founder's program signs."""
    fields = structs.asdict(Amendment(1, 0, 200, RUN.optimizer)) | changes
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
    "number 0": lambda: resigned(number=0),
    "too high a number": lambda: resigned(number=limits.MAX_AMENDMENTS + 1),
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
    assert [one.envelope for one in known.counting] == [ONE]


def test_our_own_cannot_be_signed_out_of_range() -> None:
    with pytest.raises(LocalProtocolError):
        sign_amendment(FOUNDER, Amendment(1, -1, 1, RUN.optimizer), SWARM)


def test_one_counts_whoever_brings_it_and_again_is_nothing_new() -> None:
    known = book()
    assert known.take(ONE) is not None
    assert known.take(ONE) is None
    assert known.take(structs.replace(ONE, signature=bytes(64))) is None  # not even looked at
    assert known.steps == 200


def test_the_highest_number_counts_whatever_the_order() -> None:
    known = book(TWO)
    assert known.steps == 300
    known.take(ONE)
    assert known.steps == 300
    assert [one.amendment.number for one in known.counting] == [1, 2]


def test_a_shortened_run_may_have_later_versions() -> None:
    known = book(ONE, amendment(RUN, SWARM, number=2, steps=20))
    assert (known.steps, known.longest) == (20, 200)


@pytest.mark.parametrize("order", [(ONE, FORK), (FORK, ONE)])
def test_of_two_with_one_number_the_same_one_counts_for_all(order: tuple[Envelope, ...]) -> None:
    known = book(*order)
    assert [one.envelope for one in known.counting] == [WINNER]
    assert known.take(LOSER) is None
    known.take(TWO)
    assert known.steps == 300


def test_what_is_kept_comes_back() -> None:
    known = book(ONE, TWO)
    kept = msgspec.msgpack.encode(known.kept)
    again = Amendments(RUN, SWARM, msgspec.msgpack.decode(kept, type=KeptAmendments))
    assert again.counting == known.counting
    assert again.kept == known.kept


def test_of_what_was_kept_only_what_verifies_counts() -> None:
    bad = amendment(RUN, OTHER, steps=300)
    assert Amendments(RUN, SWARM, KeptAmendments((bad, ONE))).steps == 200


class TestHolding:
    def test_the_highest_number_that_is_due_holds(self) -> None:
        late = amendment(RUN, SWARM, from_step=60)
        then = amendment(RUN, SWARM, number=2, from_step=80)
        known = book(late, then)
        assert [known.due(step) for step in (59, 60, 79, 80)] == [
            b"",
            digest_of(late),
            digest_of(late),
            digest_of(then),
        ]

    def test_an_earlier_one_with_a_higher_number_takes_its_place(self) -> None:
        late = amendment(RUN, SWARM, from_step=60)
        then = amendment(RUN, SWARM, number=2, from_step=20)
        assert book(late, then).due(70) == digest_of(then)

    def test_a_stage_goes_by_none_before_the_one_that_it_went_by(self) -> None:
        known, (one, two, lacked) = book(ONE, TWO), map(digest_of, (ONE, TWO, FORK))
        for named, last in ((one, b""), (two, one), (one, one), (b"", b""), (one, lacked)):
            assert known.may_hold(named, 5, last)
        for named, last in ((one, two), (b"", one), (lacked, b""), (lacked, one)):
            assert not known.may_hold(named, 5, last)
        assert known.rate(lacked, 5) is None


class TestRates:
    HOT = structs.replace(RUN.optimizer, lr=5e-3, min_lr=5e-4)

    def test_a_rate_is_that_of_the_amendment_that_is_named(self) -> None:
        hot = amendment(RUN, SWARM, from_step=20, lr=5e-3, min_lr=5e-4)
        known = book(hot)
        assert not known.may_hold(digest_of(hot), 19, b"")
        assert known.may_hold(digest_of(hot), 20, b"")
        assert known.rate(b"", 20) is None
        assert known.rate(digest_of(hot), 20) == learning_rate(self.HOT, 20)

    def test_in_local_rounds_an_update_brings_the_rate_of_the_next_round(self) -> None:
        hot = amendment(RUN, SWARM, from_step=20, lr=5e-3, min_lr=5e-4)
        known = Amendments(replace(RUN, local_rounds=LocalRounds(4)), SWARM)
        known.take(hot)
        assert (known.due(18), known.due(19)) == (b"", digest_of(hot))
        assert known.rate(digest_of(hot), 19) == learning_rate(self.HOT, 20)
        assert known.rate_at(19) is None
        assert known.rate_at(20) == learning_rate(self.HOT, 20)


def test_what_a_run_was_before_each_amendment() -> None:
    known = book(ONE, TWO)
    assert [known.before(number)[0] for number in (1, 2, 3)] == [RUN.steps, 200, 300]
