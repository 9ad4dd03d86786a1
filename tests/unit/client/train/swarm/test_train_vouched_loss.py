"""The loss that is shown is one that most vouch for: one liar changes nothing of it."""

import math
from dataclasses import replace

import pytest

from client.train.swarm.loss_reports import believed
from protocol.ids import PeerId, peer_id_from_key
from protocol.membership.losses import Believed, LossSaid, vouched
from protocol.pipeline.effects import Committed

LIAR, *HONEST = [peer_id_from_key(bytes([n]) * 32) for n in range(4)]
LIES = [0.0, 900.0, 5.4]


def says(version: int, loss: float) -> LossSaid:
    return LossSaid(version, loss)


def honest(number: int, version: int = 100) -> dict[PeerId, LossSaid]:
    return {peer: says(version - n, 2.0 + n / 10) for n, peer in enumerate(HONEST[:number])}


class TestObservers:
    @pytest.mark.parametrize("lie", LIES)
    @pytest.mark.parametrize("version", [99, 100, 111])
    def test_one_of_three_who_lies_is_not_shown(self, lie: float, version: int) -> None:
        said = honest(2) | {LIAR: says(version, lie)}
        found = vouched(said, [100, 99, 100], shown=None)
        assert found == Believed(100, 2.0, 2, 3)

    @pytest.mark.parametrize("lie", LIES)
    def test_one_of_two_who_lies_is_not_shown_after_an_honest_loss(self, lie: float) -> None:
        said = honest(1) | {LIAR: says(101, lie)}
        assert vouched(said, [100, 100], shown=2.1) == Believed(100, 2.0, 1, 2)

    def test_alone_it_is_that_ones_word(self) -> None:
        shown = vouched({LIAR: says(100, 900.0)}, [100], shown=2.0)
        assert shown == Believed(100, 900.0, 1, 1)

    @pytest.mark.parametrize("version", [10**9, 118, 31])
    def test_a_step_out_of_reach_is_not_shown(self, version: int) -> None:
        assert vouched({LIAR: says(version, 2.0)}, [100, 100, 10**9], shown=2.0) is None
        found = vouched(honest(2) | {LIAR: says(version, 2.0)}, [100, 100, 10**9], shown=2.0)
        assert found == Believed(100, 2.0, 2, 2)

    def test_the_newest_of_the_honest_is_shown_as_it_is(self) -> None:
        assert vouched(honest(3), [100, 99, 98], shown=None) == Believed(100, 2.0, 3, 3)

    def test_nobody_serves_the_last_stage(self) -> None:
        assert vouched({}, [], shown=None) is None


class TestReplicasOfTheLastStage:
    said = Committed(1, 8, "", loss=2.0, grad_norm=1.0, counted=2, attempt=1, own_loss=2.2)

    def test_the_leaders_word_counts_where_it_agrees_with_our_own(self) -> None:
        assert believed(self.said, 2.1) == 2.0

    def test_a_step_whose_sum_went_with_its_leader_has_no_loss(self) -> None:
        assert believed(replace(self.said, loss=None), 2.1) is None

    @pytest.mark.parametrize("lie", [0.0, 5e26, math.nan, math.inf, -2.0])
    def test_else_our_own_counts(self, lie: float) -> None:
        assert believed(replace(self.said, loss=lie), 2.1) == 2.2

    @pytest.mark.parametrize("lie", [0.0, 5e26])
    def test_without_our_own_a_leader_far_from_the_last_step_says_nothing(self, lie: float) -> None:
        """A liar that led a step in which we had no microbatch had its loss of 0 shown."""
        said = replace(self.said, own_loss=None)
        assert believed(replace(said, loss=lie), 2.1) is None
        assert believed(said, 2.1) == 2.0
        assert believed(said, None) is None, "of the first step we know nothing else"

    @pytest.mark.parametrize("lie", [5e26, math.nan])
    def test_without_our_own_what_can_be_no_loss_is_none(self, lie: float) -> None:
        assert believed(replace(self.said, loss=lie, own_loss=None), None) is None
