"""Downloads what a machine with torch and numpy lacks: the wheels of what is really imported.

libp2p names thirty packages, and the client imports a third of them.
"""

import subprocess
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

from tests.bench.gpu.rates import NEEDED
from tests.bench.gpu.running import REPOSITORY

PYTHON = "3.12"
OF_TORCH = {"filelock", "fsspec", "Jinja2", "MarkupSafe", "mpmath", "networkx", "sympy"}
BUILT = {"python-baseconv", "varint"}
"""They have no wheel at PyPI, and no compiled part."""
NOT_CARRIED = {"torch", "numpy", "setuptools", "volunteer"} | OF_TORCH
IMPORTED = "import sys; from importlib import import_module\n" + (
    f"for name in {NEEDED}: import_module(name)\n"
    "print(*{name.partition('.')[0] for name in sys.modules})"
)


def download(folder: Path) -> int:
    """Download wheels into a folder, and say how large they are."""
    names = imported() - NOT_CARRIED
    flags = ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    flags += ["--platform=manylinux2014_x86_64", "--platform=manylinux_2_28_x86_64"]
    pip("download", "-d", str(folder), *flags, *pinned(names - BUILT))
    pip("wheel", "-w", str(folder), *pinned(names & BUILT))
    wheels = list(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels, {size / 2**20:.1f} MiB, in {folder}")
    return 0


def pip(command: str, *arguments: str) -> None:
    """Run pip for the given packages alone."""
    quiet = ["-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([sys.executable, "-m", "pip", command, *quiet, *arguments], check=True)


def pinned(names: set[str]) -> list[str]:
    """Return packages in the versions that are installed here."""
    return [f"{name}=={version(name)}" for name in sorted(names)]


def imported() -> set[str]:
    """Return the packages that come with what the parts import here, by their names at PyPI."""
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    of = packages_distributions()
    return {name for module in done.stdout.split() for name in of.get(module, ())}
