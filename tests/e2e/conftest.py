"""A short folder for the homes of real volunteers, and the volunteers, which end with a test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.lab.local_swarm import LocalSwarm
from tests.support.e2e_local import killed_at_the_end


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because the paths of sockets are bounded."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        yield Path(name)


@pytest.fixture
def processes(folder: Path) -> Iterator[LocalSwarm]:
    with killed_at_the_end(folder) as swarm:
        yield swarm
