"""The wheel in an empty virtual environment: it brings everything that the commands need.

The dependencies come from the environment of the tests, by a path file, because downloading torch
takes minutes; the project itself is not among them, because path files found that way are not
followed and an editable install is nothing but such a file.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    "client",
    "protocol",
    "model_zoo",
    "packaging",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
OLDEST_SETUPTOOLS = 77
SHARED = (
    "share/man/man1/volunteer.1",
    "share/bash-completion/completions/volunteer.bash",
    "share/zsh/site-functions/_volunteer",
    "share/fish/vendor_completions.d/volunteer.fish",
)
pytestmark = pytest.mark.slow


class Installed:
    """An environment with the wheel, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.work = folder / "work"
        self.work.mkdir()

    def run(self, *command: str, within_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, far from the sources."""
        program = self.environment / "bin" / command[0]
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        return subprocess.run(
            [str(program), *command[1:]],
            cwd=self.work,
            env={name: os.environ[name] for name in kept if name in os.environ}
            | {"HOME": str(self.work), "VOLUNTEER_HOME": str(self.work / "home")},
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def json(self, *command: str) -> Any:
        """Run a command that must succeed and print JSON."""
        done = self.run("volunteer", *command, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is built from, so that nothing is left among the sources."""
    if int(metadata.version("setuptools").split(".")[0]) < OLDEST_SETUPTOOLS:
        pytest.skip(f"building the wheel takes setuptools {OLDEST_SETUPTOOLS}")
    sources = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "screenshots")
            shutil.copytree(ROOT / name, sources / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(ROOT / name, sources / name)
    finish([sys.executable, str(sources / "packaging" / "generate.py")], PYTHONPATH=str(sources))
    return sources


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("wheel"))
    wheel = build(sources, place.folder)
    assert wheel.name.endswith("-py3-none-any.whl")  # as packaging/README.md says
    python = str(place.environment / "bin" / "python")
    finish([sys.executable, "-m", "venv", "--without-pip", str(place.environment)])
    finish([sys.executable, "-m", "pip", "--python", python, *PIP, "--no-deps", str(wheel)])
    (packages,) = place.environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


PIP = ("install", "-q", "--disable-pip-version-check", "--no-index")


def build(sources: Path, folder: Path, **environment: str) -> Path:
    shutil.rmtree(sources / "build", ignore_errors=True)
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q")
    finish(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(sources)],
        **environment,
    )
    (wheel,) = folder.glob("volunteer-*.whl")
    return wheel


def finish(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_is_the_one_from_the_wheel(installed: Installed) -> None:
    found = installed.run("python", "-c", "import client; print(client.__file__)")
    assert found.stdout.startswith(str(installed.environment)), found


def test_the_licence_is_carried_and_named(installed: Installed) -> None:
    (info,) = installed.environment.glob("lib/python*/site-packages/volunteer-*.dist-info")
    licence = (info / "licenses" / "LICENSE").read_bytes()
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert b"Version 2.0, January 2004" in licence
    assert "License-Expression: Apache-2.0\n" in (info / "METADATA").read_text()


def test_every_command_can_be_loaded(installed: Installed) -> None:
    """One whose module or data is not in the wheel would fail here, and only here."""
    script = (
        "from client.cli.command_table import COMMANDS\n"
        "from client.cli.main import run\n"
        "print({name: run([name, '--help']) for name in COMMANDS})"
    )
    done = installed.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    ends = ast.literal_eval(done.stdout.splitlines()[-1])
    assert "join" in ends
    assert set(ends.values()) == {0}


def test_doctor_finds_nothing_wrong(installed: Installed) -> None:
    assert installed.json("doctor")["ok"] is True


def test_the_first_minute_of_a_founder(installed: Installed) -> None:
    made = installed.run(
        "volunteer", "create", "--preset", "tiny", "--no-measure", "--name", "from-a-wheel"
    )
    assert made.returncode == 0, made.stderr
    assert "volunteer:" in made.stdout
    assert (installed.work / "from-a-wheel.swarm").is_file()
    assert installed.json("config", "show")["settings"]["threads"] == 0
    assert installed.run("volunteer", "status").returncode == 3


@pytest.mark.parametrize("name", ["systemd/system", "systemd/user", "launchd"])
def test_the_service_files_are_carried(name: str, installed: Installed) -> None:
    carried = installed.environment / "share" / "volunteer" / name
    for path in (ROOT / "packaging" / name).iterdir():
        assert (carried / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", SHARED)
def test_manual_and_completions_are_where_their_readers_look(
    name: str, installed: Installed, sources: Path
) -> None:
    folder = "man" if "man1" in name else "completions"
    source = sources / "packaging" / folder / Path(name).name
    assert (installed.environment / name).read_bytes() == source.read_bytes()
