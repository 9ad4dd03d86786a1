"""The evaluation of parity runs: only those with an fp32 run of the same seed are compared."""

from __future__ import annotations

import pytest

from tests.bench.parity import Run, as_it_should_be, markdown, rows, verdict

FP32, S8, INT4 = 2.0, 2.001, 2.1
"""Losses: S8 0.05 % above fp32, int4 5 %."""


def run(way: str, seed: int, held_out: float) -> Run:
    return Run(way, seed, 1000, "text", held_out)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run("fp32", 0, FP32)],
        [run("s8", 0, S8), run("int4", 0, INT4)],
        [run("fp32", 0, FP32), run("s8", 1, S8)],
        [run("fp32", 0, FP32), run("delayed", 0, FP32)],
    ],
    ids=["nothing", "fp32 alone", "no fp32", "another seed", "not judged"],
)
def test_where_nothing_is_compared_nothing_is_shown(runs: list[Run]) -> None:
    assert not as_it_should_be(runs)
    assert verdict(runs).endswith("nothing to compare yet.")
    assert "as it should be" not in markdown(runs)


@pytest.mark.parametrize(
    ("s8", "int4", "words"),
    [
        (S8, INT4, "as it should be, but for bf16, kills, not compared yet."),
        (INT4, INT4, "not as it should be, but for bf16, kills, not compared yet."),
        (S8, S8, "not as it should be, but for bf16, kills, not compared yet."),
    ],
)
def test_wires_stay_within_the_limit_and_the_control_does_not(
    s8: float, int4: float, words: str
) -> None:
    runs = [run("fp32", 0, FP32), run("s8", 0, s8), run("int4", 0, int4)]
    runs.append(run("kills", 1, S8))
    assert as_it_should_be(runs) == words.startswith("as")
    assert verdict(runs).endswith(f": {words}")
    assert verdict(runs) in markdown(runs)


def test_the_table_says_how_many_seeds_are_compared() -> None:
    runs = [run("fp32", 0, FP32), *(run("s8", seed, S8) for seed in range(3))]
    table = rows(runs)
    assert table[0] == "| way | seeds | held-out loss | compared | to fp32, per seed | mean |"
    assert table[2:] == [
        "| fp32 | 1 | 2.0000 |  |  |  |",
        "| s8 | 3 | 2.0010, 2.0010, 2.0010 | 1 | +0.050 % | +0.050 % |",
    ]
