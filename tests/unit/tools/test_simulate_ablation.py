"""The ablation shows each world to every policy."""

from __future__ import annotations

import json

import pytest

from tests.bench.ablation import main

TINY = ("--cells", "12/3", "--churn", "0,50", "--seeds", "2", "--hours", "0.3")


def test_each_policy_has_a_share_in_each_world(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TINY, "--policies", "random,greedy-join"])
    runs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(run["policy"], run["churn"], run["seed"]): run["share"] for run in runs}
    assert len(found) == len(runs) == 8
    assert all(0 <= share <= 1 for share in found.values())
