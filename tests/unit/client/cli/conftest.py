"""Fixtures of the command line's tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.cli_process import Within
from tests.support.saved_swarms import WORDS


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Within:
    """The command line of a volunteer whose home is empty, run in this process."""
    monkeypatch.setenv("VOLUNTEER_HOME", str(tmp_path / "home"))
    return Within(capsys)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A text to train on."""
    path = tmp_path / "book.txt"
    path.write_text(WORDS)
    return path


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, within: Within) -> Iterator[Path]:
    """A short home for ``within``, because a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        home = Path(name).resolve()
        monkeypatch.setenv("VOLUNTEER_HOME", str(home))
        monkeypatch.setattr("client.cli.reach.home.SYSTEM_CONFIG_FILE", home / "system.toml")
        yield home
