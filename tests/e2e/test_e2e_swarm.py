"""Volunteers as processes on loopback: they train, obey signals, and say what is wrong."""

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from client.cli.founding.options import RunChoices
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, Member
from client.lab.reference import train_reference
from model_zoo.datasets.build import build
from protocol.invite import SwarmFile
from tests.support.e2e_local import (
    HOST,
    JOIN,
    found,
    in_state,
    killed_at_the_end,
    parsed,
    told_losses,
    volunteer,
    wait_for,
)
from tests.support.texts import corpus_of

pytestmark = pytest.mark.slow
FLAGS = ("--listen-host", HOST, "--threads", "1")
MAX_NODE_BYTES = 200 * 2**20


@dataclass(frozen=True)
class Pair:
    """Two volunteers that train for as long as the tests look at them."""

    swarm: SwarmFile
    members: list[Member]
    folder: Path


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="vol") as name, killed_at_the_end(Path(name)) as some:
        swarm = found(Path(name), "volunteer-1", _run(steps=50_000, checkpoint_every=100))
        members = _start(some, 2)
        in_state(members[0], members, "training", step=1)
        yield Pair(swarm, members, Path(name))


def _run(steps: int, **changes: object) -> RunChoices:
    fields: dict[str, object] = {
        "name": "e2e",
        "stages": 2,
        "steps": steps,
        "sequences": 2,
        "microbatches": 4,
        "checkpoint_every": 1,
        "measure": False,
        "boundary_codec": "fp32",
        "averaging_codec": "fp32",
        "dual_homing": False,
        "optimizer": "adamw",
    }
    return RunChoices(**{**fields, **changes})  # type: ignore[arg-type]


def _start(processes: LocalSwarm, count: int, *flags: str) -> list[Member]:
    first = processes.start("volunteer-1", (*FLAGS, *flags))
    processes.wait("an answer", first.snapshot, 60.0)
    rest = [processes.start(f"volunteer-{n}", (*FLAGS, *flags)) for n in range(2, count + 1)]
    return [first, *rest]


def test_two_volunteers_train_what_one_process_trains(folder: Path, processes: LocalSwarm) -> None:
    swarm = found(folder, "volunteer-1", _run(steps=8))
    members = _start(processes, 2)
    losses: dict[int, float] = {}

    def all_told() -> bool | None:
        losses.update(told_losses(members[:1]))
        return len(losses) == swarm.manifest.steps or None

    for member in members:
        in_state(member, members, "done")
    wait_for(all_told, "the losses of all steps", members)
    expected = train_reference(swarm.manifest, corpus_of("stdlib"), threads=1).losses
    assert [losses[step] for step in range(8)] == pytest.approx(expected, rel=1e-5)
    assert all(member.snapshot().counters.doubled_microbatches == 0 for member in members)  # type: ignore[union-attr]

    home = members[0].home
    processes.stop()
    assert [member.process.returncode for member in members] == [0, 0]
    places = [str(m.home / "data" / "checkpoints" / swarm.swarm) for m in members]
    flags = [text for place in places for text in ("--checkpoint", place)]
    answer = parsed(
        volunteer(
            home,
            "export",
            "--swarm",
            str(folder / "x.swarm"),
            "--out",
            str(folder / "model"),
            *flags,
            "--json",
        )
    )
    assert answer["version"] == 8
    assert (folder / "model" / "model.safetensors").is_file()


def test_a_node_is_small_holds_no_torch_and_says_who_holds_what(pair: Pair) -> None:
    process = psutil.Process(pair.members[0].process.pid)
    assert process.memory_info().rss < MAX_NODE_BYTES
    libraries = {Path(place.path).name for place in process.memory_maps()}
    assert not [name for name in libraries if "torch" in name]
    answer = parsed(volunteer(pair.members[0].home, "status", "--json"))
    assert answer["swarm"] == pair.swarm.swarm
    assert [len(stage["replicas"]) for stage in answer["stages"]] == [1, 1]


def test_a_port_in_use_is_said(folder: Path) -> None:
    found(folder, "volunteer-1", _run(steps=2))
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = volunteer(
            folder / "volunteer-1", *JOIN, str(folder / "x.swarm"), "--listen-port", str(port)
        )
    assert done.returncode == ExitCode.TEMPORARY
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_text_that_is_not_the_swarms_is_refused(folder: Path, processes: LocalSwarm) -> None:
    found(folder, "volunteer-1", _run(steps=2))
    (text := folder / "other.txt").write_text("another text " * 100)
    other = build([text], folder / "other")
    members = _start(processes, 2, "--data", str(other.path))
    ended = wait_for(lambda: next((m for m in members if not m.alive), None), "one ends")
    assert ended.process.returncode == ExitCode.CONFIG
    assert "--data" in ended.log_tail()


def test_the_model_is_fetched_from_a_running_swarm(pair: Pair) -> None:
    in_state(pair.members[0], pair.members, "training", step=101)
    command = ("sample", "--swarm", str(pair.swarm.invite), "--json")
    done = volunteer(pair.folder / "guest", *command, timeout_s=300)  # it trains on meanwhile
    answer = parsed(done)
    assert answer["version"] >= 100
    assert answer["swarm"] == pair.swarm.swarm
    assert "downloading stage 1" in done.stderr
    assert all(member.alive for member in pair.members)
