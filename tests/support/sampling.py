"""Text from a model, all at once."""

from typing import Any

from model_zoo.sample import stream


def generate(*given: Any, **options: Any) -> str:
    """Return the continuation that `stream` yields."""
    return "".join(stream(*given, **options))
