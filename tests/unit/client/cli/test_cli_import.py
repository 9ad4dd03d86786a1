"""``create --from``: what begins with the weights of a folder, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from client.cli.founding.importing import check_vocabulary, with_own_tokenizer
from client.cli.founding.manifest import Founding
from client.cli.founding.options import RunChoices
from client.cli.terminal.swarm_text import introduction
from client.errors import ExitCode, UserError
from client.store.texts import TextStore
from model_zoo.export import export_hf
from model_zoo.huggingface.imports import open_folder
from model_zoo.specs.architecture import Experts, Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import build_whole
from protocol.ids import SwarmId
from protocol.manifest import Manifest, decode_manifest, encode_manifest
from tests.support.saved_swarms import founded

OLMO2 = ModelSpec("olmo2", 3, 32, 4, 4, 48, context=64)
GPT2 = ModelSpec("gpt", 3, 32, 4, 4, 64, context=24, bias=True, gelu="new")


def described(manifest: Manifest) -> str:
    return "\n".join(introduction(manifest, SwarmId("ab" * 32)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export_hf(OLMO2, build_whole(OLMO2, seed=5).state_dict(), tmp_path / "olmo2")


def found(source: Path, store: Path, **choices: Any) -> Founding:
    return founded(TextStore(store), source=source, **choices)


def test_the_manifest_has_the_model_and_what_its_stages_begin_with(
    folder: Path, tmp_path: Path
) -> None:
    manifest = found(folder, tmp_path / "store", stages=3).manifest
    assert manifest.model.architecture == "olmo2"
    assert manifest.model.context == 64
    assert manifest.name == "olmo2-stdlib"
    assert decode_manifest(encode_manifest(manifest)) == manifest
    starts = list(manifest.start)  # type: ignore[arg-type]
    store = TextStore(tmp_path / "store")
    assert [store.path(start.digest).stat().st_size for start in starts] == [
        start.size_bytes for start in starts
    ]
    assert store.origin(starts[0].digest) == folder


def test_a_stage_takes_no_more_than_its_own_tensors(tmp_path: Path) -> None:
    """What a volunteer is sent for its stage."""
    spec = ModelSpec("llama", 3, 128, 4, 4, 512, context=64)
    source = export_hf(spec, build_whole(spec, seed=5).state_dict(), tmp_path / "llama")
    manifest = found(source, tmp_path / "store", stages=3).manifest
    own = [stage.parameters * 4 for stage in manifest.stages]
    starts = list(manifest.start)  # type: ignore[arg-type]
    assert all(
        size <= start.size_bytes <= 1.1 * size for start, size in zip(starts, own, strict=True)
    )


def test_a_mixture_of_experts_is_not_audited(folder: Path, tmp_path: Path) -> None:
    """Rounding decides now and then which expert a token goes to: what an honest volunteer with
    another machine computes is then as far from the auditor's as a lie."""
    spec = ModelSpec("mixtral", 3, 32, 4, 4, 24, context=64, experts=Experts(4, 2))
    source = export_hf(spec, build_whole(spec, seed=5).state_dict(), tmp_path / "mixtral")
    founding = found(source, tmp_path / "store", audit=5)
    assert not founding.manifest.audits
    assert any("no audits" in warning for warning in founding.warnings)
    dense = found(folder, tmp_path / "store", audit=5)
    assert dense.manifest.audits == 0.05
    assert not any("no audits" in warning for warning in dense.warnings)


def test_the_same_folder_gives_the_same_start(folder: Path, tmp_path: Path) -> None:
    one, two = (found(folder, tmp_path / name).manifest for name in ("one", "two"))
    assert one.start == two.start


def test_a_shorter_context_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    manifest = found(folder, tmp_path / "store", context=16).manifest
    assert manifest.model.context == 16
    gpt2 = export_hf(GPT2, build_whole(GPT2, seed=5).state_dict(), tmp_path / "gpt2")
    assert found(gpt2, tmp_path / "store").manifest.model == GPT2


def test_a_tied_embedding_is_copied_and_the_founder_told(folder: Path, tmp_path: Path) -> None:
    assert not any("begins as a copy" in note for note in found(folder, tmp_path / "a").warnings)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert any("begins as a copy" in note for note in found(folder, tmp_path / "b").warnings)
    alone = found(folder, tmp_path / "c", stages=1)
    assert alone.manifest.model.tied
    assert "; the embedding is the output projection" in described(alone.manifest)
    assert not any("begins as a copy" in note for note in alone.warnings)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    with open_folder(folder) as opened:
        assert opened.tensor("lm_head.weight").equal(embedding)


def test_a_vocabulary_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    spec = ModelSpec("llama", 2, 32, 4, 4, 48, context=16, vocab=1000)
    folder = export_hf(spec, build_whole(spec, seed=5).state_dict(), tmp_path / "words")
    with pytest.raises(UserError, match="1,000 tokens and the tokenizer of the text has 256"):
        found(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_the_folders_own_tokenizer_is_taken_unless_another_is_chosen(folder: Path) -> None:
    bare = RunChoices(source=folder)
    assert with_own_tokenizer(bare) == bare
    (folder / "tokenizer.json").write_text("{}")
    assert with_own_tokenizer(bare).tokenizer == str(folder)
    for tokenizer in ("train:300", "bytes"):
        chosen = RunChoices(source=folder, tokenizer=tokenizer)
        assert with_own_tokenizer(chosen) == chosen
    assert with_own_tokenizer(RunChoices()) == RunChoices()


@pytest.mark.parametrize(
    ("spec", "context", "words"),
    [(GPT2, 16, "its context is 24 and no other"), (OLMO2, 128, "above the model's 64")],
)
def test_a_context_that_the_model_cannot_have_is_the_flags_fault(
    spec: ModelSpec, context: int, words: str, tmp_path: Path
) -> None:
    """Another folder would not help."""
    source = export_hf(spec, build_whole(spec, seed=5).state_dict(), tmp_path / "model")
    with pytest.raises(UserError, match=words) as caught:
        found(source, tmp_path / "store", context=context)
    assert "--context" in caught.value.next_step
    assert "--from" not in caught.value.next_step
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_pointer_of_git_lfs_is_no_damage(folder: Path, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
    (folder / "model.safetensors").write_bytes(pointer)
    with pytest.raises(UserError, match=r"model\.safetensors is a pointer of Git LFS .* git lfs"):
        found(folder, tmp_path / "store")
    (folder / "config.json").write_bytes(pointer)
    with pytest.raises(UserError, match=r"config\.json is a pointer of Git LFS"):
        found(folder, tmp_path / "store")


def test_an_embedding_may_have_rows_to_spare_but_none_too_few(folder: Path) -> None:
    with open_folder(folder) as opened:
        for vocab, brought in ((256, False), (256, True), (200, True)):
            check_vocabulary(opened, vocab, brought=brought)
        for vocab, brought in ((200, False), (257, True)):
            with pytest.raises(UserError, match="a vocabulary of 256 tokens"):
                check_vocabulary(opened, vocab, brought=brought)


class TestAdapters:
    """``--lora``: the folder's weights are frozen, and small matrices beside them are trained."""

    def test_the_manifest_has_the_model_and_its_adapters(
        self, folder: Path, tmp_path: Path
    ) -> None:
        plain = found(folder, tmp_path / "store").manifest
        manifest = found(folder, tmp_path / "store", lora=4).manifest
        lora = manifest.model.lora
        assert lora == Lora(4, 8.0, ("self_attn.q_proj", "self_attn.v_proj"), "fp32")
        assert manifest.model.base == plain.model
        assert manifest.start == plain.start
        assert decode_manifest(encode_manifest(manifest)) == manifest
        trained = sum(stage.parameters for stage in manifest.stages)
        assert trained == 3 * 4 * 2 * (32 + 32)
        assert f"{trained:,} parameters" in described(manifest)
        assert "frozen     are imported weights" in described(manifest)
        assert "adapters of rank 4" in described(manifest)

    def test_weights_published_in_bf16_are_kept_so(self, tmp_path: Path) -> None:
        state = build_whole(OLMO2, seed=5).state_dict()
        source = export_hf(OLMO2, state, tmp_path / "olmo2", dtype="bf16")
        manifest = found(source, tmp_path / "store", lora=4).manifest
        assert manifest.model.lora.base == "bf16"
        wider = found(source, tmp_path / "store", lora=4, lora_base="fp32").manifest
        assert manifest.stages[0].memory_bytes < wider.stages[0].memory_bytes

    def test_targets_and_alpha_are_chosen(self, folder: Path, tmp_path: Path) -> None:
        chosen = {"lora_targets": "up_proj, k_proj", "lora_alpha": 3.0}
        lora = found(folder, tmp_path / "store", lora=2, **chosen).manifest.model.lora
        assert lora == Lora(2, 3.0, ("self_attn.k_proj", "mlp.up_proj"), "fp32")
        lora = found(folder, tmp_path / "store", lora=2, lora_targets="all").manifest.model.lora
        assert len(lora.targets) == 7
