"""Three of eight replicas of a stage spoil its rounds at once: the others go on without them."""

from __future__ import annotations

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from tests.support.cases import usual
from tests.support.lying_minority import LyingMinority

LIES_FROM = 10
LIES = ("absurd", "unsigned contributions", "absurd sums")
WITHIN_S = 15.0
"""From the first lie until honest ones close steps: two attempts, the dispute, and the 5 s until
the electors have lost the liars."""


def world(seed: int, lie: str, stages: int = 1) -> LyingMinority:
    config = ChaosConfig(
        seed=seed,
        stages=stages,
        replicas=5,
        per_step=16,
        lies=(lie,),
        liars=3,
        lies_from=LIES_FROM,
        audits=0.03,
    )
    return LyingMinority(config, lie)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", usual(1, range(1, 5)))
def test_the_stage_goes_on_and_only_liars_are_out(seed: int, lie: str) -> None:
    made = world(seed, lie)
    while made.versions()[0] < LIES_FROM:
        made.watch(1.0)
    made.watch(WITHIN_S)
    gone_on = made.versions()[0]
    assert gone_on > LIES_FROM + 1, "\n".join(made.log[-60:])
    assert [made.works_without(v) for v in made.volunteers.values() if v.lies] == [5, 5, 5]
    made.watch(20.0)
    assert made.versions()[0] > gone_on + 15
    assert not +made.wrongly, "an honest one was set aside for what it has reported"


def test_who_contributes_something_else_than_it_signed_is_expelled_with_all_the_others() -> None:
    """The charges of one author against several members do not wait for each other."""
    made = world(1, "unsigned contributions")
    while made.versions()[0] < LIES_FROM:
        made.watch(1.0)
    made.watch(WITHIN_S)
    assert made.audits.lasted == [0, 0, 0]
