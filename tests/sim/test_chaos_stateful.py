"""Hypothesis chooses what goes wrong and when: the same world, the same checks after every move."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.links import TrickKind
from client.lab.simulate.chaos.schedule import AIMED_AT, Fault, FaultKind
from client.lab.simulate.chaos.trial import Trial
from client.lab.simulate.chaos.world import ChaosWorld
from tests.support.cases import usual

WHO = st.integers(0, 2**16 - 1)
SPAN_S = st.floats(0.05, 14.0)
MESSAGES = st.sampled_from(AIMED_AT)


class ChaosMachine(RuleBasedStateMachine):
    """Every rule is a fault, or lets time pass; in the end everything has to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ChaosWorld(ChaosConfig(), [])

    @initialize(
        seed=st.integers(0, 1000),
        stages=st.integers(2, 3),
        replicas=st.integers(2, 3),
        per_step=st.integers(4, 6),
        links_survive_silence=st.booleans(),
    )
    def begin(self, **drawn: Any) -> None:
        self.world = ChaosWorld(ChaosConfig(**drawn), [])

    def strike(self, kind: FaultKind, **words: Any) -> None:
        self.world.faults.meet(Fault(self.world.agenda.now, kind, **words))

    @rule(who=WHO, span_s=SPAN_S)
    def crash(self, who: int, span_s: float) -> None:
        self.strike("crash", who=who, span_s=span_s)

    @rule(who=WHO, span_s=SPAN_S)
    def lose_the_disk(self, who: int, span_s: float) -> None:
        self.strike("wipe", who=who, span_s=span_s)

    @rule(who=WHO)
    def lose_the_worker(self, who: int) -> None:
        self.strike("worker", who=who)

    @rule(who=WHO, span_s=SPAN_S)
    def pause(self, who: int, span_s: float) -> None:
        self.strike("pause", who=who, span_s=span_s)

    @rule(who=WHO)
    def wake(self, who: int) -> None:
        present = self.world.present()
        sleeper = present[who % len(present)]
        self.world.wake(sleeper, sleeper.incarnation)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        present = self.world.present()
        self.world.start(present[who % len(present)])

    @rule(who=WHO, span_s=SPAN_S, lossy=st.booleans())
    def partition(self, who: int, span_s: float, lossy: bool) -> None:
        self.strike("split", who=who, span_s=span_s, lossy=lossy)

    @rule()
    def heal(self) -> None:
        self.world.network.heal()

    @rule(trick=st.sampled_from(get_args(TrickKind)), message=MESSAGES)
    def play_a_trick(self, trick: TrickKind, message: str) -> None:
        self.strike("message", trick=trick, message=message)

    @rule(
        kind=st.sampled_from(("crash", "pause", "worker", "split")), message=MESSAGES, span_s=SPAN_S
    )
    def strike_who_says(self, kind: FaultKind, message: str, span_s: float) -> None:
        self.strike(kind, message=message, span_s=span_s, aimed=True)

    @rule(who=WHO, rate=st.floats(0.9, 1.1))
    def skew_a_clock(self, who: int, rate: float) -> None:
        self.strike("clock", who=who, rate=rate)

    @rule(seconds=st.floats(0.01, 0.5))
    def let_a_moment_pass(self, seconds: float) -> None:
        self.world.advance_to(self.world.agenda.now + seconds)

    @rule(seconds=st.floats(1.0, 8.0))
    def let_time_pass(self, seconds: float) -> None:
        self.world.advance_to(self.world.agenda.now + seconds)

    @invariant()
    def nobody_keeps_more_than_it_may(self) -> None:
        self.world.check_bounds()

    @invariant()
    def all_states_are_what_their_steps_make(self) -> None:
        self.world.check_states()

    def teardown(self) -> None:
        Trial(self.world).end()


SETTINGS = settings(
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.parametrize("examples", usual(1, (20, 100)))
def test_chaos(examples: int) -> None:
    run_state_machine_as_test(ChaosMachine, settings=settings(SETTINGS, max_examples=examples))
