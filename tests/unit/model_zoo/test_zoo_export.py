"""Exported files: transformers loads the model that was exported."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model_zoo.export import export_hf
from model_zoo.models.family import State
from model_zoo.specs.model import ModelSpec
from model_zoo.whole import build_whole, load_whole


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
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}
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

    monkeypatch.setattr("model_zoo.export.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export_hf(spec, build_whole(spec, seed=1).state_dict(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
