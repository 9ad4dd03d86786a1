"""Folders that cannot be imported: hostile, damaged or of a model that is not known."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from model_zoo.export import export_hf
from model_zoo.huggingface.config import to_spec
from model_zoo.huggingface.imports import open_folder
from model_zoo.huggingface.shards import FolderError
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import build_whole

SPEC = ModelSpec("llama", 2, 16, 2, 2, 32, context=8)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export_hf(SPEC, build_whole(SPEC, seed=0).state_dict(), tmp_path / "model")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(FolderError, match=message), open_folder(folder):
        raise AssertionError("opened")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_next"}, r"'qwen3_next' is unknown; the nearest is qwen3"),
        ({"model_type": "falcon"}, "'falcon' is unknown; known are "),
        ({"hidden_size": None}, "hidden_size should be an integer"),
        ({"hidden_size": 1 << 40}, "width should be int <= 65536"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "rotates heads whole"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"vocab_size": 300}, r"embed_tokens.weight should have the shape \(300, 16\)"),
        ({"num_hidden_layers": 3}, "layers.2.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 1}, "layers.1.* is not one of the model's"),
        ({"model_type": "mixtral"}, "layers.0.block_sparse_moe.gate.weight is missing"),
    ],
)
def test_a_configuration_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refused(folder, message)


PLAIN = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
    "vocab_size": 100,
    "moe_intermediate_size": 8,
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, "9 active experts are more than"),
        ("mixtral", {"num_local_experts": 1 << 50}, "count should be int <= 512"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise"),
        ("mixtral", {"sliding_window": 4}, "sliding_window"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size should be"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("llama", {"rope_theta": 10**400}, "rope_theta should be a number"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 1e9}},
            "factor should be float <= ",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5}},
            "below rope.high",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
            "mscale",
        ),
        ("phi3", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ("phi3", {"partial_rotary_factor": float("inf")}, "should be a number"),
        ("phi3", {"partial_rotary_factor": 0.45}, "even head width"),
        ("phi3", {"head_dim": 10**400}, "out of range"),
        ("granite", {"logits_scaling": 0}, "logits should be float >= "),
        ("starcoder2", {"use_bias": False}, "use_bias"),
        ("gpt_neox", {"use_parallel_residual": False}, "use_parallel_residual"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "out of range"),
        ("gemma2", {"layer_types": ["full_attention"]}, "a word for every layer"),
        (
            "gemma2",
            {"layer_types": ["full_attention", *["sliding_attention"] * 3]},
            "not every so many-th",
        ),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_local_base_freq": 0.5}, "local_theta should be float > 1"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "gemma3 has no caps"),
        ("llama", {"rope_scaling": [8.0]}, "should be an object"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {}, "sliding_attention": 3}},
            "should be an object",
        ),
    ],
)
def test_what_a_family_does_not_have_is_refused(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    assert to_spec(PLAIN | {"model_type": kind}).layers == 4
    with pytest.raises(ValueError, match=message):
        to_spec(PLAIN | {"model_type": kind} | changes)


def test_a_context_above_the_model_s_is_refused(folder: Path) -> None:
    with pytest.raises(FolderError, match="above the model's 8"), open_folder(folder, context=9):
        pass


def test_files_that_are_missing_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "not a folder")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    refused(folder, "pickle")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, "neither model.safetensors nor")
    (folder / "config.json").write_text("[]")
    refused(folder, "not a JSON object")
    (folder / "config.json").unlink()
    refused(folder, r"cannot read .*config\.json")


def sharded(folder: Path) -> dict[str, str]:
    """Cut the weights into two files by turns; return the index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    placed = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for part in set(placed.values()):
        save_file({n: t for n, t in tensors.items() if placed[n] == part}, folder / part)
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))
    return placed


def test_shards_are_read_as_one_file_is(folder: Path) -> None:
    with open_folder(folder) as opened:
        whole = {name: opened.tensor(name) for name in opened.names}
    sharded(folder)
    with open_folder(folder) as opened:
        assert all(torch.equal(opened.tensor(name), whole[name]) for name in opened.names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret.safetensors", "no file beside it"),
        ("/etc/passwd", "no file beside it"),
        ("part-7.safetensors", "part-7.safetensors is missing"),
        ("part-0.safetensors", "where model.safetensors.index.json says"),
    ],
)
def test_an_index_is_refused(folder: Path, name: str, message: str) -> None:
    placed = sharded(folder)
    moved = next(tensor for tensor, part in placed.items() if part == "part-1.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": placed | {moved: name}}))
    refused(folder, message)


def test_a_type_that_is_no_weight_is_refused(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "model.norm.weight"
    save_file(tensors | {name: tensors[name].to(torch.int64)}, folder / WEIGHTS)
    refused(folder, r"model\.norm\.weight has the type I64; supported are F32, BF16, F16")


def test_a_truncated_file_is_refused(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-4])
    refused(folder, "is damaged: .*not fully covered")
    (folder / WEIGHTS).write_bytes(data[:5])
    refused(folder, "is damaged")


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(folder: Path) -> None:
    with open_folder(folder) as opened:
        kept = opened.tensor("lm_head.weight")
        os.truncate(folder / WEIGHTS, 4096)
        assert torch.isfinite(kept).all()
        with pytest.raises(FolderError, match=r"cannot read tensor .*weight"):
            list(map(opened.tensor, opened.names))


def test_bf16_and_fp16_stay_what_they_are(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = {n: t.to(torch.float16 if n == name else torch.bfloat16) for n, t in tensors.items()}
    save_file(tensors, folder / WEIGHTS)
    with open_folder(folder) as opened:
        assert opened.dtype("lm_head.weight") == "BF16"
        again = opened.tensor("lm_head.weight").float().to(torch.bfloat16)
        assert torch.equal(again, tensors["lm_head.weight"])
        assert opened.dtype(name) == "F16"
        assert torch.equal(opened.tensor(name), tensors[name])


def test_a_model_trained_on_shorter_sequences_is_exported_with_its_own_limit(
    tmp_path: Path,
) -> None:
    own = ModelSpec("mistral", 2, 16, 2, 2, 32, context=64, window=32)
    folder = export_hf(own, build_whole(own, seed=1).state_dict(), tmp_path / "own")
    with open_folder(folder, context=8) as opened:
        shorter = opened.spec
        state = {name: opened.tensor(name) for name in opened.names}
    assert (shorter.context, shorter.longest, shorter.window) == (8, 64, 32)
    again = export_hf(shorter, state, tmp_path / "again")
    assert (again / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with open_folder(again) as opened:
        assert opened.spec == own


@pytest.mark.parametrize("longest", [7, 8, 1 << 25, "9"])
def test_a_limit_that_is_no_longer_than_what_is_trained_is_refused(longest: object) -> None:
    with pytest.raises(ValueError, match="max_context"):
        replace(SPEC, max_context=longest)
