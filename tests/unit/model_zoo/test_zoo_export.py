"""Exported files: transformers loads the model that was exported."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model_zoo.export import export_hf
from model_zoo.huggingface.imports import open_folder
from model_zoo.models.family import State
from model_zoo.specs.model import ModelSpec
from model_zoo.whole import build_whole, load_whole

FILES = {"config.json", "generation_config.json", "model.safetensors"}


def shaken_state(spec: ModelSpec) -> State:
    """A state in which no tensor is at its initial value, so that none can be mixed up."""
    generator = torch.Generator().manual_seed(0)
    state = build_whole(spec, seed=0).state_dict()
    return {n: t + 0.2 * torch.randn(t.shape, generator=generator) for n, t in state.items()}


@pytest.mark.filterwarnings("default")
def test_transformers_computes_the_same_logits(
    spec: ModelSpec, tokens: Tensor, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra volunteer[hf]")
    state = shaken_state(spec)
    export_hf(spec, state, tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys"))
    with torch.no_grad():
        expected = load_whole(spec, state)(tokens[:, :-1])
        found = theirs.eval()(tokens[:, :-1]).logits
    assert expected.abs().max() > 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_files(spec: ModelSpec, tmp_path: Path) -> None:
    out = export_hf(spec, shaken_state(spec), tmp_path / "new" / "folder")
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    weights = load_file(out / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    assert sum(tensor.numel() for tensor in weights.values()) >= spec.parameter_count


def test_a_partial_state_is_refused_and_nothing_written(spec: ModelSpec, tmp_path: Path) -> None:
    state = shaken_state(spec)
    del state["blocks.2.attn.out.weight"]
    with pytest.raises(ValueError, match=r"blocks\.2\.attn\.out\.weight"):
        export_hf(spec, state, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_hf(spec, shaken_state(spec), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("model_zoo.huggingface.replacing.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export_hf(spec, build_whole(spec, seed=1).state_dict(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_large_weights_are_several_files_that_take_the_place_of_one(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = shaken_state(spec)
    whole = load_file(export_hf(spec, state, tmp_path) / "model.safetensors")
    monkeypatch.setattr("model_zoo.export.MAX_SHARD_BYTES", 20_000)
    export_hf(spec, state, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    read = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())
    with open_folder(tmp_path) as opened:
        assert all(torch.equal(opened.tensor(name), state[name]) for name in state)
    monkeypatch.undo()
    export_hf(spec, state, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_bf16_is_read_back_as_it_was_written(spec: ModelSpec, tmp_path: Path) -> None:
    state = {name: t.bfloat16().float() for name, t in shaken_state(spec).items()}
    export_hf(spec, state, tmp_path, dtype="bf16")
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    with open_folder(tmp_path) as opened:
        assert {opened.dtype(name) for name in state} == {"BF16"}
        assert all(torch.equal(opened.tensor(name).float(), state[name]) for name in state)
