"""Held-out records: the median of several counts, and one alone is one member's claim."""

import pytest

from protocol.ids import PeerId
from protocol.manifest import Evaluation
from protocol.membership.losses import Believed, LossSaid, evaluated

TERMS, STEPS = Evaluation(every=10, microbatches=1, tokens=8, size_bytes=8), 95


def said(*told: tuple[int, float]) -> dict[PeerId, LossSaid]:
    return {PeerId(str(n)): LossSaid(v, loss) for n, (v, loss) in enumerate(told)}


def shown(
    *told: tuple[int, float], reached: tuple[int, ...] = (50, 50, 51), before: float | None = None
) -> Believed | None:
    return evaluated(said(*told), reached, TERMS, STEPS, before)


def test_the_median_of_the_newest_version_counts() -> None:
    assert shown((40, 9.0), (50, 2.0), (50, 2.001), (50, 0.1)) == Believed(50, 2.0, 2, 3)


def test_one_alone_is_one_members_claim() -> None:
    assert shown((50, 0.1)) == Believed(50, 0.1, 1, 1)


def test_of_two_the_one_nearer_to_what_is_known_counts() -> None:
    assert shown((50, 0.1), (50, 2.0), before=2.2) == Believed(50, 2.0, 1, 2)
    assert shown((50, 2.0), (50, 0.1), before=0.3) == Believed(50, 0.1, 1, 2)


@pytest.mark.parametrize("version", [51, 70, 10**9, 94])
def test_a_version_that_is_not_due_or_far_ahead_is_ignored(version: int) -> None:
    assert shown((version, 0.1), (40, 2.0)) == Believed(40, 2.0, 1, 1)


def test_the_last_version_is_due() -> None:
    assert shown((STEPS, 2.0), reached=(STEPS,)) == Believed(STEPS, 2.0, 1, 1)


def test_without_a_replica_or_a_record_nothing_is_known() -> None:
    assert shown() is None
    assert shown((50, 2.0), reached=()) is None
