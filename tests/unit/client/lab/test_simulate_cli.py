"""``volunteer simulate``: figures on stdout, the same for the same seed."""

import json

import pytest

from client.cli.main import run

SMALL = ("simulate", "--volunteers", "20", "--stages", "4", "--hours", "1")


def test_json_names_world_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for _ in range(2):
        assert run([*SMALL, "--churn", "10", "--seed", "3", "--json"]) == 0
        said = capsys.readouterr()
        answers.append(json.loads(said.out))
        assert said.err == ""
    answer, again = answers
    assert answer == again
    assert answer["schema_version"] == 1
    assert (answer["volunteers"], answer["stages"], answer["seed"]) == (20, 4, 3)
    assert answer["churn_per_hour"] == 0.1
    assert 0.5 <= answer["figures"]["share"] <= 1
    assert answer["figures"]["talk"]["letters"] > 0
