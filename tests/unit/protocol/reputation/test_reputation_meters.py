"""The meters: service rates from ledgers and traffic, in simulated time."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from protocol.ids import PeerId
from protocol.reputation.service import Account, ServiceMeter
from tests.support.protocol_examples import peer, seat

M = 40
ABOVE, BELOW, FAST, SLOW, LIAR = map(peer, range(1, 6))
RATES = {FAST: 3.0, SLOW: 1.0}


@dataclass
class Stage1:
    """Steps of stage 1 as one observer sees them; its replicas share the work by speed."""

    observer: PeerId
    rates: dict[PeerId, float] = field(default_factory=lambda: dict(RATES))
    queues: dict[PeerId, int] = field(default_factory=dict)
    """The replicas' claims about their queue; 3 unless named."""
    own_stage: int = 0
    own_queue: int = 0
    now: float = 0.0
    step: int = 0
    pace: float | None = None
    """Microbatches per second of the whole pipeline; None: this stage sets it."""

    def __post_init__(self) -> None:
        self.meter = ServiceMeter(self.observer, M)

    def heartbeats(self, version: int, *, queued: bool = True) -> None:
        for name in self.rates:
            queue = self.queues.get(name, 3) if queued else 0
            self.meter.heard(name, [seat(1, version, queue=queue)], self.now)
        if self.own_stage != 1:
            own = seat(self.own_stage, version, queue=self.own_queue)
            self.meter.heard(self.observer, [own], self.now)

    def run(self, steps: int, *, ledger: bool = False, traffic: bool = True) -> None:
        total = sum(self.rates.values())
        for _ in range(steps):
            self.heartbeats(self.step)
            owner = self._assignment()
            if traffic:
                for microbatch, name in owner.items():
                    self.meter.brought(name, 1, self.step, microbatch)
            for _ in range(4):
                self.now += M / (self.pace or total) / 4
                self.heartbeats(self.step)
            self.step += 1
            if ledger:
                self.meter.closed(1, self.step, Counter(owner.values()), self.now)
            elif self.own_stage != 1:
                self.meter.closed(self.own_stage, self.step, {}, self.now)
            self.heartbeats(self.step, queued=False)

    def _assignment(self) -> dict[int, PeerId]:
        done = Counter(dict.fromkeys(self.rates, 0))
        owner = {}
        for microbatch in range(self.step * M, (self.step + 1) * M):
            name = min(self.rates, key=lambda p: ((done[p] + 1) / self.rates[p], p))
            done[name] += 1
            owner[microbatch] = name
        return owner

    def measured(self, name: PeerId) -> Account:
        return self.meter.accounts(self.now).get((name, 1), Account())


@pytest.mark.parametrize(("ledger", "own_stage"), [(False, 0), (False, 2), (True, 1)])
def test_neighbours_and_siblings_measure_how_fast_replicas_serve(
    ledger: bool, own_stage: int
) -> None:
    observer = FAST if own_stage == 1 else ABOVE
    stage = Stage1(observer, own_stage=own_stage)
    stage.run(30, ledger=ledger, traffic=not ledger)
    assert stage.measured(SLOW).rate == pytest.approx(1.0, rel=0.1)
    assert stage.measured(SLOW).measured_s == pytest.approx(290, abs=11)
    assert (observer, 1) not in stage.meter.accounts(stage.now), "nobody measures itself"
    if observer != FAST:
        assert stage.measured(FAST).rate == pytest.approx(3.0, rel=0.1)


def test_an_idle_replica_is_not_slow() -> None:
    stage = Stage1(ABOVE, queues={FAST: 0, SLOW: 0}, pace=0.5)
    stage.run(20)
    assert stage.meter.accounts(stage.now) == {}


def test_who_serves_the_stage_no_more_ends_no_measuring_of_the_others() -> None:
    stage = Stage1(ABOVE)
    stage.run(10)
    slow, fast = (stage.measured(name).measured_s for name in (SLOW, FAST))
    del stage.rates[SLOW]
    stage.meter.heard(SLOW, [seat(2, stage.step)], stage.now)
    stage.run(10)
    assert stage.measured(SLOW).measured_s == slow
    assert stage.measured(FAST).measured_s > fast


def test_a_liar_cannot_hide_its_queue_where_it_has_siblings() -> None:
    stage = Stage1(ABOVE, queues={SLOW: 0})
    stage.run(30)
    assert stage.measured(SLOW).rate == pytest.approx(1.0, rel=0.1)
    assert stage.measured(FAST).measured_s == 0, "of its sibling nothing is learnt meanwhile"


def test_a_stage_did_not_wait_for_work_while_we_had_a_queue() -> None:
    stage = Stage1(ABOVE, own_queue=5)
    stage.run(20)
    # our own seat's queue is known from the first step that we saw whole
    assert stage.measured(SLOW).measured_s <= 10


def test_a_lone_replica_does_every_microbatch_and_its_own_word_says_whether_it_is_busy() -> None:
    stage = Stage1(ABOVE, rates={FAST: 2.0})
    stage.run(20, traffic=False)
    assert stage.measured(FAST).rate == pytest.approx(2.0, rel=0.05)


def test_an_announced_version_far_ahead_ends_no_measuring() -> None:
    stage = Stage1(ABOVE, rates={FAST: 3.0, SLOW: 1.0, LIAR: 1.0})
    stage.run(5)
    stage.meter.heard(LIAR, [seat(1, 2**39, queue=3)], stage.now)
    del stage.rates[LIAR]
    stage.run(10)
    assert stage.measured(SLOW).measured_s > 100


def test_a_step_that_we_have_not_closed_counts_nothing() -> None:
    stage = Stage1(FAST, own_stage=1)
    stage.heartbeats(0)
    stage.run(3, ledger=True, traffic=False)
    before = stage.measured(SLOW).measured_s
    assert before > 0
    stage.run(1, traffic=False)
    stage.run(1, ledger=True, traffic=False)
    assert stage.measured(SLOW).measured_s == before, "of two steps at once nobody knows the time"


def test_a_machine_that_slows_down_shows() -> None:
    stage = Stage1(ABOVE)
    stage.run(60)
    stage.rates[SLOW] = 0.25
    stage.run(60)
    assert stage.measured(SLOW).rate < 0.45


def test_gradients_of_other_steps_or_strangers_count_nothing() -> None:
    stage = Stage1(ABOVE)
    stage.run(2)
    for step, microbatch in ((stage.step + 7, 7 * M), (stage.step, 0), (0, 0)):
        stage.meter.brought(SLOW, 1, step, microbatch)
    stage.meter.brought(peer(77), 1, stage.step, stage.step * M)
    stage.meter.brought(SLOW, 200, 0, 0)
    stage.run(20)
    assert stage.measured(SLOW).rate == pytest.approx(1.0, rel=0.1)
    assert all(name in RATES for name, _ in stage.meter.accounts(stage.now))
