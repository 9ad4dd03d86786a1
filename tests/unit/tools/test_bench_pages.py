"""The pages of the measurements over lines: figures shown together come from one machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import delayed, wan

WAN = wan.Result(
    *(50.0, 0.0, "s8", 64),
    tokens=4000.0,
    slowest=3900.0,
    fastest=4100.0,
    steps=4,
    bound=5000.0,
    link_bound=5000.0,
    predicted=4500.0,
    limit="link",
    in_flight=4,
    compute_s=0.02,
    line_share=0.8,
    lost_packets=0,
    load=1.0,
    cores=2,
    congestion="bbr",
)
LATE = delayed.Result(50.0, 20.0, "delayed", 4.0, 3.9, 4.1, 6, 3.5, 1.0, 0.2, 1.0, 2)
USUAL = replace(LATE, kind="synchronous", median_s=8.0)

Page = Callable[[list[Any]], str]
PAGES = [
    pytest.param(wan.markdown, [WAN], {"tokens": 8000.0}, "| 4000 |", "| 8000 |", id="wan"),
    pytest.param(
        *(delayed.markdown, [USUAL, LATE], {"median_s": 2.0}),
        *("| 4.00 (3.90 to 4.10) |", "| 2.00 (3.90 to 4.10) |"),
        id="delayed",
    ),
]


@pytest.mark.parametrize(("page", "results", "other", "here", "there"), PAGES)
def test_runs_of_two_machines_have_no_median_in_common(
    page: Page, results: list[Any], other: dict[str, float], here: str, there: str
) -> None:
    elsewhere = [replace(result, **other, machine="another, 64 cores") for result in results]
    text = page([*elsewhere, *results])
    assert here in text
    assert there not in text
    assert "Machine: 2 cores, shared" in text
    assert f"Not shown: {len(results)} runs of other machines." in text
    text = page([*results, *elsewhere])
    assert there in text
    assert here not in text
    assert "Machine: another, 64 cores, shared" in text


@pytest.mark.parametrize(("page", "results", "other", "here", "there"), PAGES)
def test_runs_of_one_machine_are_taken_together(
    page: Page, results: list[Any], other: dict[str, float], here: str, there: str
) -> None:
    text = page([*results, *results])
    assert "| 2 |" in text
    assert "Not shown" not in text


@pytest.mark.parametrize("bench", [wan, delayed])
def test_lines_that_name_no_machine_can_be_read(bench: Any, tmp_path: Path) -> None:
    given: Any = {wan: WAN, delayed: LATE}[bench]
    old = {name: value for name, value in asdict(given).items() if name != "machine"}
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(old) + "\n")
    assert bench.read(path) == [given]
