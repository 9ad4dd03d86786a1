"""Mutants: the same for the same seed, each one change that still is a program."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from tests.mutants import Copy, Mutant, mutants, stages

SOURCE = """def first(given, limit):
    if given.size < limit and limit is not None:  # näher
        given.clear()
    return [] if not given else (
        given
        == limit
    )
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "example.py").write_text(SOURCE)
    return tmp_path


def test_each_is_one_change_that_still_is_a_program(tree: Path) -> None:
    made = {m.applied(SOURCE.encode()).decode() for m in mutants(tree, 0)}
    changed = {
        SOURCE.replace("given.size < limit", "(given.size >= limit)"),
        SOURCE.replace("limit is not None", "(limit is None)"),
        SOURCE.replace("given.size < limit and limit is not None", "True"),
        SOURCE.replace("given.size < limit and limit is not None", "False"),
        SOURCE.replace("given.clear()", "pass"),
        SOURCE.replace("not given else", "True else"),
        SOURCE.replace("not given else", "False else"),
        SOURCE.replace("given\n        == limit", "(given != limit)"),
    }
    assert made == changed
    for text in made:
        ast.parse(text)


def test_the_same_seed_makes_the_same() -> None:
    root = Path(__file__).parents[3]
    first, again, other = (list(itertools.islice(mutants(root, seed), 30)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert {mutant.kind for mutant in first[:3]} == {"branch", "call", "comparison"}


def test_the_tests_of_its_folder_come_first() -> None:
    mutant = Mutant("protocol/rounds/leader.py", 1, "call", "x()", "pass", 0, 3)
    names = [name for name, _ in stages(mutant, 5)]
    assert names == ["unit", "unit", "simulation", "chaos"]
    _, command = next(stages(mutant, 5))
    assert command[-1] == "tests/unit/protocol/rounds"


@pytest.mark.slow
def test_a_mutant_is_noticed_and_its_copy_is_as_before(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    file = tmp_path / "copy" / "protocol" / "rounds" / "patience.py"
    sound = file.read_bytes()
    useless = Mutant("protocol/rounds/patience.py", 1, "call", "", "raise ValueError\n", 0, 0)
    assert copy.tried(useless, chaos=0, limit_s=120).noticed == "unit"
    assert file.read_bytes() == sound
