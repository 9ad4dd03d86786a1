"""A home that an earlier version has written is read by this one: nothing in it is lost or refused.

``earlier_home.tar.xz`` was written by a program of protocol 15: the founder of a run of 12
steps, which it had completed alone. Its key is nobody's.
"""

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.store.identity import load_identity
from client.store.paths import Kept, home_folders
from client.store.swarms import SwarmStore
from tests.support import e2e_local
from tests.support.e2e_local import HOST, parsed, volunteer

pytestmark = pytest.mark.slow
HOME = Path(e2e_local.__file__).with_name("earlier_home.tar.xz")


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        with tarfile.open(HOME) as packed:
            packed.extractall(name, filter="tar")  # with the modes of its folders
        yield Path(name) / "home"


def test_its_swarm_and_key_are_known_and_its_checkpoint_is_sound(home: Path) -> None:
    folders = home_folders(home)
    (swarm,) = SwarmStore(folders.swarms).all()
    assert swarm.manifest.name == "earlier"
    assert load_identity(folders.data) is not None
    assert parsed(volunteer(home, "sample", "--length", "4", "--json"))["version"] == 12


@pytest.mark.long
def test_a_volunteer_starts_from_it_and_keeps_what_it_had(home: Path) -> None:
    folders = home_folders(home)
    (swarm,) = SwarmStore(folders.swarms).all()
    join = ("join", "--headless", "--exit-when-done", "--listen-host", HOST, "--threads", "1")
    done = volunteer(home, *join, "--dial-timeout-s", "1", timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "the run is complete after 12 steps" in done.stderr
    names = {path.name for path in folders.of(swarm.swarm, Kept.CHECKPOINTS).iterdir()}
    assert "stage-0-v12.safetensors" in names
    assert not [name for name in names if "damaged" in name or "set-aside" in name]
