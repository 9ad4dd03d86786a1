"""Mistral: a Llama with a window."""

from model_zoo.specs.families.llama import COMMON, LlamaLike


class Mistral(LlamaLike):
    """See the module's docstring."""

    name = model_type = "mistral"
    class_name, gguf = "MistralForCausalLM", "llama"
    rotates_neighbours = True
    switches = COMMON | {"head_dim", "window"}
    usual_window = 4096


FAMILY = Mistral()
