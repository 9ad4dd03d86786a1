"""The report of ``make lint`` on cycles between files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
CONTRACT = """
[tool.importlinter]
root_packages = ["made_up"]
contract_types = ["no_cycles: tests.lint.cycles.NoCycles"]

[[tool.importlinter.contracts]]
name = "no cycles"
type = "no_cycles"
"""


def lint(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a made-up package in a folder."""
    package = folder / "made_up"
    package.mkdir()
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).write_text(text)
    (folder / "pyproject.toml").write_text(CONTRACT)
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cycle_is_printed_with_the_imports_that_make_it(tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from made_up import lower\n"
    late = "def late():\n    from made_up.upper import x\n"
    result = lint(tmp_path, {"upper.py": typed, "lower.py": late, "leaf.py": ""})
    assert result.returncode == 1, result.stderr
    assert "made_up.lower -> made_up.upper (line 2: from made_up.upper import x)" in result.stdout
    assert "made_up.upper -> made_up.lower (line 4: from made_up import lower)" in result.stdout
    assert "leaf" not in result.stdout
