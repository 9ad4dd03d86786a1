"""The kinds of faults and their schedule: strict names, replayable draws."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import ExitCode, UserError
from client.lab.chaos.catalogue import (
    ACTIONS,
    KINDS,
    MEANINGS,
    MOMENTS,
    all_faults,
    choose_faults,
    stages_of,
)
from client.lab.chaos.command import chaos
from client.lab.chaos.inject import SHAPES
from client.lab.chaos.schedule import draw_schedule

ALL = all_faults(KINDS)


def test_every_fault_can_be_done_and_is_explained() -> None:
    assert set(MEANINGS) == set(MOMENTS) == set(KINDS)
    for fault in ALL:
        ways = [fault.kind in ACTIONS, fault.kind in SHAPES, fault.kind == "stage"]
        assert ways.count(True) == 1
        assert choose_faults(str(fault)) == (fault,)


def test_a_kind_is_all_its_faults_and_each_is_there_once() -> None:
    assert choose_faults("stage, kill@forward, kill") == (
        *all_faults(["stage"]),
        *all_faults(["kill"]),
    )


@given(seed=st.integers(0, 2**62), stages=st.integers(1, 5), every=st.floats(5, 60))
def test_the_same_seed_is_the_same_schedule(seed: int, stages: int, every: float) -> None:
    drawn = [
        draw_schedule(ALL, seconds=300, every_s=every, stages=stages, seed=seed) for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != draw_schedule(ALL, seconds=300, every_s=every, stages=stages, seed=seed + 1)
    assert len(drawn[0]) == int(300 / every)
    moments = [planned.at_s for planned in drawn[0]]
    assert moments == sorted(moments)
    assert all(every / 2 <= at <= 300 for at in moments)
    assert all(planned.stage in stages_of(planned.fault, stages) for planned in drawn[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"volunteers": 3}, "at least 4 volunteers"),
        ({"volunteers": 6, "stages": 4}, "at least 8 volunteers"),
        ({"minutes": 0.1, "every": 20.0}, "does not fit"),
        ({"faults": "explode"}, "no fault 'explode'"),
        ({"faults": "kill@noon"}, "no fault 'kill@noon'"),
        ({"stages": 1, "faults": "kill@recovery,kill@backward"}, "possible with 1 stages"),
    ],
)
def test_wrong_arguments_are_said_before_anything_starts(
    tmp_path: Path, arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        chaos(out=tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert not (tmp_path / "out").exists()
