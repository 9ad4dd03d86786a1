"""Mutants: the same for the same seed, each one change that still is a program, and no file of the
product is touched."""

import ast
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutant_hook.sitecustomize import changed
from tests.mutants import PACKAGES, REPOSITORY, Mutant, Trials, mutants
from tests.support.cli_process import apart

SOURCE = """ELSEWHERE = "a" if sys.platform == "darwin" else "b"


def first(given, limit):
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


def third(size):
    return size + 1
"""


def made_of(tree: Path, source: str) -> set[str]:
    (tree / "protocol").mkdir(exist_ok=True)
    (tree / "protocol" / "example.py").write_text(source)
    return {
        changed(source.encode(), start=m.start, end=m.end, before=m.before, after=m.after).decode()
        for m in mutants(tree, PACKAGES, 0)
    }


def at_the_end(file: Path, code: str) -> Mutant:
    """Return a mutant that runs some code at the end of a module of the product."""
    size = file.stat().st_size
    return Mutant(str(file.relative_to(REPOSITORY)), 1, "call", "", code, size, size)


def test_each_is_one_change_that_still_is_a_program(tmp_path: Path) -> None:
    made = made_of(tmp_path, SOURCE)
    assert made == {
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
        SOURCE.replace("size + 1", "(size - 1)"),
    }
    for text in made:
        ast.parse(text)


def test_the_same_seed_makes_the_same() -> None:
    first, again, other = (
        list(itertools.islice(mutants(REPOSITORY, ["client/net"], seed), 30)) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    kinds = {mutant.kind for mutant in first[:6]}
    assert kinds == {"arithmetic", "branch", "call", "comparison", "junction", "refusal"}
    assert {m.path for m in first} == {m.path for m in first if m.path.startswith("client/net/")}


def test_every_process_imports_the_mutant_and_no_file_is_changed() -> None:
    file = REPOSITORY / "protocol" / "names.py"
    sound = file.read_bytes()
    mutant = at_the_end(file, "raise KeyError('mutant')")
    done = apart(sys.executable, "-c", "import protocol.names", **mutant.environment())
    assert "KeyError: 'mutant'" in done.stderr
    assert file.read_bytes() == sound


@pytest.mark.slow
def test_a_mutant_is_killed_by_the_first_test_that_fails() -> None:
    trials = Trials(60.0)
    useless = at_the_end(REPOSITORY / "protocol" / "names.py", "raise ValueError")
    assert trials.tried(useless).killed_by.startswith("tests/unit/protocol/")
    harmless = replace(useless, after="pass")
    assert Trials(1.0).tried(harmless).killed_by == ""
