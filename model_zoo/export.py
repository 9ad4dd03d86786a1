"""A trained model as Hugging Face files that `transformers` loads unchanged.

Writes `model.safetensors` and `config.json` of GPT2LMHeadModel or LlamaForCausalLM, fp32, head
untied. There is no tokenizer file: tokens are bytes. No pickle anywhere.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model_zoo.models import gpt, llama
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import State
from model_zoo.whole import load_whole


def export_hf(spec: ModelSpec, state: Mapping[str, Tensor], out_dir: Path) -> Path:
    """Write the whole model's `state` to `out_dir`, made if need be; returns `out_dir`.

    Each file appears complete or not at all; the weights come last.

    Raises:
        ValueError: the state is not that of a whole model of this spec.
        OSError: the folder cannot be written; older files there are untouched.
    """
    whole = load_whole(spec, state).state_dict()
    tensors = _gpt2(spec, whole) if spec.architecture == "gpt" else _llama(spec, whole)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    config = _gpt2_config(spec) if spec.architecture == "gpt" else _llama_config(spec)
    out_dir.mkdir(parents=True, exist_ok=True)
    with _replacing(out_dir / "config.json") as partial:
        partial.write_text(json.dumps(_COMMON | config, indent=2) + "\n")
    with _replacing(out_dir / "model.safetensors") as partial:
        save_file(contiguous, partial, metadata={"format": "pt"})
    return out_dir


_COMMON: dict[str, Any] = {
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": None,
}

_GPT2_LINEARS = {
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


def _gpt2(spec: ModelSpec, state: State) -> State:
    tensors = {
        "transformer.wte.weight": state["embed.token.weight"],
        "transformer.wpe.weight": state["embed.position.weight"],
        "lm_head.weight": state["head.proj.weight"],
    }
    tensors |= _with_bias(state, "head.norm", "transformer.ln_f")
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
        tensors |= _with_bias(state, ours + "attn_norm", theirs + "ln_1")
        tensors |= _with_bias(state, ours + "ffn_norm", theirs + "ln_2")
        for name, target in _GPT2_LINEARS.items():
            linear = _with_bias(state, ours + name, theirs + target)
            weight = theirs + target + ".weight"
            tensors |= linear | {weight: linear[weight].t()}  # Conv1D keeps (inputs, outputs)
    return tensors


def _with_bias(state: State, name: str, target: str) -> State:
    """A weight and its bias; GPT-2 always has one, so a missing bias becomes zeros."""
    weight = state[name + ".weight"]
    bias = state.get(name + ".bias", torch.zeros(weight.shape[0]))
    return {target + ".weight": weight, target + ".bias": bias}


def _gpt2_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocab,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_head": spec.heads,
        "n_inner": spec.ffn_width,
        "activation_function": "gelu",
        "layer_norm_epsilon": gpt.NORM_EPS,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


_LLAMA_NAMES = {
    "attn_norm": "input_layernorm",
    "attn.out": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def _llama(spec: ModelSpec, state: State) -> State:
    tensors = {
        "model.embed_tokens.weight": state["embed.token.weight"],
        "model.norm.weight": state["head.norm.weight"],
        "lm_head.weight": state["head.proj.weight"],
    }
    kv_rows = spec.kv_heads * spec.head_width
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        for name, target in _LLAMA_NAMES.items():
            tensors[f"{theirs}{target}.weight"] = state[f"{ours}{name}.weight"]
        # Rows need no permutation: both sides rotate pairs (i, i + D/2).
        split = torch.split(state[ours + "attn.qkv.weight"], [spec.width, kv_rows, kv_rows])
        for letter, rows in zip("qkv", split, strict=True):
            tensors[f"{theirs}self_attn.{letter}_proj.weight"] = rows
    return tensors


def _llama_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": llama.NORM_EPS,
        "rope_theta": spec.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
    }


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`; it takes the place of `path` once it is safely on disk."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
