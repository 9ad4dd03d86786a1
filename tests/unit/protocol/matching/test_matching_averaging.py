"""A second stage is held only where it is worth what averaging it costs a step."""

import pytest
from msgspec import structs

from model_zoo.specs.local_rounds import LocalRounds
from protocol.ids import Stage
from protocol.manifest import StageCost
from protocol.matching.averaging import DROP, WORTH, Averaging
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Posting
from protocol.matching.context import Context
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.matching.prospects import Beside
from protocol.wire.letters import Mandate
from tests.support.matching_examples import NOW, WALL_S, manifest, peer

FLOPS = 50e9
HOUSEHOLD, LAN = 2.5e6, 1e9
SMALL, LARGE = 100_000, 43_000_000
SECOND_PER_MICROBATCH = 1.0


def stage(parameters: int) -> StageCost:
    return StageCost(4, FLOPS * SECOND_PER_MICROBATCH, parameters, 1e5, 1e5, 1e9)


def member(number: int, home: int, line: float, second: int | None = None) -> Member:
    held = frozenset(Stage(s) for s in (home, second) if s is not None)
    return Member(peer(number), 0.0, FLOPS, line, line, 1e12, held, 1000.0, home=Stage(home))


def swarm(
    homes: list[int],
    *,
    parameters: int = LARGE,
    line: float = HOUSEHOLD,
    microbatches: int = 8,
) -> Population:
    stages = [stage(parameters)] * (max(homes) + 1)
    members = [member(number, home, line) for number, home in enumerate(homes)]
    averaging = Averaging(microbatches, 1.0)
    return Population(members, stages, 2, averaging=averaging)


def worth(population: Population, *, held: bool = False) -> bool:
    """Whether the first member's second stage is worth it; it is at home in stage 0."""
    return population.averaging(peer(0), Stage(1)) <= (DROP if held else WORTH)


def test_a_run_says_what_its_averaging_is() -> None:
    averaging = Averaging.of(manifest(2))
    assert averaging == Averaging(8, 1 + 2 / 128)


def test_a_local_round_is_averaged_once_and_costs_a_newcomer_its_parameters_alone() -> None:
    """The bytes of a contribution are shared by all its microbatches; no moments are copied."""
    rounds = structs.replace(manifest(2), local_rounds=LocalRounds(4), microbatches_per_step=128)
    exact, local = Averaging.of(manifest(2)), Averaging.of(rounds)
    assert local == Averaging(128, exact.bytes_per_parameter)
    line, level = HOUSEHOLD, 1_000_000
    cost = stage(LARGE)
    assert local.added(cost, line, FLOPS, level) == pytest.approx(
        exact.added(cost, line, FLOPS, level) * 8 / 128
    )
    assert rounds.state.bytes_per_parameter == 4


def test_a_round_of_both_stages_takes_what_is_sent_over_the_slower_direction_and_computing() -> (
    None
):
    averaging, level = Averaging(8, 1.0), 4e6
    computing = 1e6 * 2000 / 1e12
    added = averaging.added(stage(1_000_000), 1e6, 1e12, level)
    assert added == pytest.approx(2 * (1.0 + computing) / 2.0), "steps of 2 s"
    assert averaging.added(stage(1), 0.0, 1e12, level) == float("inf")


def test_two_volunteers_of_two_large_stages_hold_one_each_on_slow_lines() -> None:
    """86M parameters, steps of 8 s: on a household's line 35 s more, on any line 3.4 s."""
    for held in (False, True):
        assert not worth(swarm([0, 1], line=HOUSEHOLD), held=held)
        assert worth(swarm([0, 1], line=LAN), held=held)


def test_large_steps_and_small_stages_pay_for_a_second_stage() -> None:
    assert worth(swarm([0, 1], microbatches=1000))
    assert worth(swarm([0, 1], parameters=SMALL))


def test_the_answer_does_not_depend_on_who_holds_two_stages() -> None:
    single, seats = swarm([0, 1, 1], line=LAN), {}
    for number, home in ((1, 1), (2, 1)):
        seats[peer(number)] = member(number, home, LAN, second=0)
    assert worth(single) == worth(single.evolve(seats))


def test_who_has_no_replica_beside_it_that_serves() -> None:
    population = swarm([0, 1])
    assert not population.serves_without(Stage(0), peer(0))
    second = member(1, 1, LAN, second=0)
    assert population.evolve({peer(1): second}).serves_without(Stage(0), peer(0))


def test_a_second_stage_is_one_beside_the_main_one() -> None:
    board, empty = Board(4), (COMMITTED, 0, 0, 0, 0, 1, 1, 2, 0)
    context = Context(peer(0), swarm([1, 3]), board, WALL_S - NOW)
    beside = Beside(context, lambda now: Stage(1))
    beside.wait_until({}, NOW)
    postings = [Posting(stage, Mandate(1, 1), 1, 1, *empty) for stage in range(4)]
    found = [beside.obstacle(Stage(each.stage), each, NOW) for each in postings]
    assert [why is None for why in found] == [True, False, True, False], found
