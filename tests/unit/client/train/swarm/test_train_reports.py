"""What replicas of the last stage tell of losses; one liar changes nothing of what is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from client.train.reporting.event_sink import EventSink
from client.train.swarm.loss_reports import VOUCH_S, LossReports, believed
from protocol.effects import Publish
from protocol.ids import PeerId, peer_id_from_key
from protocol.manifest import Evaluation
from protocol.membership.losses import HELD_OUT, PROGRESS, Believed, LossSaid, vouched
from protocol.membership.membership import Membership
from protocol.pipeline.effects import Committed
from protocol.rounds.reports import vouched_sum
from protocol.seat.effects import HeldOutLoss
from protocol.view import Replica, SwarmView, leaders
from tests.support.protocol_examples import manifest, peer
from tests.support.recording_ports import RecordingPorts

ME, *OTHERS = (peer(n) for n in range(1, 5))
TERMS = Evaluation(every=5, microbatches=1, tokens=10, size_bytes=40)
WALL = 1_800_000_000.0


class World(RecordingPorts):
    """A clock, what is published and shown, and what the members say."""

    def __init__(self, terms: Evaluation | None = TERMS) -> None:
        super().__init__(ME, structs.replace(manifest(peer(1)), evaluation=terms))
        self.time, self.shown = 0.0, list[tuple[Any, ...]]()
        self.said: dict[PeerId, Any] = {}
        self.versions: dict[PeerId, int] = {}
        self.sink = SimpleNamespace(
            loss=None, held_out=None, progressed=self._shows, evaluated=self._shows
        )

    def wall(self) -> float:
        return WALL

    def _shows(self, *what: Any, vouchers: int | None = None) -> None:
        self.shown.append(what if vouchers is None else (*what, vouchers))

    @property
    def roster(self) -> World:
        return self

    def serving(self, stage: int) -> list[Any]:
        assert stage == self.manifest.stage_count - 1
        seats = self.versions.items()
        return [SimpleNamespace(peer=p, seat=SimpleNamespace(version=v)) for p, v in seats]

    def losses(self, kind: str) -> dict[PeerId, LossSaid]:
        return self.said

    def report(self, steps: int = 100) -> LossReports:
        sink = cast(EventSink, self.sink)
        self.amendments = SimpleNamespace(steps=steps)  # type: ignore[assignment]
        return LossReports(self, cast(Membership, self), sink)


def committed(version: int, loss: float | None = 2.0) -> Committed:
    return Committed(1, version, "", loss, 0.0, 4, 1, own_loss=loss)


def stage_of(version: int, peers: Sequence[PeerId]) -> SwarmView:
    return SwarmView.of([[], [Replica(one, version, True) for one in peers]])


class TestProgress:
    def per_step(self, world: World) -> int:
        return world.manifest.tokens_per_microbatch * world.manifest.microbatches_per_step

    def test_who_leads_tells_every_step_and_the_others_now_and_then(self) -> None:
        world = World()
        report, alone = world.report(), stage_of(3, [ME])
        for version in (1, 2, 3):
            report.closed(committed(version), alone)
        assert len(world.done) == 3
        last = 2, 2.0, 3 * self.per_step(world)
        assert world.done[2] == Publish(PROGRESS, LossSaid(3, 2.0))
        assert world.shown[2] == (*last, 0.0, 0), "the loss is our own"

        world.done.clear()

        def leads(step: int) -> bool:
            return leaders(stage_of(step, [ME, *OTHERS]), 1, step)[0] == ME

        def closes(step: int) -> int:
            """Close a step of four replicas; return how many have been told of by us."""
            report.closed(committed(step + 1), stage_of(step, [ME, *OTHERS]))
            return len(world.done)

        first = next(step for step in range(10, 200) if not leads(step) and leads(step + 1))
        assert closes(first) == 0, "we have just told"
        assert closes(first + 1) == 1
        world.time = VOUCH_S
        assert closes(next(step for step in range(first + 2, 200) if not leads(step))) == 2

    def test_a_loss_that_nobody_knows_is_not_told(self) -> None:
        world = World()
        world.report().closed(committed(1, loss=None), stage_of(1, [ME]))
        assert world.done == world.shown == []

    def test_who_computes_no_loss_shows_what_is_vouched_for(self) -> None:
        world = World()
        report = world.report()
        world.versions = dict.fromkeys(OTHERS, 8)
        report.heard(PROGRESS)
        assert world.shown == []
        world.said = {one: LossSaid(8, 2.5) for one in OTHERS}
        world.time = 4.0
        report.heard(PROGRESS)
        shown = 7, 2.5, 8 * self.per_step(world)
        assert world.shown == [(*shown, 4.0, 3)], "tokens are counted, not believed"
        world.versions[ME] = 8
        report.heard(PROGRESS)
        assert len(world.shown) == 1, "we compute it ourselves"


class TestEvaluation:
    def test_our_number_is_told_and_shown_like_that_of_others(self) -> None:
        world = World()
        report = world.report()
        world.versions = {ME: 5, OTHERS[0]: 5}
        world.said = {ME: LossSaid(5, 2.0), OTHERS[0]: LossSaid(5, 2.0)}
        for _ in range(2):
            report.found(HeldOutLoss(5, 2.0))
        assert world.done == [Publish(HELD_OUT, LossSaid(5, 2.0))] * 2
        assert world.shown == [(Believed(5, 2.0, 2, 2), TERMS)] * 2

    @pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1.0, 1001.0])
    def test_a_number_that_is_no_loss_is_not_told(self, loss: float) -> None:
        world = World()
        world.report().found(HeldOutLoss(5, loss))
        assert world.done == []

    def test_between_two_numbers_what_we_know_decides(self) -> None:
        world, one, other = World(), *OTHERS[:2]
        world.versions = dict.fromkeys(OTHERS, 5)
        world.said = {one: LossSaid(5, 1.0), other: LossSaid(5, 3.0)}
        world.sink.loss = 2.9
        world.report().heard(HELD_OUT)
        assert world.shown[-1][0].loss == 3.0, "the last loss of training"
        world.sink.held_out = SimpleNamespace(version=5, loss=1.1)
        world.report().heard(HELD_OUT)
        assert world.shown[-1][0].loss == 1.0, "rather the last one that was shown"
        del world.said[one]
        world.said[ME] = LossSaid(5, 2.8)
        world.sink.held_out = SimpleNamespace(version=5, loss=3.2)
        world.report().heard(HELD_OUT)
        assert world.shown[-1][0].loss == 2.8, "rather our own"

    def test_an_older_version_is_not_shown_again(self) -> None:
        world = World()
        world.versions = dict.fromkeys(OTHERS, 10)
        world.said = {OTHERS[0]: LossSaid(5, 2.0)}
        world.sink.held_out = SimpleNamespace(version=10, loss=1.9)
        world.report().heard(HELD_OUT)
        assert world.shown == []
        world.said = {OTHERS[0]: LossSaid(12, 2.0)}
        world.report(steps=12).heard(HELD_OUT)
        assert world.shown[0][0].version == 12, "the last version is no multiple"

    def test_a_run_without_evaluation_shows_none(self) -> None:
        world = World(terms=None)
        world.versions = dict.fromkeys(OTHERS, 5)
        world.said = {OTHERS[0]: LossSaid(5, 2.0)}
        world.report().heard(HELD_OUT)
        assert world.shown == []


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
        two = honest(1) | {LIAR: says(101, lie)}
        assert vouched(two, [100, 100], shown=2.1) == Believed(100, 2.0, 1, 2), (
            "after an honest one"
        )

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
        assert vouched({}, [], shown=None) is None, "nobody serves the last stage"


class TestRound:
    @pytest.mark.parametrize("lie", [0.0, 5e26, 9e29, -7.0])
    def test_one_of_three_who_lies_changes_nothing(self, lie: float) -> None:
        found = vouched_sum([(64.0, 2), (66.0, 2), (lie, 4)], own=0)
        assert found == pytest.approx(64 + 66 + 4 * 32, rel=0.05)

    @pytest.mark.parametrize("lie", [0.0, 5e26])
    def test_of_two_the_leader_goes_by_its_own(self, lie: float) -> None:
        assert vouched_sum([(lie, 2), (64.0, 2)], own=1) == 128.0

    @given(st.lists(st.tuples(st.floats(1.0, 3.9), st.integers(1, 9)), min_size=1, max_size=8))
    def test_the_sum_of_the_honest_is_exact(self, means: list[tuple[float, int]]) -> None:
        shares = [(mean * count, count) for mean, count in means]
        assert vouched_sum(shares, own=0) == sum(total for total, _ in shares)

    def test_where_no_loss_is_computed_there_is_none(self) -> None:
        assert vouched_sum([(0.0, 3), (0.0, 0), (5e26, 4)], own=0) == 0.0


class TestReplicasOfTheLastStage:
    said = Committed(1, 8, "", loss=2.0, grad_norm=1.0, counted=2, attempt=1, own_loss=2.2)

    def test_the_leaders_word_counts_where_it_agrees_with_our_own(self) -> None:
        assert believed(self.said, 2.1) == 2.0
        assert believed(replace(self.said, loss=None), 2.1) is None, "the sum went with its leader"

    @pytest.mark.parametrize("lie", [0.0, 5e26, math.nan, math.inf, -2.0])
    def test_else_our_own_counts(self, lie: float) -> None:
        assert believed(replace(self.said, loss=lie), 2.1) == 2.2

    @pytest.mark.parametrize("lie", [0.0, 5e26, math.nan])
    def test_without_our_own_a_leader_far_from_the_last_step_says_nothing(self, lie: float) -> None:
        """A liar that led a step in which we had no microbatch had its loss of 0 shown."""
        said = replace(self.said, own_loss=None)
        assert believed(replace(said, loss=lie), 2.1) is None
        assert believed(said, 2.1) == 2.0
        assert believed(said, None) is None, "of the first step we know nothing else"
        assert believed(replace(said, loss=lie), None) is None
