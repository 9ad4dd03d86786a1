"""``volunteer simulate``: figures on stdout, the same for the same seed; mistakes are explained."""

import json

import pytest

from client.cli.main import run
from client.errors import ExitCode

SMALL = ("simulate", "--volunteers", "20", "--stages", "4", "--hours", "1")


def test_json_names_world_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    policies = ("--policy", "random", "--policy", "petals-dual")
    assert run([*SMALL, "--churn", "10", "--seed", "3", *policies, "--json"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["schema_version"] == 1
    assert (answer["volunteers"], answer["stages"], answer["seed"]) == (20, 4, 3)
    assert answer["churn_per_hour"] == 0.1
    assert [figures["policy"] for figures in answer["policies"]] == ["random", "petals-dual"]
    assert all(0 <= figures["share"] <= 1 for figures in answer["policies"])
    assert said.err == ""


def test_an_unknown_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--policy", "best"]) == ExitCode.USAGE
    assert "choose from ours, " in capsys.readouterr().err
