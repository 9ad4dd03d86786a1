"""The adapters of a model that is fine-tuned with frozen weights, from a founder's choices."""

from msgspec.structs import replace

from client.cli.founding.options import ModelChoices, refusals, usage
from model_zoo.specs.architecture import Base, Lora
from model_zoo.specs.model import ModelSpec

ALL = "all"
ALPHA_BY_RANK = 2.0
"""Factor of the adapters where nothing is chosen."""


def adapted(spec: ModelSpec, choices: ModelChoices, base: Base) -> ModelSpec:
    """Return the model with the chosen adapters; as it is without any.

    Args:
        spec: the model.
        choices: the founder's.
        base: type of the frozen matrices where none is chosen.

    Raises:
        UserError: the model cannot have them; says what it can have.
    """
    if choices.lora is None:
        for name in ("lora_alpha", "lora_targets", "lora_base"):
            if getattr(choices, name) is not None:
                raise usage(f"{name} without --lora", "give --lora a rank")
        return spec
    facts, wanted = spec.facts, choices.lora_targets
    linears = list(facts.linears(spec))
    names = list(facts.usual_targets) if wanted is None else wanted.replace(" ", "").split(",")
    # as in peft, the end of a name is enough
    ends = {name: [each for each in linears if f".{each}".endswith(f".{name}")] for name in names}
    known = [each for each in linears if names == [ALL] or any(each in ends[n] for n in names)]
    unknown = [] if names == [ALL] else [name for name in names if not ends[name]]
    alpha = ALPHA_BY_RANK * choices.lora if choices.lora_alpha is None else choices.lora_alpha
    with refusals("see --lora in volunteer create --help"):
        targets = (*known, *unknown)  # the model says which are unknown
        lora = Lora(choices.lora, float(alpha), targets, choices.lora_base or base)
        return replace(spec, lora=lora)
