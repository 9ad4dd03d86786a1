"""The newest whole model: found among checkpoints good and bad, sampled from and exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from client.cli.commands.create import keep_text, sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.models.model_source import held_out_loss, load_newest, open_corpus
from client.compute.checkpoint import build_header
from client.errors import ExitCode, UserError
from client.store.checkpoints import CheckpointFolder
from client.store.paths import home_folders
from client.store.texts import TextStore
from model_zoo.data import Corpus
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage
from model_zoo.whole import build_whole
from protocol.address import Address
from protocol.invite import SwarmFile
from protocol.wire.envelope import Signer
from tests.support.cli_process import Within

SIGNER = Signer(b"\x07" * 32)


def _swarm(text: Path, name: str = "little", *, delayed: bool = False) -> SwarmFile:
    founding = found_swarm(
        SIGNER.peer,
        RunChoices(name=name, data=str(text), stages=2, measure=False, delayed_update=delayed),
        ModelChoices(layers=2, width=32, heads=2, context=16),
        OptimizerChoices(),
    )
    return sign(founding.manifest, SIGNER, (Address("ip4", "127.0.0.1", 4001, SIGNER.peer),))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    return path


@pytest.fixture
def swarm(text: Path) -> SwarmFile:
    return _swarm(text)


def _write(
    swarm: SwarmFile, folder: Path, version: int, stages: Sequence[int], seed: int = 1
) -> list[Path]:
    """Write checkpoints as a replica does, with the weights of ``seed`` and zero moments."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = swarm.manifest.model
    parts = slices(swarm.manifest.layers_per_stage)
    paths = []
    for stage in stages:
        state = build_stage(spec, parts[stage], seed).state_dict()
        data = b"".join(tensor.numpy().tobytes() for tensor in state.values())
        data += bytes(swarm.manifest.state.bytes_per_parameter // 4 * len(data) - len(data))
        digest = hashlib.blake2b(version.to_bytes(8, "little") + data, digest_size=32)
        header = build_header(
            swarm=swarm.swarm,
            stage=stage,
            stages=len(parts),
            version=version,
            digest=digest.hexdigest(),
            layout=tuple((name, tuple(tensor.shape)) for name, tensor in state.items()),
            state=swarm.manifest.state,
        )
        paths.append(CheckpointFolder(folder).path(stage, version))
        paths[-1].write_bytes(header + data)
    return paths


def test_stages_from_different_folders_make_the_whole_model(
    swarm: SwarmFile, tmp_path: Path
) -> None:
    _write(swarm, tmp_path / "a", 5, [0])
    _write(swarm, tmp_path / "b", 5, [1])
    trained = load_newest(swarm, [tmp_path / "a", tmp_path / "b", tmp_path / "missing"])
    expected = build_whole(trained.manifest.model, seed=1).state_dict()
    assert trained.version == 5
    assert trained.state.keys() == expected.keys()
    assert all(torch.equal(trained.state[name], tensor) for name, tensor in expected.items())


def test_the_parameters_of_the_version_before_are_not_loaded(text: Path, tmp_path: Path) -> None:
    """A delayed swarm's checkpoints have them; nobody who reads the model looks at them."""
    swarm = _swarm(text, delayed=True)
    _write(swarm, tmp_path, 5, [0, 1])
    trained = load_newest(swarm, [tmp_path])
    assert trained.state.keys() == build_whole(swarm.manifest.model, seed=1).state_dict().keys()


def test_a_newer_version_that_lacks_a_stage_does_not_count(
    swarm: SwarmFile, tmp_path: Path
) -> None:
    _write(swarm, tmp_path, 5, [0, 1])
    _write(swarm, tmp_path, 6, [1])
    assert load_newest(swarm, [tmp_path]).version == 5


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_falls_back_to_a_copy_then_to_an_older_version(
    swarm: SwarmFile, tmp_path: Path, damage: str
) -> None:
    _write(swarm, tmp_path / "a", 5, [0, 1])
    newest, _ = _write(swarm, tmp_path / "a", 6, [0, 1])
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[damage])
    assert load_newest(swarm, [tmp_path / "a"]).version == 5
    _write(swarm, tmp_path / "b", 6, [0])
    assert load_newest(swarm, [tmp_path / "a", tmp_path / "b"]).version == 6


def test_another_swarms_checkpoints_are_not_mixed_in(
    swarm: SwarmFile, text: Path, tmp_path: Path
) -> None:
    _write(_swarm(text, "other"), tmp_path, 9, [0, 1])
    _write(swarm, tmp_path, 5, [0, 1])
    assert load_newest(swarm, [tmp_path]).version == 5


def test_what_is_missing_is_said(swarm: SwarmFile, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint") as caught:
        load_newest(swarm, [tmp_path])
    assert caught.value.exit_code == ExitCode.TEMPORARY
    _write(swarm, tmp_path, 7, [1])
    with pytest.raises(UserError, match="version 7 of stages 1"):
        load_newest(swarm, [tmp_path])


def test_held_out_loss_of_an_untrained_model_is_that_of_guessing(
    swarm: SwarmFile, text: Path, tmp_path: Path
) -> None:
    _write(swarm, tmp_path, 0, [0, 1])
    corpus = open_corpus(swarm.manifest, text)
    assert corpus is not None
    assert held_out_loss(load_newest(swarm, [tmp_path]), corpus) == pytest.approx(5.545, abs=0.2)


def test_another_text_than_the_swarms_is_not_used(swarm: SwarmFile, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("something else " * 50)
    assert open_corpus(swarm.manifest, other) is None
    assert open_corpus(swarm.manifest, None) is None


def test_the_commands_sample_and_export(
    within: Within, swarm: SwarmFile, text: Path, tmp_path: Path
) -> None:
    _write(swarm, tmp_path / "checkpoints", 5, [0, 1])
    file = tmp_path / "little.swarm"
    write_swarm_file(file, swarm)
    source = ["--swarm", str(file), "--checkpoint", str(tmp_path / "checkpoints")]

    sampled = within("sample", "the ", *source, "--length", "20")
    assert sampled.returncode == 0, sampled.stderr
    assert sampled.stdout.startswith("the ")

    out = tmp_path / "model"
    done = within("export", "--out", str(out), *source, "--data", str(text), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"] == 5
    assert 5 < answer["held_out_loss"] < 6
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}


def test_a_founder_need_not_give_the_text_again(
    within: Within, swarm: SwarmFile, text: Path, tmp_path: Path
) -> None:
    store = TextStore(home_folders(tmp_path / "home").texts)
    keep_text(Corpus.from_bytes_file(text), str(text), store)
    _write(swarm, tmp_path / "checkpoints", 5, [0, 1])
    file, out = tmp_path / "little.swarm", tmp_path / "model"
    write_swarm_file(file, swarm)
    source = ["--swarm", str(file), "--checkpoint", str(tmp_path / "checkpoints")]
    done = within("export", "--out", str(out), *source, "--json")
    assert 5 < json.loads(done.stdout)["held_out_loss"] < 6
    store.path(swarm.manifest.data.digest).write_text("damaged")
    again = within("export", "--out", str(out), *source, "--json", "--force")
    assert 5 < json.loads(again.stdout)["held_out_loss"] < 6
    text.unlink()
    without = within("export", "--out", str(tmp_path / "other"), *source)
    assert "give it with --data FILE" in without.stderr


def test_a_model_that_is_there_is_not_replaced_unasked(
    within: Within, swarm: SwarmFile, tmp_path: Path
) -> None:
    _write(swarm, tmp_path / "checkpoints", 5, [0, 1])
    write_swarm_file(tmp_path / "x.swarm", swarm)
    out = tmp_path / "model"
    out.mkdir()
    (out / "model.safetensors").write_text("mine")
    export = ["export", "--out", str(out), "--swarm", str(tmp_path / "x.swarm")]
    export += ["--checkpoint", str(tmp_path / "checkpoints")]
    done = within(*export)
    assert done.returncode == ExitCode.USAGE
    assert "--force" in done.stderr
    assert (out / "model.safetensors").read_text() == "mine"
    assert not (out / "config.json").exists()
    assert within(*export, "--force").returncode == 0
    assert (out / "config.json").exists()


def test_an_empty_prompt_is_a_usage_error(within: Within, swarm: SwarmFile, tmp_path: Path) -> None:
    _write(swarm, tmp_path, 5, [0, 1])
    write_swarm_file(tmp_path / "x.swarm", swarm)
    done = within("sample", "", "--swarm", str(tmp_path / "x.swarm"), "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert "prompt" in done.stderr
