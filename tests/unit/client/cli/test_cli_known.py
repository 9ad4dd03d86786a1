"""The swarms that a home knows: which one is meant, by which names, and how one is forgotten."""

import json
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
from client.store.paths import Folders, Kept, home_folders
from client.store.swarms import SwarmStore
from client.store.texts import TextStore
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


def kept_of(folders: Folders, swarm: SwarmFile) -> list[Path]:
    """One file of every kind that is kept of a swarm."""
    of = swarm.swarm
    return [
        folders.swarms / f"{of}.swarm",
        folders.of(of, Kept.CONTRIBUTIONS),
        folders.of(of, Kept.HELD_OUT),
        folders.of(of, Kept.AMENDMENTS),
        folders.of(of, Kept.WAYPOINTS),
    ]


def test_an_abandoned_swarm_is_forgotten_with_all_that_is_kept_of_it(
    home: Path, folders: Folders, founded: list[SwarmFile], within: Within
) -> None:
    texts = TextStore(folders.texts)
    shared = texts.path(founded[0].manifest.data.digest)
    for path in (*kept_of(folders, founded[0]), *kept_of(folders, founded[1]), shared):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = within.ends(0, "forget", "vain", "--json")
    assert sorted(json.loads(done.stdout)["removed"]) == sorted(
        map(str, kept_of(folders, founded[1]))
    )
    assert not any(path.exists() for path in kept_of(folders, founded[1]))
    assert all(path.exists() for path in kept_of(folders, founded[0]))
    assert shared.exists(), "the other swarm trains on it"
    assert find_swarm(find_home(), None) == founded[0]
    assert within("forget", "trains").returncode == 0
    assert not shared.exists()
    assert within("forget", "trains").returncode == ExitCode.USAGE


def test_what_would_be_lost_is_asked_for(
    home: Path, folders: Folders, founded: list[SwarmFile], within: Within
) -> None:
    checkpoint = folders.of(founded[1].swarm, Kept.CHECKPOINTS) / "stage-0-v5.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    done = within("forget", "vain")
    assert (done.returncode, checkpoint.exists()) == (ExitCode.USAGE, True)
    assert "with 1 checkpoint?" in done.stderr
    assert within("forget", "vain", "--yes").returncode == 0
    assert not checkpoint.parent.exists()


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


def test_a_name_that_is_no_setting_is_told_and_leaves_the_others(
    home: Path, within: Within
) -> None:
    (home / "config.toml").write_text(f"thread = 2\ndata_dir = '{home}/there'")
    done = within.ends(0, "config", "show")
    assert f'data_dir = "{home}/there"' in done.stdout
    assert "unknown setting 'thread'" in done.stderr
    assert "has no effect: did you mean threads?" in done.stderr
