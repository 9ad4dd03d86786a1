"""Friends of a swarm of one stage come and go for hours; those that are up together are one."""

import pytest

from client.lab.simulate.chaos.comings import Comings
from client.lab.simulate.invariants import InvariantViolation
from protocol.recovery.lines import Lines
from tests.support.cases import usual

MEMBERS_SEED_HOURS = [(3, 5, 0.5), (2, 6, 0.7)]
"""In each, lines meet."""


@pytest.mark.parametrize(("members", "seed", "hours"), usual(1, MEMBERS_SEED_HOURS))
def test_who_are_up_together_train_one_model(members: int, seed: int, hours: float) -> None:
    comings = Comings(seed, members, hours)
    comings.run()
    assert any("are given up" in words for words in comings.world.log)


def test_without_the_rule_two_models_are_trained_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lines, "greater", lambda *_, **__: None)
    with pytest.raises(InvariantViolation, match="two lineages stay beside each other"):
        Comings(6, 2, 0.7).run()


@pytest.mark.long
@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_seeds(members: int, seed: int) -> None:
    Comings(seed, members, 2.0).run()
