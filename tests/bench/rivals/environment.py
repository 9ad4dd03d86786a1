"""hivemind's own virtual environment, apart from ours: built once, with the same torch.

python -m tests.bench.rivals.environment
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[3] / ".venv-hivemind"
PYTHON = FOLDER / "bin" / "python"
HIVEMIND = "1.1.12"
NUMPY = "2.3.5"
INSTALL_S = 1200.0
_VERSIONS = (
    "import json, importlib.metadata as m; "
    "print(json.dumps({f'hivemind: {n}': m.version(n) for n in ('hivemind', 'torch', 'numpy')}))"
)


class Missing(Exception):
    """hivemind cannot be had here; says why."""


def requirements() -> list[str]:
    """Return what is installed; torch in the version that our own side runs with."""
    return [f"hivemind=={HIVEMIND}", f"numpy=={NUMPY}", f"torch=={version('torch').split('+')[0]}"]


def ensure() -> dict[str, str]:
    """Return the versions in hivemind's environment, which is built if it is not there.

    Raises:
        Missing: it cannot be built, as without a network.
    """
    found = _looked()
    if isinstance(found, str):
        raise Missing(found)
    return found


@cache
def _looked() -> dict[str, str] | str:
    """Look once; the versions, or why there are none."""
    try:
        return versions()
    except (OSError, subprocess.SubprocessError, ValueError):
        pass  # not there, or broken
    try:
        build()
        return versions()
    except (Missing, OSError, subprocess.SubprocessError, ValueError) as error:
        return str(error)


def versions() -> dict[str, str]:
    """Ask the environment what is in it."""
    found = subprocess.run(
        [str(PYTHON), "-c", "import hivemind;" + _VERSIONS],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer: dict[str, str] = json.loads(found.stdout)
    return answer


def build() -> None:
    """Make the environment and install.

    Raises:
        Missing: that fails; what was begun is removed.
    """
    print(f"installing {' '.join(requirements())} into {FOLDER}", file=sys.stderr, flush=True)
    base = getattr(sys, "_base_executable", sys.executable)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        for command in ([base, "-m", "venv", "--clear", str(FOLDER)], [*pip, *requirements()]):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(FOLDER, ignore_errors=True)
        words = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise Missing(
            " ".join([f"hivemind {HIVEMIND} cannot be installed: {error}", *words])
        ) from error


if __name__ == "__main__":
    print(json.dumps(ensure()))
