"""Checkpoints that transformers makes compute here what its own classes do, cut or exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model_zoo.export import export_hf
from model_zoo.huggingface.imports import open_folder
from model_zoo.models.family import State
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices
from model_zoo.stages import load_stage, load_whole

pytestmark = pytest.mark.filterwarnings("default")
transformers = pytest.importorskip("transformers", reason="needs transformers")

"""Compared bit by bit, in fp32 on one thread."""
VOCAB, CONTEXT, LAYERS = 300, 48, 4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500_000.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 12,
    "rope_theta": 10_000.0,
}
PARTLY = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.5,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 16}
GEMMA_3 = {"sliding_window_pattern": 3, "rope_local_base_freq": 500.0}
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": CONTEXT,
    "n_embd": 64,
    "n_layer": LAYERS,
    "n_head": 4,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN3_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("llama", COMMON | {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama-3.1": ("llama", COMMON | {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-5}),
    "llama-3.2, tied": ("llama", COMMON | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama, linear": (
        "llama",
        COMMON
        | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    ),
    "llama, head_dim": ("llama", COMMON | {"head_dim": 24}),
    "smollm3": ("smollm3", COMMON | {"no_rope_layer_interval": 4, "tie_word_embeddings": True}),
    "smollm3, every other": ("smollm3", COMMON | {"no_rope_layers": [1, 0, 1, 0]}),
    "qwen2": ("qwen2", COMMON | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("qwen3", COMMON | {"head_dim": 32}),
    "mistral": ("mistral", COMMON | {"sliding_window": 16, "head_dim": 16}),
    "olmo-2": ("olmo2", COMMON),
    "mixtral": ("mixtral", COMMON | {"num_local_experts": 3, "head_dim": 24}),
    "qwen3-moe": ("qwen3_moe", COMMON | QWEN3_MOE | {"norm_topk_prob": True, "head_dim": 16}),
    "qwen3-moe, of all": ("qwen3_moe", COMMON | QWEN3_MOE | {"head_dim": 32}),
    "olmoe": ("olmoe", COMMON | {"num_experts": 6, "num_experts_per_tok": 3}),
    "llama, yarn": ("llama", COMMON | {"rope_parameters": YARN}),
    "qwen3, yarn with a magnitude": (
        "qwen3",
        COMMON | {"head_dim": 16, "rope_parameters": YARN | {"attention_factor": 1.5}},
    ),
    "granite": ("granite", COMMON | GRANITE),
    "phi-3": ("phi3", COMMON | {"sliding_window": 16}),
    "phi-4-mini": ("phi3", COMMON | {"rope_parameters": PARTLY, "tie_word_embeddings": True}),
    "starcoder2": ("starcoder2", COMMON | {"sliding_window": None}),
    "starcoder2, window, tied": (
        "starcoder2",
        COMMON | {"sliding_window": 16, "tie_word_embeddings": True},
    ),
    "gemma-2": ("gemma2", COMMON | GEMMA),
    "gemma-2, tied, no caps": (
        "gemma2",
        COMMON
        | GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        | {"tie_word_embeddings": True},
    ),
    "gemma-3": ("gemma3_text", COMMON | GEMMA | GEMMA_3 | {"tie_word_embeddings": True}),
    "gemma-3, scaled": (
        "gemma3_text",
        COMMON | GEMMA | GEMMA_3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "pythia": ("gpt_neox", COMMON | {"num_key_value_heads": 4}),
    "pythia, whole heads, tied": (
        "gpt_neox",
        COMMON | {"num_key_value_heads": 4, "rotary_pct": 1.0, "tie_word_embeddings": True},
    ),
    "gpt-2": ("gpt2", GPT2),
    "gpt-2, tanh": ("gpt2", GPT2 | {"activation_function": "gelu_pytorch_tanh"}),
    "gpt-2, eps": ("gpt2", GPT2 | {"layer_norm_epsilon": 1e-6, "tie_word_embeddings": False}),
}

Theirs = tuple[Any, Path]


def as_we_do(model: Any) -> None:
    """The usual way multiplies the matrices of all experts in one call, which rounds otherwise; and
    Gemma 2 works scores out one by one also where none is bounded."""
    if getattr(model.config, "attn_logit_softcapping", 0) is None:
        model.config._attn_implementation = "sdpa"  # which the class does not list
    if model.config.model_type in ("mixtral", "qwen3_moe", "olmoe"):
        model.set_experts_implementation("eager")


@pytest.fixture(scope="module", params=list(CASES.values()), ids=list(CASES))
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """A model with random weights, also in its norms and biases, and the folder it is in."""
    kind, settings = request.param
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(kind, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    as_we_do(model)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    folder = tmp_path_factory.mktemp(kind)
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, VOCAB, (2, CONTEXT), generator=torch.Generator().manual_seed(5))


def imported(folder: Path) -> tuple[ModelSpec, State]:
    with open_folder(folder) as opened:
        return opened.spec, {name: opened.tensor(name) for name in opened.names}


@torch.no_grad()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    found: Tensor = model(ids).logits
    return found


@torch.no_grad()
def staged(spec: ModelSpec, state: State, ids: Tensor) -> Tensor:
    x = ids
    for part in slices((1, 2, 1)):
        x = load_stage(spec, part, state)(x)
    return x


@torch.no_grad()
def test_logits_are_those_of_transformers(theirs: Theirs, ids: Tensor) -> None:
    model, folder = theirs
    spec, state = imported(folder)
    expected = logits_of(model, ids)
    assert expected.abs().max() > 1
    whole = load_whole(spec, state)(ids)
    assert torch.equal(staged(spec, state, ids), whole)
    assert torch.equal(whole, expected)


def test_the_export_is_the_model_that_was_imported(
    theirs: Theirs, ids: Tensor, tmp_path: Path
) -> None:
    model, folder = theirs
    spec, state = imported(folder)
    export_hf(spec, state, tmp_path)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys"))
    as_we_do(again)
    assert torch.equal(logits_of(again.eval(), ids), logits_of(model, ids))
    assert imported(tmp_path)[0] == spec
