"""Mutants: the same for the same seed, each one change that still is a program, and killed by the
tests that see it."""

import ast
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants import REPOSITORY, mirror, mutants

SOURCE = """LIMIT = 4 + 4


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
    if sys.platform == "darwin" and given:
        return given + 1
    raise ValueError(
        given
    )


def third(size=2 + 2):
    return size + 1
"""
EXAMPLE = """
from functools import cache
import msgspec
import trio

class Base(msgspec.Struct):
    size: int
    def __post_init__(self):
        if self.size < 0:
            raise ValueError

class Inner(Base):
    def __post_init__(self):
        super().__post_init__()

def made(one):
    def inner():
        return one + 1
    return inner

@cache
def cached(one):
    return one * 3

async def waits(ends):
    await trio.sleep(0)
    ends.append(1)

def unseen():
    print("said")

def unreached(ends):
    ends.append(1)

kept, tripled = made(1), cached(2)
"""
TESTS = """
import msgspec
import pytest
from protocol import example

@pytest.mark.parametrize("kind", [example.Base, example.Inner])
def test_structs(kind):
    kind(1)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"size": -1}, kind)

def test_functions_that_were_made_before():
    assert example.kept() == 2

def test_what_was_computed_before():
    assert example.cached(2) == 6

async def test_async():
    ends = []
    await example.waits(ends)
    assert ends

def test_what_is_imported_late():
    from protocol.late import late
    assert late(1) == 2

def test_in_vain():
    example.unseen()

def test_that_fails_anyway():
    example.unreached([])
    assert False
"""


def test_each_is_one_change_that_still_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "example.py").write_text(SOURCE)
    made = {mutant.source(tmp_path).decode() for mutant in mutants(tmp_path, ["protocol"], 0)}
    no = 'return no(f"not {given or limit}")'
    refused = "if False: raise ValueError(given)\n\n"
    both = "given.size < limit and limit is not None"
    assert made == {
        SOURCE.replace("given.size < limit", "(given.size >= limit)"),
        SOURCE.replace("limit is not None", "(limit is None)"),
        SOURCE.replace(both, f"(True or ({both}))"),
        SOURCE.replace(both, f"(False and ({both}))"),
        SOURCE.replace("given.clear()", "if False: given.clear()"),
        SOURCE.replace("not given else", "(True or (not given)) else"),
        SOURCE.replace("not given else", "(False and (not given)) else"),
        SOURCE.replace("given\n        == limit", "(given != limit\n)"),
        SOURCE.replace(both, "(given.size < limit or limit is not None)"),
        SOURCE.replace("if given or limit", "if (True or (given or limit))"),
        SOURCE.replace("if given or limit", "if (False and (given or limit))"),
        SOURCE.replace("if given or limit", "if (given and limit)"),
        SOURCE.replace(no, f"if False: {no}".replace('"', "'")),
        SOURCE.replace("raise ValueError(\n        given\n    )", refused),
        SOURCE.replace("size + 1", "(size - 1)"),
    }
    for text in made:
        ast.parse(text)
        assert text.count("\n") == SOURCE.count("\n")


def test_the_same_seed_makes_the_same() -> None:
    first, again, other = (
        list(itertools.islice(mutants(REPOSITORY, ["client/net"], seed), 30)) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    kinds = {mutant.kind for mutant in first[:6]}
    assert kinds == {"arithmetic", "branch", "call", "comparison", "junction", "refusal"}
    assert all(m.path.startswith("client/net/") for m in first)
    every = {m.path for m in mutants(REPOSITORY, ["client"], 0)}
    assert not any(path.startswith("client/lab/") for path in every)
    assert {m.path for m in mutants(REPOSITORY, ["client/cli/main.py"], 0)} == {
        "client/cli/main.py"
    }


def test_tests_mirror_the_product() -> None:
    assert mirror("client") == ["tests/unit/client", "tests/net", "tests/ui"]
    assert mirror("client/net/relay") == ["tests/net"]
    assert mirror("protocol/rounds/leader.py") == ["tests/unit/protocol/rounds"]


def test_functions_of_every_kind_are_changed_where_they_stand(tmp_path: Path) -> None:
    tests = tmp_path / "tests" / "unit" / "protocol"
    tests.mkdir(parents=True)
    (tmp_path / "protocol").mkdir()
    for package in ("tests", "protocol"):
        (tmp_path / package / "__init__.py").touch()
    shutil.copy(REPOSITORY / "tests" / "mutants.py", tmp_path / "tests")
    (tmp_path / "protocol" / "example.py").write_text(EXAMPLE)
    (tmp_path / "protocol" / "late.py").write_text("def late(one): return one + 1\n")
    (tests / "test_example.py").write_text(TESTS)
    markers = 'markers = ["slow", "long"]\ntrio_mode = true\npythonpath = ["."]'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{markers}\n")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tests.mutants", "--jobs", "2", "--out", "found"]
        command += ["--within", "protocol", *arguments]
        return subprocess.check_output(command, cwd=tmp_path, text=True, timeout=60)

    said = run()
    assert "left out: tests/unit/protocol/test_example.py::test_that_fails_anyway" in said
    survived = [line for line in said.splitlines() if "SURVIVED" in line or "REACHED" in line]
    assert sorted(line.rpartition(" | ")[2] for line in survived) == ["NOT REACHED", "SURVIVED 1"]
    assert "protocol: 9 of 11 killed (82%), 1 not reached" in said
    assert run().splitlines() == said.splitlines()[-2:], "it goes on"
    seen = TESTS.replace("test_in_vain():", "test_seen(capsys):")
    seen = seen.replace("example.unseen()", "example.unseen(); assert capsys.readouterr().out")
    (tests / "test_example.py").write_text(seen)
    assert "10 of 11 killed (91%)" in run("--again")
    assert (tmp_path / "protocol" / "example.py").read_text() == EXAMPLE
