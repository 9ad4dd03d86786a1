"""The page of the measurements over lines: figures shown together come from one machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import wan

HERE = wan.Result(
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
ELSEWHERE = replace(HERE, tokens=8000.0, machine="another, 64 cores")


@pytest.mark.parametrize(
    ("newest", "older", "machine"),
    [(HERE, ELSEWHERE, "2 cores"), (ELSEWHERE, HERE, "another, 64 cores")],
)
def test_runs_of_two_machines_have_no_median_in_common(
    newest: wan.Result, older: wan.Result, machine: str
) -> None:
    text = wan.markdown([older, newest, newest])
    assert f"| 2 | {newest.tokens:.0f} (" in text
    assert f"{older.tokens:.0f}" not in text
    assert f"Machine: {machine}, shared" in text
    assert "Not shown: 1 runs of other machines." in text
