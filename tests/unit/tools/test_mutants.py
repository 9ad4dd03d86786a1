"""Mutants: the same for the same seed, each one change that still is a program."""

from __future__ import annotations

import ast
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.mutants import Copy, Mutant, Trials, mutants, page, read, stages, unit_tests_of

SOURCE = """def first(given, limit):
    if given.size < limit and limit is not None:  # näher
        given.clear()
    return [] if not given else (
        given
        == limit
    )


def second(given):
    if given or limit:
        return no(f"not {given or limit}")
    raise ValueError
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
        SOURCE.replace(
            "given.size < limit and limit is not None", "(given.size < limit or limit is not None)"
        ),
        SOURCE.replace("if given or limit", "if True"),
        SOURCE.replace("if given or limit", "if False"),
        SOURCE.replace("if given or limit", "if (given and limit)"),
        SOURCE.replace('return no(f"not {given or limit}")', "pass"),
        SOURCE.replace("raise ValueError", "pass"),
    }
    assert made == changed
    for text in made:
        ast.parse(text)


def test_the_same_seed_makes_the_same() -> None:
    root = Path(__file__).parents[3]
    first, again, other = (list(itertools.islice(mutants(root, seed), 30)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    kinds = {mutant.kind for mutant in first[:5]}
    assert kinds == {"branch", "call", "comparison", "junction", "refusal"}


def test_the_tests_that_name_its_file_come_first() -> None:
    mutant = Mutant("protocol/rounds/leader.py", 1, "call", "x()", "pass", 0, 3)
    names = [name for name, _ in stages(mutant, Trials(5))]
    assert names == ["unit", "chaos", "unit", "simulation"]
    quick = [name for name, _ in stages(mutant, Trials(5, quick=True))]
    assert quick == ["unit", "chaos"]
    named = unit_tests_of("protocol/rounds/leader.py")
    assert named[0].startswith("tests/unit/protocol/rounds/")
    assert "tests/unit/protocol/rounds/test_rounds_leader.py" in named
    assert "tests/unit/protocol/transfer/test_transfer_fetch.py" not in named
    (_, first), (_, rest) = (stage for stage in stages(mutant, Trials(5)) if stage[0] == "unit")
    assert set(named) < set(first)
    assert {f"--ignore={path}" for path in named} < set(rest)


def test_what_was_tried_is_read_again_and_stands_on_the_page(tmp_path: Path) -> None:
    survived = Mutant("protocol/a.py", 7, "junction", "a or b", "(a and b)", 0, 6)
    survived = replace(survived, remark="equivalent: a implies b")
    noticed = replace(survived, before="a | b", noticed="chaos", test="liar seed 3", remark="")
    file = tmp_path / "out.jsonl"
    assert read(file) == []
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (noticed, survived)))
    assert read(file) == [noticed, survived]
    text = page(read(file))
    assert "2 mutants: 1 noticed (1 by chaos), 1 not." in text
    rows = [line for line in text.splitlines() if line.startswith("| protocol")]
    assert rows == [
        "| protocol/a.py:7 | junction | a or b -> (a and b) | **none** | equivalent: a implies b |",
        "| protocol/a.py:7 | junction | a \\| b -> (a and b) | liar seed 3 |  |",
    ]


def test_a_mutant_of_another_text_is_not_applied(tree: Path) -> None:
    mutant = Mutant("protocol/example.py", 1, "call", "def", "pass", 0, 3)
    assert mutant.fits(tree)
    assert not replace(mutant, start=1, end=4).fits(tree)
    assert mutant.applied(b"def\n") == b"pass\n"
    with pytest.raises(ValueError, match="has changed"):
        mutant.applied(b"y()\n")


@pytest.mark.slow
def test_a_mutant_is_noticed_and_its_copy_is_as_before(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    file = tmp_path / "copy" / "protocol" / "rounds" / "patience.py"
    sound = file.read_bytes()
    useless = Mutant("protocol/rounds/patience.py", 1, "call", "", "raise ValueError\n", 0, 0)
    by_tests = copy.tried(useless, Trials(chaos=0))
    assert by_tests.noticed == "unit"
    assert by_tests.test.startswith("test_rounds_")
    by_seeds = copy.tried(useless, Trials(chaos=1, only="chaos"))
    assert by_seeds.noticed == "chaos", "the copy's protocol is what runs"
    assert file.read_bytes() == sound
