"""Local rounds: the time of a round by hand, its length, and the price in learning."""

from dataclasses import replace

import pytest

from client.plan.model import HOST_BYTES_PER_S, Load, Machine, Run, fits, own_step_s, predict
from client.plan.rounds import LONG_SHARE, are_worth_it, gap_percent, paced, wanted_microbatches
from protocol.limits import MAX_MICROBATCHES_PER_STEP
from protocol.manifest import StageCost

GIGA, MEGA = 1e9, 1e6
MACHINE = Machine(GIGA, GIGA, MEGA, MEGA)


def load(parameters: int = 1_000_000, update: float = 0.0, hosted: float = 0.0) -> Load:
    """The only stage, of 1 GFLOP."""
    return Load(StageCost(1, GIGA, parameters, 0.0, 0.0, GIGA), update, GIGA - hosted, hosted)


def rounds(inner: int = 4, microbatches: int = 40, **stage: float) -> Run:
    return Run((load(**stage),), microbatches, 100, 1.0, inner)  # type: ignore[arg-type]


def test_own_steps_are_part_of_computing_and_averaging_is_waited_for() -> None:
    # a microbatch takes 1 s and a quarter of a step of 2 s: two replicas do one in 0.75 s
    found = predict(rounds(update=2 * GIGA), [[MACHINE, MACHINE]])
    assert found.parts_s["compute"] == pytest.approx(40 * 0.75)
    assert found.parts_s["averaging"] == pytest.approx(1.0)
    assert found.step_s == pytest.approx(39 * 0.75 + 1.5 + 1.0)


def test_rounds_are_worth_it_where_averaging_takes_much_and_they_are_faster() -> None:
    placement = [[MACHINE, MACHINE]]
    near = predict(rounds(inner=0, microbatches=40), placement)
    far = predict(rounds(inner=0, microbatches=4), placement)
    fast = predict(rounds(), placement)
    slow = predict(rounds(update=40 * GIGA), placement)
    assert near.averaging_share < 0.1 < far.averaging_share
    assert [are_worth_it(far, fast), are_worth_it(near, fast), are_worth_it(far, slow)] == [
        True,
        False,
        False,
    ]


def test_a_microbatch_of_nothing_still_takes_its_handling() -> None:
    run = replace(rounds(), handling_s=2.0)
    found = predict(run, [[MACHINE, MACHINE]])
    assert (found.microbatch_s, found.step_s) == (2.0, pytest.approx(39 * 2.0 + 2.0))


def test_what_lies_with_the_host_is_copied_in_each_own_step() -> None:
    hosting = replace(MACHINE, host_bytes=GIGA)
    stage = load(hosted=MEGA)
    assert own_step_s(stage, hosting) == pytest.approx(4 * MEGA / HOST_BYTES_PER_S)
    assert own_step_s(stage, MACHINE) == 0.0


def test_a_gpu_needs_its_hosts_memory_only_for_what_lies_there() -> None:
    stage = load(hosted=0.6 * GIGA)
    small = replace(MACHINE, memory_bytes=0.4 * GIGA)
    assert fits(stage, MACHINE)
    assert not fits(stage, small)
    assert fits(stage, replace(small, host_bytes=0.6 * GIGA))
    assert not fits(stage, replace(MACHINE, host_bytes=0.5 * GIGA))


def test_graphs_in_flight_are_run_again_and_averaging_is_hidden_by_nothing() -> None:
    """Two stages, half a second and 0.1 s apart: of stage 0 a pass waits 1 + 1.1 s."""
    far = replace(MACHINE, rtt_s=1.1, upload_bytes_per_s=1e12, download_bytes_per_s=1e12)
    ends = tuple(
        Load(StageCost(1, GIGA, 1_000_000, MEGA, MEGA, 0.0), update_flops=0.0) for _ in range(2)
    )
    run = Run(ends, 40, 100, 1.0, inner_microbatches=4)
    first, last = predict(run, [[far], [far]]).stages
    assert first.compute_s == pytest.approx(1 + 2.1 / 4 / 3)
    assert last.compute_s == pytest.approx(1.0)
    pair = [[far, far], [far, far]]
    assert all(stage.exposed_s == stage.averaging_s > 0 for stage in predict(run, pair).stages)


def test_a_round_is_as_long_as_pays_and_never_shorter_than_a_step() -> None:
    pair = [[MACHINE, MACHINE]]  # two microbatches a second
    quick = rounds(inner=0, parameters=1000)
    assert wanted_microbatches(quick, pair, usual=8, whole=10**9) == 8
    # 1 MB takes 1 s, V / U of two replicas; beyond 320 rounds the gap stays 2.0 %
    slow = rounds(inner=0, parameters=300_000_000)
    long = wanted_microbatches(slow, pair, usual=8, whole=10**9)
    assert long == pytest.approx(600 / LONG_SHARE, rel=0.01)
    assert wanted_microbatches(slow, pair, usual=8, whole=320 * 5000) == 5000
    assert wanted_microbatches(slow, pair, usual=8, whole=4_800) == 100, "48 in a run"


@pytest.mark.parametrize("replicas", [4, 16])
def test_a_run_has_as_many_rounds_as_leave_the_lowest_loss(replicas: int) -> None:
    """Averaging takes 600 s (N - 1) / N, in which N microbatches a second are missed. With half as
    many rounds, or twice as many, the loss is higher after equal time."""
    placement, slow = [[MACHINE] * replicas], rounds(inner=0, parameters=300_000_000)
    missed, whole = 600 * (replicas - 1), 100_000 * (replicas - 1)
    chosen = whole / wanted_microbatches(slow, placement, usual=1, whole=whole)

    def loss(number: float) -> float:
        tokens = 1 / (1 + missed * number / whole)
        return tokens**-0.14 * (1 + gap_percent(number, replicas, muon=True) / 100)

    assert 60 < chosen < 300
    assert loss(chosen) < min(loss(chosen / 1.2), loss(chosen * 1.2))


def test_own_steps_are_cheap_and_no_larger_than_the_exact_runs() -> None:
    pair = [[MACHINE, MACHINE]]
    quick = rounds(inner=0, parameters=1000)
    assert paced(quick, pair, 800, 10**11) == rounds(4, 8, parameters=1000), "together a step"
    line = rounds(inner=0, parameters=1_000_000)
    assert paced(line, pair, 200, 10**11, 64).inner_microbatches == 2
    assert paced(line, pair, 3200, 10**11, 1024).inner_microbatches == 32, "sixteen in a round"
    dear = rounds(inner=0, parameters=1000, update=0.5 * GIGA)
    assert paced(dear, pair, 10000, 10**11).inner_microbatches == 50
    assert paced(dear, pair, 1200, 10**11).inner_microbatches == 6
    costly = replace(dear, stages=(load(update=GIGA),))
    assert paced(costly, pair, 1200, 10**11, 192).inner_microbatches == 9, (
        "a tenth of the time at most"
    )
    assert paced(dear, pair, 300, 10**11).inner_microbatches == 1, "a round has no more for one"
    assert paced(rounds(inner=5), pair, 800, 10**11, microbatches=10) == rounds(5, 10)
    long = paced(rounds(inner=0, parameters=7_000_000_000), pair, 800, 10**11)
    assert long.microbatches == MAX_MICROBATCHES_PER_STEP


def test_the_loss_falls_with_the_number_of_rounds_as_measured() -> None:
    gaps = [gap_percent(n, 4, muon=True) for n in (1, 48, 96, 320, 10_000)]
    assert gaps == pytest.approx([9.3, 9.3, 5.9, 2.0, 2.0])
    assert gap_percent(175, 4, muon=True) == pytest.approx((5.9 * 2.0) ** 0.5, rel=0.01)
    assert gap_percent(96, 4, muon=False) == pytest.approx(3.1 * 5.9)


def test_more_replicas_lose_more() -> None:
    assert gap_percent(96, 2, muon=True) == gap_percent(96, 4, muon=True), "an upper bound"
    assert gap_percent(48, 8, muon=True) == pytest.approx(16.4, rel=0.1)
    assert gap_percent(96, 8, muon=True) == pytest.approx(12.2, rel=0.2)
