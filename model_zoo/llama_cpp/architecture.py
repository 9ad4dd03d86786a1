"""Which of llama.cpp's architectures computes what a model does, and the numbers that it asks for.

llama.cpp decides by the architecture's name what is computed; a model that it would compute
otherwise is refused, in words. Families say both (`specs/families`).
"""

from model_zoo.specs.family import Keys
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import NOT_PLAIN


class NotInGguf(ValueError):
    """llama.cpp cannot compute, or tokenize, as this model does; says why."""


def architecture(spec: ModelSpec) -> str:
    """Return the name of llama.cpp's architecture that computes what a model does.

    Raises:
        NotInGguf: there is none.
    """
    name = spec.facts.gguf
    if spec.narrow is not None:
        raise NotInGguf(f"{NOT_PLAIN}, and llama.cpp does not compute them")
    if problem := spec.facts.gguf_problem(spec):
        raise NotInGguf(f"llama.cpp's {name} {problem}")
    return name


def keys(spec: ModelSpec) -> Keys:
    """Return the numbers of a model, by the keys that its architecture reads.

    Raises:
        NotInGguf: llama.cpp has no such architecture.
    """
    name = architecture(spec)
    own = {
        "context_length": longest(spec),
        "embedding_length": spec.width,
        "block_count": spec.layers,
        "feed_forward_length": spec.ffn_width,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "vocab_size": spec.vocab,
    } | spec.facts.gguf_keys(spec)
    return {"general.architecture": name} | {f"{name}.{key}": own[key] for key in own}


def longest(spec: ModelSpec) -> int:
    """Return the longest sequence, in tokens, on which both compute the same.

    Most of its architectures look back on everything: beyond a window they would compute something
    else.
    """
    if spec.window is None or spec.facts.knows_windows:
        return spec.longest
    return min(spec.longest, spec.window)
