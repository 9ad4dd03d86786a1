"""The kinds of faults and their schedule: strict names, replayable draws."""

from __future__ import annotations

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
    Fault,
    all_faults,
    choose_faults,
    stages_of,
)
from client.lab.chaos.command import chaos
from client.lab.chaos.failpoints import parse_failpoints
from client.lab.chaos.inject import SHAPES
from client.lab.chaos.schedule import draw_schedule

ALL = all_faults(KINDS)


def test_every_fault_can_be_done_and_is_explained() -> None:
    assert set(MEANINGS) == set(MOMENTS) == set(KINDS)
    for fault in ALL:
        ways = [fault.kind in ACTIONS, fault.kind in SHAPES, fault.kind == "stage"]
        assert ways.count(True) == 1
        if fault.kind in ACTIONS:
            parse_failpoints(f"{fault.moment}@*={ACTIONS[fault.kind]}")


@pytest.mark.parametrize(
    ("kinds", "only", "found"),
    [
        (None, None, all_faults(["kill", "stop"])),
        ("slow,kill", None, all_faults(["slow", "kill"])),
        (
            None,
            "kill@averaging, partition",
            (Fault("kill", "averaging"), *all_faults(["partition"])),
        ),
    ],
)
def test_faults_are_chosen_by_name(
    kinds: str | None, only: str | None, found: tuple[Fault, ...]
) -> None:
    assert sorted(choose_faults(kinds, only, ("kill", "stop"))) == sorted(found)


@pytest.mark.parametrize(
    ("kinds", "only"),
    [
        ("explode", None),
        ("", None),
        (",", None),
        (None, "kill"),
        (None, "kill@noon"),
        (None, "partition@forward"),
        (None, "disk@forward"),
        ("kill", "kill@forward"),
    ],
)
def test_a_wrong_name_shows_the_right_ones(kinds: str | None, only: str | None) -> None:
    with pytest.raises(UserError) as caught:
        choose_faults(kinds, only, KINDS)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.next_step


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


def test_every_second_fault_is_a_kill_and_the_other_kinds_take_turns() -> None:
    kills = [fault for fault in ALL if fault.kind == "kill"]
    others = [fault for fault in ALL if fault.kind != "kill"]
    drawn = draw_schedule(ALL, seconds=40.0 * len(others), every_s=10, stages=2, seed=1)
    faults = [planned.fault for planned in drawn]
    assert sorted(faults[0 : 2 * len(kills) : 2]) == sorted(kills)
    odd = faults[1::2]
    assert {fault.kind for fault in odd[: len(KINDS) - 1]} == set(KINDS) - {"kill"}
    assert sorted(odd[: len(others)]) == sorted(others)
    assert odd[len(others) :] == odd[: len(others)]


def test_some_moments_have_no_place_at_an_end() -> None:
    assert list(stages_of(Fault("corrupt", "forward"), 3)) == [0, 1]
    assert list(stages_of(Fault("corrupt", "backward"), 3)) == [1, 2]
    assert list(stages_of(Fault("kill", "recovery"), 3)) == [0, 1]
    assert draw_schedule([Fault("kill", "recovery")], seconds=9, every_s=1, stages=1, seed=0) == ()


def test_durations_are_those_of_the_kind() -> None:
    drawn = draw_schedule(ALL, seconds=900, every_s=10, stages=2, seed=1)
    stops = [planned.seconds for planned in drawn if planned.fault.kind == "stop"]
    assert stops
    assert all(5 <= seconds <= 10 for seconds in stops)
    assert all(planned.seconds == 0 for planned in drawn if planned.fault.kind == "kill")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"volunteers": 3}, "at least 4 volunteers"),
        ({"volunteers": 6, "stages": 4}, "at least 8 volunteers"),
        ({"minutes": 0.1, "every": 20.0}, "does not fit"),
        ({"faults": "explode"}, "no fault 'explode'"),
        ({"stages": 1, "only": "kill@recovery"}, "possible with 1 stages"),
    ],
)
def test_wrong_arguments_are_said_before_anything_starts(
    tmp_path: Path, arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        chaos(out=tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="cannot write"):
        chaos(out=tmp_path / "out")
