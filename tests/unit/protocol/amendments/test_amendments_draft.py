"""What a founder may change, and what it is told when it may not."""

import pytest

from model_zoo.specs.optimizer import OptimizerSpec
from protocol import limits
from protocol.amendments.amendment import Amendment, sign_amendment
from protocol.amendments.book import Amendments
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.amendments.words import describe
from protocol.errors import LocalProtocolError
from protocol.ids import SwarmId
from tests.support.amended_runs import FOUNDER, Run, amendment

SWARM = SwarmId("ab" * 32)
RUN = Run(OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=10, decay_steps=100), 100, 2)


def book() -> Amendments:
    return Amendments(RUN, SWARM)


def drafted(changes: Changes, known: Amendments | None = None) -> Amendment:
    """Of a run that has done forty steps."""
    return draft(known or book(), RUN.optimizer.lr, changes, 40)


def test_more_steps_leave_the_schedule_as_it_is() -> None:
    said = drafted(Changes(steps=300))
    assert (said.number, said.steps) == (1, 300)
    assert said.optimizer == RUN.optimizer
    assert describe(said, 100, RUN.optimizer) == "the run is extended from 100 to 300 steps"
    assert describe(said, 400, RUN.optimizer) == "the run is shortened from 400 to 300 steps"
    assert describe(said, 300, RUN.optimizer) == "nothing is changed"


def test_a_rate_ends_with_the_run_and_keeps_its_share() -> None:
    said = drafted(Changes(steps=300, lr=5e-4))
    assert (said.optimizer.lr, said.optimizer.min_lr) == (5e-4, pytest.approx(5e-5))
    assert said.optimizer.decay_steps == 300
    assert said.from_step == 40 + book().notice, "by then all have heard of it"


def test_wsd_falls_in_the_last_fifth_unless_said() -> None:
    said = drafted(Changes(schedule="wsd", lr=5e-3))
    assert said.optimizer.falls_from == 80
    words = describe(said, 100, RUN.optimizer)
    assert words.startswith("learning rate 0.005 in place of 0.001; final learning rate 0.0005")
    assert words.endswith("schedule wsd in place of cosine; falls from step 80 in place of 10")
    assert drafted(Changes(schedule="wsd", decay_from=50)).optimizer.falls_from == 50


def test_where_wsd_begins_to_fall_is_kept_while_the_run_ends_where_it_did() -> None:
    known = book()
    said = drafted(Changes(schedule="wsd", decay_from=50))
    known.take(sign_amendment(FOUNDER, said, SWARM))
    assert drafted(Changes(lr=1e-4), known=known).optimizer.falls_from == 50
    assert drafted(Changes(lr=1e-4, steps=200), known=known).optimizer.falls_from == 160


def test_back_to_a_cosine() -> None:
    known = book()
    said = drafted(Changes(schedule="wsd"))
    known.take(sign_amendment(FOUNDER, said, SWARM))
    again = drafted(Changes(schedule="cosine"), known=known)
    assert again.number == 2
    assert again.optimizer == RUN.optimizer


REFUSED = (
    (Changes(steps=40), "has done 40 steps"),
    (Changes(steps=0), "between 1 and"),
    (Changes(steps=100), "nothing would change"),
    (Changes(lr=0.0), "lr should be float > 0"),
    (Changes(lr=float("nan")), "lr should be float > 0"),
    (Changes(lr=0.2), "would destroy it"),
    (Changes(lr=1e-3, min_lr=1e-2), "min_lr"),
    (Changes(schedule="sawtooth"), "known are"),
    (Changes(decay_from=50), "decay_from belongs"),
    (Changes(warmup_steps=90, decay_steps=80), "warmup_steps"),
    (Changes(lr=1e-4, from_step=39), "nothing can change at 39"),
    (Changes(lr=1e-4, from_step=100), "nothing is left"),
    (Changes(steps=200, from_step=60), "steps are added at the end"),
)


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_be_is_said_in_words(changes: Changes, words: str) -> None:
    with pytest.raises(LocalProtocolError, match=words):
        drafted(changes)


def test_two_that_were_signed_on_two_machines_are_followed_by_the_next() -> None:
    known = book()
    known.take(amendment(RUN, SWARM, steps=200))
    known.take(amendment(RUN, SWARM, steps=300))
    said = drafted(Changes(steps=400), known=known)
    assert (said.number, said.steps) == (2, 400)


def test_what_restates_a_later_schedule_brings_it_no_sooner() -> None:
    known = book()
    known.take(amendment(RUN, SWARM, from_step=90, lr=5e-4))
    assert drafted(Changes(steps=300), known=known).from_step == 90


def test_a_run_is_amended_so_many_times_and_not_once_more() -> None:
    known = book()
    for number in range(limits.MAX_AMENDMENTS):
        said = drafted(Changes(steps=200 + number), known=known)
        known.take(sign_amendment(FOUNDER, said, SWARM))
    assert known.steps == 200 + limits.MAX_AMENDMENTS - 1
    with pytest.raises(LocalProtocolError, match="amended 64 times at most"):
        drafted(Changes(steps=400), known=known)
