"""No test module imports another one, and each has a name of its own."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.cli_process import apart

TESTS = Path(__file__).parents[2]
MODULES = sorted(TESTS.rglob("test_*.py"))


def test_none_imports_another() -> None:
    names = {path.stem for path in MODULES}
    imported = {path.stem: {name.split(".")[-1] for name in _imported(path)} for path in MODULES}
    assert not {stem: found for stem in imported if (found := imported[stem] & names)}


def test_every_name_is_given_once() -> None:
    """Otherwise pytest takes one file for the other."""
    assert len({path.name for path in MODULES}) == len(MODULES)


def test_attacks_and_benchmarks_find_what_they_import() -> None:
    """Most of them run by hand only."""
    paths = [path for folder in ("bench", "hostile") for path in (TESTS / folder).rglob("*.py")]
    names = [".".join(path.relative_to(TESTS.parent).with_suffix("").parts) for path in paths]
    done = apart(sys.executable, "-c", "\n".join(f"import {name}" for name in names))
    assert done.returncode == 0, done.stderr


def _imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
