"""``volunteer simulate``: figures on stdout, the same for the same seed; mistakes are explained."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from client.cli.main import run
from client.errors import ExitCode

SMALL = ("simulate", "--volunteers", "20", "--stages", "4", "--hours", "1")


def test_json_names_world_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--churn", "10", "--seed", "3", "--policy", "random", "--json"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["schema_version"] == 1
    assert (answer["volunteers"], answer["stages"], answer["seed"]) == (20, 4, 3)
    assert answer["churn_per_hour"] == 0.1
    (figures,) = answer["policies"]
    assert figures["policy"] == "random"
    assert 0 <= figures["share"] <= 1
    assert said.err == ""


def test_the_same_seed_is_the_same_world(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for seed in ("1", "1", "2"):
        run([*SMALL, "--seed", seed, "--policy", "greedy-join", "--json"])
        (figures,) = json.loads(capsys.readouterr().out)["policies"]
        found.append({name: figures[name] for name in ("share", "moves", "series")})
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_the_plot_names_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plot.svg"
    run([*SMALL, "--policy", "random", "--policy", "greedy-join", "--plot", str(path)])
    svg = ElementTree.fromstring(path.read_text())
    texts = {node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"random", "greedy-join", "share of the oracle"} <= texts


def test_an_unknown_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--policy", "best"]) == ExitCode.USAGE
    assert "choose from ours, " in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--policy", "random", "--plot", "/nowhere/plot.svg"]) == ExitCode.RUNTIME
    assert "cannot write /nowhere/plot.svg" in capsys.readouterr().err
