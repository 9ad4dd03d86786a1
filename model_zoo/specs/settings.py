"""A `config.json`, setting by setting; whatever it says may come from anybody."""

from collections.abc import Mapping, Sequence
from typing import Any

from model_zoo.specs.architecture import Rope

Config = Mapping[str, Any]
"""The file, parsed."""
MOST = 1e30
"""No setting is a larger number."""


def count(config: Config, name: str, default: int | None = None) -> int:
    """Return an integer.

    Raises:
        ValueError: it is none, or missing without a ``default``.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int:
        raise ValueError(f"config.json: {name} should be an integer, it is {str(value)[:40]!r}")
    return value


def number(config: Config, name: str, default: float | None = None) -> float:
    """Return a number.

    Raises:
        ValueError: it is none, or missing without a ``default``.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) not in (int, float) or not -MOST <= value <= MOST:  # type: ignore[operator]
        raise ValueError(f"config.json: {name} should be a number, it is {str(value)[:40]!r}")
    return float(value)  # type: ignore[arg-type]


def optional(config: Config, name: str, default: float | None) -> float | None:
    """Return a number or None; a file that leaves it out means ``default``."""
    if name not in config:
        return default
    return None if config[name] is None else number(config, name)


def only(config: Config, supported: Mapping[str, Any]) -> None:
    """Refuse settings that have another value than the supported one, which is their default.

    Raises:
        ValueError: one has.
    """
    for name, value in supported.items():
        found = config.get(name)
        if found is not None and found != value:
            raise ValueError(f"config.json: {name} {str(found)[:40]!r} is not supported")


def every(marks: Sequence[object], name: str) -> int | None:
    """Return n where every n-th layer is marked; None where none is.

    Raises:
        ValueError: they are not so regular; says so of the setting ``name``.
    """
    marked = [layer + 1 for layer, mark in enumerate(marks) if mark]
    if not marked:
        return None
    if marked != list(range(marked[0], len(marks) + 1, marked[0])):
        raise ValueError(f"config.json: {name} are not every so many-th layer")
    return marked[0]


def rope_settings(config: Config) -> Config:
    """Return the scaling of rotary angles: `rope_parameters`, or where older files have it.

    Raises:
        ValueError: it is no object.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ValueError("config.json: the parameters of rope should be an object")
    return found


def read_rope(found: Config, own: int, dims: int | None = None) -> Rope:
    """Return the scaling of rotary angles.

    Args:
        found: the settings.
        own: the longest sequence that the model takes.
        dims: numbers of each head that are rotated; None: all.

    Raises:
        ValueError: its kind is not supported, or a number is missing.
    """
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return Rope(dims=dims)
    if kind not in ("linear", "llama3", "yarn"):
        raise ValueError(f"config.json: rope scaling {str(kind)[:40]!r} is not supported")
    factor = number(found, "factor")
    if kind == "linear":
        return Rope("linear", factor, dims=dims)
    if kind == "llama3":
        low, high = number(found, "low_freq_factor"), number(found, "high_freq_factor")
        original = count(found, "original_max_position_embeddings")
        return Rope("llama3", factor, low, high, original, dims=dims)
    # mscale is of models with another attention than ours
    only(found, {"truncate": True, "mscale": 0, "mscale_all_dim": 0})
    low, high = number(found, "beta_slow", 1.0), number(found, "beta_fast", 32.0)
    original = count(found, "original_max_position_embeddings", own)
    magnitude = optional(found, "attention_factor", None)
    return Rope("yarn", factor, low, high, original, magnitude, dims)


def write_rope(rope: Rope) -> dict[str, Any]:
    """Return the settings of a scaling; empty where there is none."""
    if rope.kind == "default":
        return {}
    found: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "linear":
        return found
    found["original_max_position_embeddings"] = rope.original
    if rope.kind == "llama3":
        return found | {"low_freq_factor": rope.low, "high_freq_factor": rope.high}
    found |= {"beta_slow": rope.low, "beta_fast": rope.high}
    return found | ({} if rope.magnitude is None else {"attention_factor": rope.magnitude})
