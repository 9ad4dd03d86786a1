"""The swarms that a home knows: which one is meant, by which names, and how one is forgotten."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace as with_changes

from client.cli.commands.create import sign
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.errors import ExitCode, UserError
from client.store.identity import KEY_FILE
from client.store.last_run import RunRecord
from client.store.lock import identity_lock
from client.store.paths import Folders, home_folders
from client.store.swarms import SwarmStore
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of
from tests.support.saved_swarms import SIGNER, WORDS, little_swarm


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> list[SwarmFile]:
    """Two swarms of one text: one that trains, and one that was founded in vain."""
    text = tmp_path_factory.mktemp("text") / "text"
    text.write_text(WORDS)
    made = little_swarm(text)
    named = (with_changes(made.manifest, name=name) for name in ("trains", "vain"))
    return [sign(manifest, SIGNER, made.peers) for manifest in named]


@pytest.fixture
def folders(home: Path, founded: list[SwarmFile]) -> Folders:
    found = home_folders(home)
    for swarm in founded:
        SwarmStore(found.swarms).remember(swarm)
    return found


def test_a_key_that_was_lost_is_told_once(
    home: Path, folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.data.chmod(0o700)
    find_home().signer()
    assert f"{folders.data / KEY_FILE} is gone" in capsys.readouterr().err
    find_home().signer()
    assert capsys.readouterr().err == ""


def running(swarm: SwarmFile) -> FakeProvider:
    return FakeProvider(swarm=swarm.swarm, swarm_name=swarm.manifest.name)


def test_the_running_one_is_meant_where_none_is_named(
    home: Path, folders: Folders, founded: list[SwarmFile]
) -> None:
    with pytest.raises(UserError, match="several swarms are known") as caught:
        find_swarm(find_home(), None)
    assert "volunteer forget" in caught.value.next_step
    with node_of(home, running(founded[0])):
        assert find_swarm(find_home(), None) == founded[0]


@pytest.mark.parametrize(
    "named",
    [
        lambda swarm: swarm.manifest.name,
        lambda swarm: swarm.swarm[:16],
        lambda swarm: str(swarm.invite),
        lambda swarm: f"<{swarm.invite}>",
        None,
    ],
)
def test_a_name_an_id_an_invite_and_a_file_are_taken_everywhere(
    home: Path,
    folders: Folders,
    founded: list[SwarmFile],
    named: Callable[[SwarmFile], str] | None,
) -> None:
    file = home / "x.swarm"
    file.write_text(str(founded[0]), encoding="utf-8-sig")
    text = str(file) if named is None else named(founded[0])
    assert find_swarm(find_home(), text) == founded[0]


def test_a_running_one_is_not_forgotten(
    home: Path, folders: Folders, founded: list[SwarmFile], within: Within
) -> None:
    with identity_lock(folders.data):  # it has not opened its socket yet
        RunRecord(folders.data).begin(founded[0].swarm, "trains")
        assert within("forget", "trains", "--yes").returncode == ExitCode.TEMPORARY
    with node_of(home, running(founded[0])):
        assert within("forget", "trains", "--yes").returncode == ExitCode.TEMPORARY
        assert within("forget", "vain", "--yes").returncode == 0
    assert [one.swarm for one in SwarmStore(folders.swarms).all()] == [founded[0].swarm]


@pytest.mark.parametrize("text", ["threads = ", "threads = 'many'"])
def test_a_fault_in_the_settings_is_told_and_stops_no_command_to_what_runs(
    home: Path, founded: list[SwarmFile], within: Within, text: str
) -> None:
    (home / "config.toml").write_text(text)
    with node_of(home, running(founded[0])):
        for command in ("status", "pause", "resume", "finish --yes --wait-s 0"):
            done = within.ends(0, *command.split())
            assert "config.toml" in done.stderr
            assert "it counts as not set" in done.stderr
    done = within.ends(ExitCode.CONFIG, "join", "--swarm", str(founded[0].invite), "--yes")
    assert "config.toml" in done.stderr
