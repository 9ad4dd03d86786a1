"""``volunteer checkpoint``: lists and verifies; finds damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.errors import ExitCode
from client.store.paths import home_folders, make_private
from client.store.swarms import SwarmStore
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.saved_swarms import little_swarm, write_checkpoints


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> SwarmFile:
    text = tmp_path_factory.mktemp("text") / "text"
    text.write_text("to be or not to be " * 100)
    return little_swarm(text, "mine")


@pytest.fixture
def folder(tmp_path: Path, swarm: SwarmFile) -> Path:
    """The swarm's folder of checkpoints in a home that knows the swarm."""
    folders = home_folders(tmp_path / "home")
    make_private(folders.data)
    SwarmStore(folders.swarms).remember(swarm)
    return folders.checkpoints(swarm.swarm)


def test_what_is_on_disk_is_listed(folder: Path, swarm: SwarmFile, within: Within) -> None:
    write_checkpoints(swarm, folder, 50, [0, 1])
    write_checkpoints(swarm, folder, 100, [0])
    done = within.ends(0, "checkpoint", "ls", "--json")
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    (view,) = answer["swarms"]
    assert (view["swarm"], view["swarm_name"], view["complete"]) == (swarm.swarm, "mine", [50])
    assert [(f["stage"], f["version"]) for f in view["files"]] == [(0, 50), (0, 100), (1, 50)]
    assert all(len(file["hash"]) == 64 and not file["problem"] for file in view["files"])
    text = within("checkpoint", "ls", "--swarm", "mine").stdout
    assert text.count("version complete") == 2
    assert within("checkpoint", "ls", "--swarm", "other").returncode == ExitCode.USAGE


def test_an_empty_home_has_nothing_to_list(within: Within) -> None:
    done = within("checkpoint", "ls")
    assert (done.returncode, done.stdout) == (0, "no checkpoint lies on this machine\n")


def test_verifying_finds_what_a_header_does_not_tell(
    folder: Path, swarm: SwarmFile, within: Within
) -> None:
    write_checkpoints(swarm, folder, 50, [0])
    assert within("checkpoint", "verify").returncode == 0
    [other] = write_checkpoints(swarm, folder, 50, [1])
    other.write_bytes(other.read_bytes()[:-1] + b"\1")
    assert within("checkpoint", "ls").returncode == 0
    done = within.ends(ExitCode.RUNTIME, "checkpoint", "verify", "--json")
    (view,) = json.loads(done.stdout)["swarms"]
    assert ["damaged" in file["problem"] for file in view["files"]] == [False, True]
    assert view["complete"] == []
    assert len(list(folder.iterdir())) == 2, "nothing is renamed: a volunteer may be running"
