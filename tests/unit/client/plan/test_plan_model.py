"""The efficiency model against cases reckoned by hand, and what must hold for every swarm."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.plan.model import Load, Machine, Prediction, Run, averaging_s, predict
from protocol.manifest import StageCost

GIGA, MEGA = 1e9, 1e6
MACHINE = Machine(GIGA, GIGA, MEGA, MEGA, rtt_s=0.1)


def load(stage: int, stages: int, parameters: int = 1, memory: float = 0.0) -> Load:
    """A stage of 1 GFLOP with boundaries of 1 MB each way."""
    sides = (stage > 0) + (stage < stages - 1)
    return Load(StageCost(1, GIGA, parameters, sides * MEGA, sides * MEGA, memory))


def run(stages: int = 2, microbatches: int = 10, parameters: int = 1) -> Run:
    loads = tuple(load(s, stages, parameters) for s in range(stages))
    return Run(loads, microbatches, 100, averaging_bytes_per_parameter=1.0)


def terms(found: Prediction) -> tuple[float, ...]:
    parts = (found.parts_s[name] for name in ("compute", "link", "latency", "averaging"))
    return tuple(pytest.approx(part) for part in parts)


def test_two_stages() -> None:
    # tau = 1 s; L = 1 + 1 to compute, 1 + 1 on the line, 0.1 there and back = 4.1 s
    found = predict(run(), [[MACHINE], [MACHINE]])
    assert terms(found) == (10, 0, 3.1, 0)
    assert found.step_s == pytest.approx(9 + 4.1)
    assert found.tokens_per_s == pytest.approx(1000 / 13.1)
    assert found.limit == "compute"


def test_a_slow_link_of_the_middle_stage_limits() -> None:
    # the middle stage sends 2 MB per microbatch at 0.5 MB/s: tau = 4 s
    # L = 3 + (2 + 1 + 0.1): the narrower end of each way, both of them the middle's: 3 + 2 * 4.1
    slow = replace(MACHINE, upload_bytes_per_s=MEGA / 2, download_bytes_per_s=MEGA / 2)
    found = predict(run(3), [[MACHINE], [slow], [MACHINE]])
    assert found.limit == "link"
    assert terms(found) == (0, 40, 3 + 2 * 4.1 - 4, 0)
    assert found.stages[1].link_per_s == pytest.approx(0.25)


def test_latency_limits_when_a_step_has_few_microbatches() -> None:
    far = replace(MACHINE, rtt_s=10.0)
    found = predict(run(microbatches=4), [[far], [far]])
    assert found.limit == "latency"
    assert terms(found) == (4, 0, 4 + 10 - 1, 0)


def test_the_averaging_of_one_stage_is_not_hidden() -> None:
    # tau = 0.5 s, L = 1 s, V / U = 1 s and 2.5 trips of 0.1 s
    found = predict(run(1, parameters=1_000_000), [[MACHINE, MACHINE]])
    assert terms(found) == (5, 0, 0.5, 1.25)
    assert found.stages[0].sent_bytes == pytest.approx(MEGA)
    three = predict(run(1, parameters=1_000_000), [[MACHINE] * 3])
    assert three.stages[0].sent_bytes == pytest.approx(MEGA * (1 + 1 / 3))


def test_the_fast_replica_takes_more_microbatches_and_sends_more() -> None:
    # 3 of 4 microbatches of a stage that sends and gets 1 MB for each; V = 1 MB beside that
    stages = (load(0, 2), load(1, 2, parameters=1_000_000))
    fast = replace(MACHINE, flop_per_s=3 * GIGA, upload_bytes_per_s=9e9, download_bytes_per_s=9e9)
    found = predict(Run(stages, 8, 100, 1.0), [[MACHINE], [MACHINE, fast]])
    assert found.stages[1].sent_bytes == pytest.approx((8 * 3 / 4 + 1) * MEGA)
    assert found.stages[0].sent_bytes == pytest.approx(8 * MEGA)


def test_the_averaging_of_the_last_stage_has_the_time_of_the_way_back() -> None:
    # way from stage 1 to 0 and back: 1 s to compute, 2.1 s on the line
    pair = [MACHINE, MACHINE]
    stages = (load(0, 2), load(1, 2, parameters=3_000_000))
    hidden = predict(Run(stages, 10, 100, 1.0), [[MACHINE], pair])
    assert hidden.stages[1].averaging_s == pytest.approx(3.25)
    assert hidden.stages[1].exposed_s == pytest.approx(3.25 - 3.1)
    assert hidden.parts_s["averaging"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("elements", "bytes_per_element", "expected"),
    [
        (MEGA / 4, 40.0, 10 / 0.1 * (1 + 1)),  # one segment; it owns nothing
        (16 * MEGA, 10 / 16, 10 / 0.1 * (1 + 1 / 8)),  # eight
    ],
)
def test_a_line_slow_both_ways(elements: float, bytes_per_element: float, expected: float) -> None:
    fast = replace(MACHINE, rtt_s=0.0)
    slow = replace(
        fast,
        upload_bytes_per_s=fast.upload_bytes_per_s / 10,
        download_bytes_per_s=fast.upload_bytes_per_s / 10,
    )
    took = averaging_s([fast, fast, fast, slow], elements, bytes_per_element)
    assert took == pytest.approx(expected, rel=0.01)


def test_a_machine_that_does_not_fit_brings_nothing() -> None:
    large = load(0, 1, memory=2 * GIGA)
    with pytest.raises(ValueError, match="stage 0"):
        predict(Run((large,), 10, 100, 1.0), [[MACHINE]])
    with pytest.raises(ValueError, match="replica"):
        predict(run(), [[MACHINE], []])


@pytest.mark.parametrize("flops", [0.0, 1e-300])
def test_a_stage_that_costs_nothing_is_refused(flops: float) -> None:
    free = Load(StageCost(1, flops, 1, 0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="cost nothing"):
        predict(Run((free,), 10, 100, 1.0), [[MACHINE]])
    with pytest.raises(ValueError, match="cost nothing"):
        predict(Run((load(0, 2), free), 10, 100, 1.0), [[MACHINE], [MACHINE]])


rates = st.floats(1e4, 1e12)
machines = st.builds(
    Machine,
    flop_per_s=rates,
    memory_bytes=st.floats(1e6, 1e11),
    upload_bytes_per_s=rates,
    download_bytes_per_s=rates,
    rtt_s=st.floats(0, 10),
)
BETTER = {
    "flop_per_s": 1.0,
    "memory_bytes": 1.0,
    "upload_bytes_per_s": 1.0,
    "download_bytes_per_s": 1.0,
    "rtt_s": -1.0,
}


@st.composite
def swarms(draw: st.DrawFn) -> tuple[Run, list[list[Machine]]]:
    stages = draw(st.integers(1, 4))
    placement = [draw(st.lists(machines, min_size=1, max_size=4)) for _ in range(stages)]
    loads = tuple(
        Load(
            StageCost(
                1,
                draw(st.floats(1e3, 1e14)),
                draw(st.integers(1, 10**9)),
                sides * MEGA,
                sides * MEGA,
                0.0,
            )
        )
        for sides in ((s > 0) + (s < stages - 1) for s in range(stages))
    )
    return Run(loads, draw(st.integers(1, 500)), 64, 1.02), placement


@settings(max_examples=100, deadline=None)
@given(swarm=swarms(), data=st.data(), times=st.floats(1.0, 100.0))
def test_a_better_machine_never_slows_the_swarm(
    swarm: tuple[Run, list[list[Machine]]], data: st.DataObject, times: float
) -> None:
    this, placement = swarm
    before = predict(this, placement)
    stage = data.draw(st.integers(0, len(placement) - 1))
    place = data.draw(st.integers(0, len(placement[stage]) - 1))
    field = data.draw(st.sampled_from(sorted(BETTER)))
    old = placement[stage][place]
    placement[stage][place] = replace(old, **{field: getattr(old, field) * times ** BETTER[field]})
    assert predict(this, placement).tokens_per_s >= before.tokens_per_s * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(swarm=swarms())
def test_terms_add_up_and_stay_within_the_bound(swarm: tuple[Run, list[list[Machine]]]) -> None:
    this, placement = swarm
    found = predict(this, placement)
    parts = found.parts_s.values()
    assert sum(parts) == pytest.approx(found.step_s)
    assert min(parts) >= -1e-9 * found.step_s
    lowest = min(t.rate_per_s for t in found.stages)
    assert found.tokens_per_s <= lowest * this.tokens_per_microbatch * (1 + 1e-9)
