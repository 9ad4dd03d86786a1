"""`config.json`, from and to a spec.

What the file says about the mathematics is either in the spec or refused: a setting that is
overlooked would give a model that computes something else.
"""

from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.specs.architecture import Experts, Rope
from model_zoo.specs.model import ModelSpec

Config = Mapping[str, Any]
"""A `config.json`, parsed."""


class UnknownModel(ValueError):
    """A configuration of a model that the zoo does not have."""


def to_spec(config: Config, context: int | None = None) -> ModelSpec:
    """Return the model that a configuration describes.

    Args:
        config: the parsed file, from anywhere.
        context: longest sequence to train, tokens; None: the model's own.

    Raises:
        UnknownModel: the zoo has no such model.
        ValueError: a setting is missing, out of range or not supported.
    """
    kind = config.get("model_type")
    if kind not in _READERS:
        raise UnknownModel(_unknown(str(kind)[:40]))
    if config.get("quantization_config"):
        raise ValueError("its weights are quantised: take the folder with bf16, fp16 or fp32")
    return _READERS[kind](config, context)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """Return the configuration of the class of `transformers` that computes the same.

    Raises:
        ValueError: no class has this model's combination of switches.
    """
    config = _gpt2_config(spec) if spec.architecture == "gpt" else _llama_config(spec)
    return config | {"tie_word_embeddings": spec.tied}


def is_tied(config: Config) -> bool:
    """Whether the output projection is the embedding's own matrix."""
    by_default = config.get("model_type") in ("gpt2", "smollm3")
    return bool(config.get("tie_word_embeddings", by_default))


def _unknown(kind: str) -> str:
    """The words for a model type that is not known, with one of its family that is."""
    known = ", ".join(_READERS)
    stem = kind.partition("_")[0].rstrip("0123456789.")
    of_family = [name for name in _READERS if stem and name.startswith(stem)]
    near = f"; the nearest is {of_family[-1]}" if of_family else ""
    return f"model type {kind!r} is unknown{near}; known are {known}"


# --- reading -------------------------------------------------------------------------------------


def _count(config: Config, name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int:
        raise ValueError(f"config.json: {name} should be an integer, it is {str(value)[:40]!r}")
    return value


def _number(config: Config, name: str, default: float | None = None) -> float:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) not in (int, float):
        raise ValueError(f"config.json: {name} should be a number, it is {str(value)[:40]!r}")
    return float(value)  # type: ignore[arg-type]


def _only(config: Config, **supported: Any) -> None:
    """Refuse settings that have another value than the supported one, which is their default."""
    for name, value in supported.items():
        found = config.get(name)
        if found is not None and found != value:
            raise ValueError(f"config.json: {name} {str(found)[:40]!r} is not supported")


def _shorter(own: int, context: int | None) -> int:
    if context is not None and context > own:
        raise ValueError(f"a context of {context} tokens is above the model's {own}")
    return context or own


def _gpt2(config: Config, context: int | None) -> ModelSpec:
    _only(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )
    gelus = {"gelu": "exact", "gelu_new": "new", "gelu_pytorch_tanh": "tanh"}
    activation = config.get("activation_function", "gelu_new")
    if activation not in gelus:
        raise ValueError(f"config.json: activation_function {activation!r} is not supported")
    heads, width = _count(config, "n_head"), _count(config, "n_embd")
    positions = _count(config, "n_positions", 1024)
    if context not in (None, positions):
        raise ValueError(f"its positions are learned: its context is {positions} and no other")
    return ModelSpec(
        "gpt",
        _count(config, "n_layer"),
        width,
        heads,
        heads,
        _count(config, "n_inner", 4 * width),
        positions,
        _count(config, "vocab_size"),
        bias=True,
        norm_eps=_number(config, "layer_norm_epsilon", 1e-5),
        gelu=gelus[activation],  # type: ignore[arg-type]
    )


_NORM_EPS = {"olmo2": 1e-5, "mixtral": 1e-5, "olmoe": 1e-5}
"""Defaults of `rms_norm_eps` where they are not 1e-6."""
_THETA = {"smollm3": 2_000_000.0, "mixtral": 1_000_000.0}
"""Defaults of `rope_theta` where they are not 10,000."""
_QK_NORM = {"qwen3": "head", "qwen3_moe": "head", "olmo2": "projection", "olmoe": "projection"}
_EXPERTS_OF = ("mixtral", "qwen3_moe", "olmoe")
"""Kinds that are mixtures of experts."""
_HEAD_DIM = {"qwen3": 128}


def _llama(config: Config, context: int | None) -> ModelSpec:
    kind = config["model_type"]
    _only(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    width, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    layers = _count(config, "num_hidden_layers")
    head_dim = _count(config, "head_dim", _HEAD_DIM.get(kind, width // max(1, heads)))
    rope, theta = _rope(config, _THETA.get(kind, 10_000.0))
    own = _count(config, "max_position_embeddings")
    context = _shorter(own, context)
    window = _window(config, layers)
    return ModelSpec(
        "llama",
        layers,
        width,
        heads,
        _count(config, "num_key_value_heads", heads),
        _count(config, "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        context,
        _count(config, "vocab_size"),
        theta,
        norm_eps=_number(config, "rms_norm_eps", _NORM_EPS.get(kind, 1e-6)),
        head_dim=None if head_dim * heads == width else head_dim,
        rope=rope,
        qk_norm=_QK_NORM.get(kind),  # type: ignore[arg-type]
        qkv_bias=kind == "qwen2",
        window=window if window is not None and window < own else None,
        nope_every=_nope_every(config, layers) if kind == "smollm3" else None,
        post_norm=kind == "olmo2",
        max_context=own if own > context else None,
        experts=_experts(config) if kind in _EXPERTS_OF else None,
    )


def _experts(config: Config) -> Experts:
    """The experts of every layer.

    Raises:
        ValueError: only some layers have them, or a setting is not supported.
    """
    _only(config, router_jitter_noise=0.0, clip_qkv=None, decoder_sparse_step=1, mlp_only_layers=[])
    kind = config["model_type"]
    # Qwen3-MoE names a window that it does not use.
    _only(
        config,
        **({"use_sliding_window": False} if kind == "qwen3_moe" else {"sliding_window": None}),
    )
    by_default = {"mixtral": (8, 2, 0.001), "qwen3_moe": (128, 8, 0.001), "olmoe": (64, 8, 0.01)}
    count, active, balance = by_default[kind]
    normed = kind == "mixtral" or bool(config.get("norm_topk_prob"))
    return Experts(
        _count(config, "num_local_experts", _count(config, "num_experts", count)),
        _count(config, "num_experts_per_tok", active),
        "chosen" if normed else "all",
        _number(config, "router_aux_loss_coef", balance),
    )


def _rope(config: Config, default_theta: float) -> tuple[Rope, float]:
    """The scaling and the base: in `rope_parameters`, or where older files have them."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ValueError("config.json: the parameters of rope should be an object")
    theta = _number(found, "rope_theta", _number(config, "rope_theta", default_theta))
    for holder in (config, found):
        _only(holder, partial_rotary_factor=1.0)
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return Rope(), theta
    if kind == "linear":
        return Rope("linear", _number(found, "factor")), theta
    if kind == "llama3":
        low, high = _number(found, "low_freq_factor"), _number(found, "high_freq_factor")
        original = _count(found, "original_max_position_embeddings")
        return Rope("llama3", _number(found, "factor"), low, high, original), theta
    raise ValueError(f"config.json: rope scaling {str(kind)[:40]!r} is not supported")


def _window(config: Config, layers: int) -> int | None:
    """The window that all layers have; None for none.

    Raises:
        ValueError: some layers have it and others do not.
    """
    kind = config["model_type"]
    if kind in ("llama", "olmo2", *_EXPERTS_OF) or not config.get(
        "use_sliding_window", kind == "mistral"
    ):
        return None
    if config.get("sliding_window", 4096) is None:
        return None
    by_default = 0 if kind == "mistral" else min(_count(config, "max_window_layers", 28), layers)
    types = ["full_attention"] * by_default + ["sliding_attention"] * (layers - by_default)
    if kind == "smollm3":
        types = [""]  # its default follows from the layers without positions
    types = config.get("layer_types") or types
    if set(types) == {"full_attention"}:
        return None
    if set(types) != {"sliding_attention"}:
        raise ValueError("config.json: a window that only some layers have is not supported")
    return _count(config, "sliding_window", 4096)


def _nope_every(config: Config, layers: int) -> int | None:
    """Which layers have no positions: every so many-th, or none.

    Raises:
        ValueError: they are not so regular.
    """
    every = _count(config, "no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers")
    if rotates is None:
        return every
    if not isinstance(rotates, list) or len(rotates) < layers:
        raise ValueError("config.json: no_rope_layers should have a number for every layer")
    without = [layer + 1 for layer in range(layers) if not rotates[layer]]
    if not without:
        return None
    if without != list(range(without[0], layers + 1, without[0])):
        raise ValueError("config.json: no_rope_layers are not every so many-th layer")
    return without[0]


_READERS: dict[str, Callable[[Config, int | None], ModelSpec]] = {
    "gpt2": _gpt2,
    **dict.fromkeys(_EXPERTS_OF, _llama),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "olmo2", "smollm3"), _llama),
}


# --- writing -------------------------------------------------------------------------------------


def _gpt2_config(spec: ModelSpec) -> dict[str, Any]:
    gelus: dict[str, str] = {"exact": "gelu", "new": "gelu_new", "tanh": "gelu_pytorch_tanh"}
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocab,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_head": spec.heads,
        "n_inner": spec.ffn_width,
        "activation_function": gelus[spec.gelu],
        "layer_norm_epsilon": spec.norm_eps,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


_CLASSES = {
    "llama": ("LlamaForCausalLM", ()),
    "mistral": ("MistralForCausalLM", ("window",)),
    "qwen2": ("Qwen2ForCausalLM", ("qkv_bias",)),
    "qwen3": ("Qwen3ForCausalLM", ("qk_norm",)),
    "olmo2": ("Olmo2ForCausalLM", ("post_norm", "qk_norm")),
    "smollm3": ("SmolLM3ForCausalLM", ("nope_every",)),
    "mixtral": ("MixtralForCausalLM", ("experts",)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", ("experts", "qk_norm")),
    "olmoe": ("OlmoeForCausalLM", ("experts", "qk_norm")),
}
"""The classes by model type, with the switches that make their models."""


def _model_type(spec: ModelSpec) -> str:
    names = ("qk_norm", "qkv_bias", "window", "nope_every", "post_norm", "experts")
    used = {name for name in names if getattr(spec, name)}
    for kind, (_, switches) in _CLASSES.items():
        if used == set(switches) and spec.qk_norm == _QK_NORM.get(kind):
            return kind
    raise ValueError(f"transformers has no model with {' and '.join(sorted(used))}")


def _llama_config(spec: ModelSpec) -> dict[str, Any]:
    kind = _model_type(spec)
    if kind in ("qwen2", "olmo2", "smollm3", "olmoe") and spec.head_dim is not None:
        raise ValueError(f"transformers' {kind} has no free head_dim")
    config = {
        "model_type": kind,
        "architectures": [_CLASSES[kind][0]],
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.longest,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": _rope_config(spec),
        "attention_bias": False,
        "mlp_bias": False,
    }
    if kind == "mistral":
        config["sliding_window"] = spec.window
    if spec.nope_every is not None:
        config["no_rope_layers"] = [int(spec.has_positions(i)) for i in range(spec.layers)]
    if spec.experts is not None:
        config |= _experts_config(kind, spec.experts, spec.ffn_width)
    return config


def _experts_config(kind: str, experts: Experts, width: int) -> dict[str, Any]:
    """The settings of a mixture of experts, each ``width`` wide inside."""
    if kind == "mixtral" and experts.shares == "all":
        raise ValueError("transformers' mixtral has only shares of the chosen experts")
    config = {
        "num_experts" if kind == "olmoe" else "num_local_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance,
    }
    if kind == "mixtral":
        return config | {"sliding_window": None}
    config["norm_topk_prob"] = experts.shares == "chosen"
    # Older releases know the count of Qwen3-MoE by this name only.
    return config | {"num_experts": experts.count, "moe_intermediate_size": width}


def _rope_config(spec: ModelSpec) -> dict[str, Any] | None:
    rope = spec.rope
    if rope is None or rope.kind == "default":
        return None
    found = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "linear":
        return found
    return found | {
        "low_freq_factor": rope.low,
        "high_freq_factor": rope.high,
        "original_max_position_embeddings": rope.original,
    }
