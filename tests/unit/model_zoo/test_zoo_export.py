"""Exported files: transformers loads the model that was exported."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from model_zoo.export import export_hf
from model_zoo.huggingface.adapters import export_adapters
from model_zoo.llama_cpp.writing import export_gguf
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import build_whole
from model_zoo.tokenizers.bpe import byte_tokenizer
from tests.support.full_disk import files_of_at_most


def test_a_partial_state_is_refused_and_nothing_written(spec: ModelSpec, tmp_path: Path) -> None:
    state = build_whole(spec, seed=0).state_dict()
    missing = next(name for name in state if name.startswith(f"{spec.layers_prefix}2."))
    del state[missing]
    with pytest.raises(ValueError, match=re.escape(missing)):
        export_hf(spec, state, tmp_path)
    assert not list(tmp_path.iterdir())


def whole(seed: int, out: Path) -> None:
    spec = ModelSpec("llama", 2, 32, 4, 2, 48, context=64)
    export_hf(spec, build_whole(spec, seed).state_dict(), out)


def adapters(seed: int, out: Path) -> None:
    spec = ModelSpec(
        "llama", 2, 512, 4, 2, 48, context=64, lora=Lora(4, 8.0, ("self_attn.q_proj",))
    )
    state = build_whole(spec, seed).state_dict()
    export_adapters(spec, state, out)


def gguf(seed: int, out: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
    spec = ModelSpec("llama", 2, 32, 4, 2, 48, context=64)
    export_gguf(spec, build_whole(spec, seed).state_dict(), out / "model.gguf", byte_tokenizer())


@pytest.mark.parametrize("export", [whole, adapters, gguf])
def test_on_a_full_disk_nothing_changes(
    export: Callable[[int, Path], None], tmp_path: Path
) -> None:
    """A configuration could be written, weights could not."""
    old = tmp_path / "old"
    export(0, old)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    with files_of_at_most(4096):
        with pytest.raises(OSError):
            export(1, old)
        with pytest.raises(OSError):
            export(1, tmp_path / "a" / "b")
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before
    assert not (tmp_path / "a").exists()


def test_what_cannot_be_flushed_to_the_disk_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(0, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("model_zoo.huggingface.filling.os.fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        whole(1, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
