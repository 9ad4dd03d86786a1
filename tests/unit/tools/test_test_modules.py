"""No test module imports another one: shared code is in ``tests/support``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
MODULES = sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_it_imports_no_other_test_module(module: Path) -> None:
    names = {path.stem for path in MODULES}
    assert not [name for name in _imported(module) if name.split(".")[-1] in names]


def test_every_name_is_given_once() -> None:
    """Otherwise pytest takes one file for the other."""
    assert len({path.name for path in MODULES}) == len(MODULES)


def _imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
