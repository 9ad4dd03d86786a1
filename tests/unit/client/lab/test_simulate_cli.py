"""``volunteer simulate``: figures on stdout, the same for the same seed; mistakes are explained."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from client.cli.main import run
from client.errors import ExitCode
from client.lab.simulate.screen import progress_text

SMALL = ("simulate", "--volunteers", "20", "--stages", "4", "--hours", "1")
EXAMPLE = Path(__file__).parent / "traces" / "example.csv"


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


def test_the_table_has_a_line_for_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    run([*SMALL, "--policy", "random", "--policy", "greedy-join"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "20 volunteers, 4 stages, 20% churn per hour, 1 h, seed 0"
    assert [line.split()[0] for line in lines[3:5]] == ["random", "greedy-join"]


def test_the_plot_names_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plot.svg"
    run([*SMALL, "--policy", "random", "--policy", "greedy-join", "--plot", str(path)])
    svg = ElementTree.fromstring(path.read_text())
    texts = {node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"random", "greedy-join", "share of the oracle"} <= texts


def test_a_trace_replaces_volunteers_and_churn(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--stages", "2", "--hours", "1", "--policy", "greedy-join", "--json"]
    assert run(["simulate", "--trace", str(EXAMPLE), *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["volunteers"] == 4
    assert answer["trace"] == str(EXAMPLE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "best"], "choose from ours, "),
        (["--trace", "/nowhere.csv"], "cannot read /nowhere.csv"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--policy", "random", "--plot", "/nowhere/plot.svg"]) == ExitCode.RUNTIME
    assert "cannot write /nowhere/plot.svg" in capsys.readouterr().err


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_bar_keeps_its_length(share: float) -> None:
    bar = progress_text("ours", share, 2, 3).split()[0]
    assert len(bar) == 30
    assert set(bar) <= {"█", "░"}
