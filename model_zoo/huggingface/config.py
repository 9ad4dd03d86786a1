"""`config.json`, from and to a spec; `specs/families` say what is in it."""

from difflib import get_close_matches
from typing import Any

from msgspec.structs import asdict

from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import NOT_PLAIN
from model_zoo.specs.settings import Config

_BY_TYPE = {family.model_type: family for family in ARCHITECTURES.values()}


def to_spec(config: Config, context: int | None = None) -> ModelSpec:
    """Return the model that a configuration describes.

    Args:
        config: the parsed file, from anywhere.
        context: longest sequence to train, tokens; None: the model's own.

    Raises:
        ValueError: the zoo has no such model, or a setting is missing, out of range or not
            supported.
    """
    family = _BY_TYPE.get(str(config.get("model_type")))
    if family is None:
        raise ValueError(_unknown(str(config.get("model_type"))[:40]))
    if config.get("quantization_config"):
        raise ValueError("its weights are quantised: take the folder with bf16, fp16 or fp32")
    return ModelSpec(**asdict(family.read(config, context)))


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """Return the configuration of the class of `transformers` that computes the same.

    Raises:
        ValueError: there is none.
    """
    if spec.narrow is not None:
        raise ValueError(f"{NOT_PLAIN}, and no class of transformers computes them")
    return {
        "model_type": spec.facts.model_type,
        "architectures": [spec.facts.class_name],
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied,
    } | spec.facts.write(spec)


def is_tied(config: Config) -> bool:
    """Whether the output projection is the embedding's own matrix; ``config`` is one of ours."""
    by_default = _BY_TYPE[config["model_type"]].tied_by_default
    return bool(config.get("tie_word_embeddings", by_default))


def _unknown(kind: str) -> str:
    """The words for a model type that is not known, with one like it that is."""
    near = "".join(f"; the nearest is {name}" for name in get_close_matches(kind, _BY_TYPE, 1))
    return f"model type {kind!r} is unknown{near}; known are {', '.join(_BY_TYPE)}"
