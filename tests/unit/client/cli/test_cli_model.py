"""The newest whole model: found among checkpoints good and bad, sampled from and exported."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from client.cli.commands.create import write_swarm_file
from client.cli.models.model_source import load_newest, needed_model
from client.cli.terminal.output import printable
from client.errors import ExitCode, UserError
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from client.store.texts import TextStore
from model_zoo.stages import build_whole
from protocol.address import Address
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.saved_swarms import (
    SIGNER,
    little_swarm,
    llama_folder,
    lora_swarm,
    write_checkpoints,
)


@pytest.fixture
def swarm(book: Path) -> SwarmFile:
    return little_swarm(book)


@pytest.fixture
def source(swarm: SwarmFile, tmp_path: Path) -> list[str]:
    """Flags that name the swarm's file and a folder with its version 5."""
    write_checkpoints(swarm, tmp_path / "checkpoints", 5, [0, 1])
    write_swarm_file(tmp_path / "x.swarm", swarm)
    return ["--swarm", str(tmp_path / "x.swarm"), "--checkpoint", str(tmp_path / "checkpoints")]


def test_stages_from_different_folders_make_the_whole_model(
    swarm: SwarmFile, tmp_path: Path
) -> None:
    write_checkpoints(swarm, tmp_path / "a", 5, [0])
    write_checkpoints(swarm, tmp_path / "b", 5, [1])
    trained = load_newest(swarm, [tmp_path / "a", tmp_path / "b", tmp_path / "missing"])
    expected = build_whole(trained.manifest.model, seed=1).state_dict()
    assert trained.version == 5
    assert trained.state.keys() == expected.keys()
    assert all(torch.equal(trained.state[name], tensor) for name, tensor in expected.items())


def test_a_newer_version_that_lacks_a_stage_does_not_count(
    swarm: SwarmFile, tmp_path: Path
) -> None:
    write_checkpoints(swarm, tmp_path, 5, [0, 1])
    write_checkpoints(swarm, tmp_path, 6, [1])
    assert load_newest(swarm, [tmp_path]).version == 5


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_falls_back_to_a_copy_then_to_an_older_version(
    swarm: SwarmFile, tmp_path: Path, damage: str
) -> None:
    write_checkpoints(swarm, tmp_path / "a", 5, [0, 1])
    newest, _ = write_checkpoints(swarm, tmp_path / "a", 6, [0, 1])
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes({"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b""}[damage])
    assert load_newest(swarm, [tmp_path / "a"]).version == 5
    write_checkpoints(swarm, tmp_path / "b", 6, [0])
    assert load_newest(swarm, [tmp_path / "a", tmp_path / "b"]).version == 6


def test_another_swarms_checkpoints_are_not_mixed_in(
    swarm: SwarmFile, book: Path, tmp_path: Path
) -> None:
    write_checkpoints(little_swarm(book, "other"), tmp_path, 9, [0, 1])
    write_checkpoints(swarm, tmp_path, 5, [0, 1])
    assert load_newest(swarm, [tmp_path]).version == 5


def test_what_is_missing_is_said(swarm: SwarmFile, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint") as caught:
        load_newest(swarm, [tmp_path])
    assert caught.value.exit_code == ExitCode.TEMPORARY
    write_checkpoints(swarm, tmp_path, 7, [1])
    with pytest.raises(UserError, match="version 7 of stages 1"):
        load_newest(swarm, [tmp_path])


def test_what_is_sampled_is_printed_as_text_and_json(
    within: Within, swarm: SwarmFile, source: list[str]
) -> None:
    sampled = within.ends(0, "sample", "the ", *source, "--length", "20")
    assert sampled.stdout.startswith("the ")
    printed = within.ends(0, "sample", "the ", *source, "--length", "20", "--json")
    answer = json.loads(printed.stdout)
    assert "the " + printable(answer["text"]) == sampled.stdout.removesuffix("\n")
    assert (answer["swarm"], answer["version"]) == (swarm.swarm, 5)


def test_the_swarms_model_is_copied_to_the_disk_of_the_home_and_removed(
    within: Within, swarm: SwarmFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's temporary folder is in memory on many machines."""
    home, places = tmp_path / "home", list[Path]()

    async def copied(_: object, out: Path, **_how: object) -> tuple[SwarmFile, list[Path]]:
        places.append(out)
        return swarm, write_checkpoints(swarm, out, 5, [0, 1])

    monkeypatch.setattr("client.cli.models.newest.gather", copied)
    member = Address("ip4", "192.0.2.7", 4001, SIGNER.peer)
    write_swarm_file(tmp_path / "x.swarm", replace(swarm, peers=(member,)))
    within.ends(0, "sample", "the ", "--swarm", str(tmp_path / "x.swarm"), "--length", "2")
    assert home_folders(home).data in places[0].parents
    assert not places[0].exists()


def test_a_founder_that_has_not_begun_is_not_dialled(
    within: Within, swarm: SwarmFile, tmp_path: Path
) -> None:
    own = ensure_identity(make_private(home_folders(tmp_path / "home").data)).peer
    founder = Address("ip4", "127.0.0.1", 4001, own)
    write_swarm_file(tmp_path / "x.swarm", replace(swarm, peers=(founder,)))
    done = within.ends(ExitCode.TEMPORARY, "sample", "--swarm", str(tmp_path / "x.swarm"))
    assert "no volunteer runs here, and no other member is known" in done.stderr
    assert "start it: volunteer join" in done.stderr


def test_a_disk_that_takes_less_than_it_is_given_is_said(
    within: Within, source: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error has no number, so the system has no words for it."""

    def fail(*_: object) -> None:
        raise OSError("4096 bytes of 8192 were written")

    monkeypatch.setattr("model_zoo.export.export_hf", fail)
    done = within.ends(ExitCode.RUNTIME, "export", "--out", str(tmp_path / "model"), *source)
    told = " ".join(done.stderr.split())
    assert "the disk took less than it was given (4096 bytes of 8192 were written)" in told


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "README.md"])
def test_what_is_there_is_not_replaced_unasked(
    within: Within, source: list[str], tmp_path: Path, name: str
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / name).write_text("mine")
    export = ["export", "--out", str(out), *source]
    done = within(*export)
    assert "--force" in done.stderr
    assert (out / name).read_text() == "mine"
    if name != "README.md":  # beside which there is room for a model
        assert done.returncode == ExitCode.USAGE
        assert not (out / "config.json").exists()
    assert within(*export, "--force").returncode == 0
    assert (out / name).read_bytes() != b"mine"


class TestGguf:
    """A file for llama.cpp; what is in it is tested in the zoo."""

    @pytest.fixture
    def export(self, source: list[str], tmp_path: Path) -> list[str]:
        return ["export", "--gguf", "--out", str(tmp_path / "model"), *source]

    def test_it_is_one_file_with_a_card(
        self, within: Within, export: list[str], tmp_path: Path
    ) -> None:
        gguf = pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
        done = within.ends(0, *export, "--dtype", "fp16")
        assert "GELU is by a tangent" in done.stderr
        reader = gguf.GGUFReader(tmp_path / "model" / "model.gguf")
        assert reader.fields["general.name"].contents() == "little"
        assert reader.fields["general.architecture"].contents() == "gpt2"
        assert {one.tensor_type.name for one in reader.tensors} == {"F16", "F32"}
        assert "library_name: gguf" in (tmp_path / "model" / "README.md").read_text()
        assert within(*export, "--force").returncode == 0

    def test_the_missing_package_is_named_before_anything_is_done(
        self,
        within: Within,
        export: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(sys.modules, "gguf", None)
        done = within.ends(ExitCode.CONFIG, *export)
        assert f"{sys.executable} -m pip install gguf" in done.stderr
        assert not (tmp_path / "model").exists()


class TestAdapters:
    """A swarm that trains adapters: what is saved of it, with and without the frozen weights."""

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return llama_folder(tmp_path / "base")

    @pytest.fixture
    def swarm(self, book: Path, base: Path, tmp_path: Path) -> SwarmFile:
        return lora_swarm(base, book, TextStore(home_folders(tmp_path / "home").texts))

    def exported(self, within: Within, tmp_path: Path, *flags: str) -> Path:
        out = tmp_path / "out"
        within.ends(0, "export", "--out", str(out), *flags)
        return out

    def test_the_adapter_alone_is_saved(
        self, within: Within, swarm: SwarmFile, source: list[str], tmp_path: Path
    ) -> None:
        out = self.exported(within, tmp_path, *source)
        tensors = load_file(out / "adapter_model.safetensors")
        assert len(tensors) == 2 * 2 * 7
        prefix = "base_model.model.model.layers.1.self_attn.v_proj"
        spec = swarm.manifest.model
        expected = build_whole(spec, seed=1).state_dict()
        assert torch.equal(
            tensors[f"{prefix}.lora_A.weight"],
            expected["model.layers.1.self_attn.v_proj.lora_A.weight"],
        )
        assert tensors[f"{prefix}.lora_B.weight"].shape == (32, 4)

    def test_the_whole_model_is_saved_merged(
        self, within: Within, base: Path, source: list[str], tmp_path: Path
    ) -> None:
        """B is zero in these checkpoints: the merged model is the base."""
        out = self.exported(within, tmp_path, *source, "--merged")
        before, after = (load_file(each / "model.safetensors") for each in (base, out))
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_without_the_frozen_weights_there_is_the_adapter_alone(
        self, swarm: SwarmFile, tmp_path: Path
    ) -> None:
        write_checkpoints(swarm, tmp_path / "checkpoints", 5, [0, 1])
        store = TextStore(home_folders(tmp_path / "home").texts)
        whole = load_newest(swarm, [tmp_path / "checkpoints"], store)
        assert needed_model(whole) is whole.model
        store.path(swarm.manifest.start[1].digest).unlink()  # type: ignore[index]
        adapter = load_newest(swarm, [tmp_path / "checkpoints"], store)
        assert adapter.state.keys() == whole.state.keys()
        with pytest.raises(UserError, match="frozen weights of every stage"):
            needed_model(adapter)
