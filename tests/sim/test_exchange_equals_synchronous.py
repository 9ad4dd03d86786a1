"""Full epochs with loss, duplicates and reordering decide exactly what one place would decide."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from protocol.ids import PeerId, Stage
from protocol.matching.design import FULL
from protocol.matching.exchange import bodies
from protocol.matching.exchange.bodies import Epoch, Round, Vote
from tests.support import epoch_planning
from tests.support.cases import usual
from tests.support.exchange_world import ExchangeWorld, counted, swarm
from tests.support.matching_world import CALM, Weather

LOSSY = Weather(0.10, 0.05, (0.005, 0.15), (0.02, 0.3))


def state(world: ExchangeWorld) -> object:
    """Return all that an epoch must not touch before its decision."""
    pools = {stage: (dict(o.pool.places), o.pool.limits) for stage, o in world.offices.items()}
    seats = {name: (seat.settled_home, seat.moved_to) for name, seat in world.seats.items()}
    return pools, seats, world.expected()


def run(seed: int, weather: Weather) -> ExchangeWorld:
    world = ExchangeWorld(swarm(seed, workers=(4, 8)), seed, weather)
    world.run(55)
    return world


def check_equal(world: ExchangeWorld, seed: int) -> bool:
    """Compare with one place; tell whether there was an epoch that ended."""
    last = world.last_word
    if last is None:
        return False
    wanted = world.outcome()
    assert last.phase in (bodies.COMMIT, bodies.ABORT), f"seed {seed}: {last}"
    assert world.moves() == wanted.moves, f"seed {seed}"
    assert world.expected() == wanted.moves, f"seed {seed}"
    assert (last.phase == bodies.COMMIT) == (wanted.quota_percent is not None), f"seed {seed}"
    if wanted.quota_percent is not None:
        assert last.quota_percent == wanted.quota_percent, f"seed {seed}"
    return True


def check_progress(world: ExchangeWorld, seed: int) -> None:
    """At most n S proposals an attempt, none twice but again, none below a known cutoff."""
    homes, stages = world.swarm.homes, len(world.offices)
    votes = {(who, body.round, body.stage) for who, body in world.sent if isinstance(body, Vote)}
    per_attempt = Counter(round_ for _, round_, _ in votes)
    assert all(count <= len(homes) * stages for count in per_attempt.values()), f"seed {seed}"
    steps: dict[tuple[PeerId, Round], list[int]] = {}
    for who, body in world.sent:
        if isinstance(body, Vote):
            steps.setdefault((who, body.round), []).append(body.step)
    for heard in steps.values():
        assert heard == sorted(heard), f"seed {seed}: a wish was taken up again"


@pytest.mark.parametrize("seeds", usual(1, (range(100), range(100, 1000))))
def test_equal_with_loss_duplicates_and_reordering(seeds: range) -> None:
    ended = committed = 0
    for seed in seeds:
        world = run(seed, LOSSY)
        ended += check_equal(world, seed)
        committed += bool(world.moves())
        check_progress(world, seed)
        assert set(counted(world)) <= HARMLESS, f"seed {seed}: {counted(world)}"
    assert ended > len(seeds) * 0.7
    assert committed > len(seeds) * 0.5


HARMLESS = {"matching-other-round", "matching-no-box", "matching-vote-after-freeze"}
"""The reasons under which late copies are counted."""


def test_calm_epochs_take_a_second_or_two_and_no_attempt_twice() -> None:
    for seed in range(40):
        world = run(seed, CALM)
        if check_equal(world, seed):
            words = [epoch.reason for _, epoch in world.spread if isinstance(epoch, Epoch)]
            attempts = {body.round for _, body in world.spread if isinstance(body, Epoch)}
            assert len(attempts) <= len(epoch_planning.LADDER_PERCENT), f"seed {seed}: {words}"
            assert world.now - 1000.0 - 5.0 < 2.0 * len(attempts), f"seed {seed}"


def test_an_abort_leaves_the_state_as_it_was() -> None:
    aborted = 0
    for seed in range(120):
        world = ExchangeWorld(swarm(seed, workers=(4, 8)), seed, LOSSY)
        before = state(world)
        world.run(55)
        if world.last_word and world.last_word.phase == bodies.ABORT:
            aborted += 1
            assert state(world) == before, f"seed {seed}"
    assert aborted > 5


def test_nobody_asks_a_stage_whose_cutoff_it_has_heard_is_above() -> None:
    for seed in range(60):
        world = ExchangeWorld(swarm(seed, workers=(6, 10)), seed, LOSSY)
        world.run(55)
        view = world.swarm.population
        fair = {b.round: b.fair for _, b in world.spread if isinstance(b, Epoch)}
        first: dict[tuple[PeerId, Round, int], int] = {}
        for who, known, vote in world.asked:
            score = view.score(who, Stage(vote.stage), fair[vote.round])
            if first.setdefault((who, vote.round, vote.stage), vote.issued_ms) == vote.issued_ms:
                assert score > known, f"seed {seed}"


def test_without_the_commit_rule_any_gain_at_the_end_will_do() -> None:
    """The ablation differs from the rule, and protocol and reference agree on it."""
    differ = 0
    for seed in range(60):
        some = swarm(seed, workers=(4, 8), design=replace(FULL, commit_rule=False))
        world = ExchangeWorld(some, seed, LOSSY)
        world.run(55)
        check_equal(world, seed)
        strict = epoch_planning.full_epoch(swarm(seed, workers=(4, 8)).population, some.homes)
        differ += strict.moves != world.outcome().moves
    assert differ


def test_no_epochs_where_the_design_has_none() -> None:
    for seed in range(10):
        some = swarm(seed, design=replace(FULL, epochs=False))
        world = ExchangeWorld(some, seed, CALM)
        world.run(50)
        assert not world.spread, f"seed {seed}"
        assert not world.sent, f"seed {seed}"


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_says_nothing_stays_at_home(gone: int) -> None:
    """A worker that hangs is left out after a while, as if it were locked."""
    compared = 0
    for seed in range(25):
        some = swarm(seed, workers=(6, 9), fetching=0.0)
        mute = sorted(some.homes)[gone]
        world = ExchangeWorld(some, seed, CALM)
        world.silence(mute)
        world.run(58)
        if world.last_word is None or world.last_word.phase not in (bodies.COMMIT, bodies.ABORT):
            continue
        wanted = epoch_planning.full_epoch(some.population, some.homes, frozenset({mute}))
        assert {**world.moves()} == wanted.moves, f"seed {seed}"
        compared += 1
    assert compared > 10


def test_boxes_with_two_hundred_electors() -> None:
    some = swarm(3, workers=(450, 450), stages=(3, 3))
    world = ExchangeWorld(some, 3, CALM)
    world.run(30)
    assert max(ballot.electorate for _, ballot in world.ballots()) > 140
    assert check_equal(world, 3)
