"""Generated files: those in the repository are up to date, the others fit for who reads them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_process import apart

PACKAGING = Path(__file__).parents[2] / "packaging"
COMPLETIONS = {"bash": "volunteer.bash", "zsh": "_volunteer", "fish": "volunteer.fish"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return apart(*command, PYTHONPATH=str(PACKAGING.parent))


@pytest.fixture(scope="module")
def packaging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder with the files that are made for the wheel."""
    root = tmp_path_factory.mktemp("generated")
    for name in ("packaging", "client"):
        ignored = shutil.ignore_patterns("__pycache__", "screenshots")
        shutil.copytree(PACKAGING.parent / name, root / name, ignore=ignored, symlinks=True)
    verdict = run(sys.executable, str(root / "packaging" / "generate.py"))
    assert verdict.returncode == 0, verdict.stderr
    return root / "packaging"


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


@pytest.mark.slow
def test_the_generated_files_are_up_to_date() -> None:
    """If not: make packaging, and commit what it wrote."""
    verdict = run(sys.executable, str(PACKAGING / "generate.py"), "--check")
    assert verdict.returncode == 0, verdict.stderr


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_a_shell_can_read_its_completions(shell: str, packaging: Path) -> None:
    needs(shell)
    verdict = run(shell, "-n", str(packaging / "completions" / COMPLETIONS[shell]))
    assert (verdict.returncode, verdict.stderr) == (0, "")


def test_bash_completes_a_command_and_a_flag(packaging: Path) -> None:
    needs("bash")
    script = (
        f"source {packaging / 'completions' / 'volunteer.bash'}\n"
        "COMP_WORDS=(volunteer jo) COMP_CWORD=1; _volunteer; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(volunteer join --headl) COMP_CWORD=2; _volunteer; echo ${COMPREPLY[@]}\n"
    )
    verdict = run("bash", "-c", script)
    assert verdict.stdout.splitlines() == ["join", "--headless"]


def test_mandoc_has_nothing_to_say_to_the_manual_page(packaging: Path) -> None:
    needs("mandoc")
    verdict = run("mandoc", "-T", "lint", "-W", "all", str(packaging / "man" / "volunteer.1"))
    assert (verdict.returncode, verdict.stdout) == (0, "")
