"""The model card of an export: ``README.md``, as the Hugging Face Hub shows it.

It says what this machine knows. Names come from the manifest, which a stranger may have written:
they are shown as code and never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from client.cli.models.held_out import held_out_words
from client.cli.terminal.mixture_text import shares
from client.control.snapshot import AmendmentView, ContributorView
from client.control.updates import StepPoint
from client.quantities import plural
from client.views.words import size as human_bytes
from model_zoo.specs.data import Answers
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.precision import POSSIBLE
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest

CARD = "README.md"
MAX_NAMED = 100
"""Members that are named."""
_HEAD = """---
license: # for the founder to fill in
library_name: {}
pipeline_tag: text-generation
---
"""
_GGUF = """llama-cli -m model.gguf -p "Once "

ollama create mine -f Modelfile
ollama run mine
"""
_PIPELINE = """
`transformers.pipeline("text-generation", model=".")` does the same in one line.
"""
_WHOLE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
ids = tokenizer("Once ", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))
"""
_ADAPTER = """from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("...")  # the model that the adapter belongs to
model = PeftModel.from_pretrained(base, ".")
"""
_ADAPTER_TOKENS = """tokenizer = AutoTokenizer.from_pretrained(".")
"""
_CHAT = """messages = [{"role": "user", "content": "Hello"}]
ids = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
).input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))
"""
_NO_TOKENIZER = (
    "\n`tokenizer.json` is missing: the tokenizer was not at hand when this was written.\n"
)


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a trained model."""

    swarm: SwarmId
    manifest: Manifest
    version: int
    has_tokenizer: bool
    held_out: StepPoint | None = None
    """The loss that members told last; None: it is not known here."""
    amendments: Sequence[AmendmentView] = ()
    """What the founder has changed in the run."""
    adapter_alone: bool = False
    """Whether the adapter is exported without its base."""
    gguf: bool = False
    """Whether it is exported for llama.cpp."""
    own: PeerId | None = None
    """The volunteer that exports; None: it did not train."""
    contributors: Sequence[ContributorView] = ()
    """The leaderboard, the most work first."""
    own_microbatches: int = 0
    """Of the volunteer that exports, in committed steps."""


def card(facts: Facts) -> str:
    """Return the text of a model card, Markdown."""
    manifest = facts.manifest
    tells = {
        "Model": _model(manifest),
        "Training": _training(facts),
        "Data": _data(manifest),
        "Contributors": _contributors(facts),
    }
    library = "peft" if facts.adapter_alone else "gguf" if facts.gguf else "transformers"
    parts = [f"{_HEAD.format(library)}\n# {_code(manifest.name)}\n"]
    if manifest.purpose:
        parts.append(f"\nIt is for: {_code(manifest.purpose)}\n")
    for title, lines in tells.items():
        parts.append(f"\n## {title}\n\n" + "".join(f"- {line}\n" for line in lines))
    if facts.gguf:
        return "".join([*parts, f"\n## Use\n\n```sh\n{_GGUF}```\n"])
    parts.append(f"\n## Use\n\n```python\n{_use(facts)}```\n")
    if not facts.has_tokenizer:
        parts.append(_NO_TOKENIZER)
    elif not facts.adapter_alone:
        parts.append(_PIPELINE)
    return "".join(parts)


def _use(facts: Facts) -> str:
    """Code that writes a short text: short enough for the model."""
    few = min(50, facts.manifest.model.longest // 2)
    return _example(facts).replace("max_new_tokens=50", f"max_new_tokens={few}")


def _example(facts: Facts) -> str:
    brought = facts.manifest.data.tokenizer
    if facts.adapter_alone:
        use = _ADAPTER
        if facts.has_tokenizer:
            use = use.replace("ForCausalLM\n", "ForCausalLM, AutoTokenizer\n", 1) + _ADAPTER_TOKENS
    else:
        use = _WHOLE
    if brought is None or not brought.chat or not facts.has_tokenizer:
        return use
    return use.split("ids = ")[0] + _CHAT


def _model(manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    yield (
        f"{model.architecture}: {plural(model.layers, 'layer')} of width {model.width}, "
        f"{plural(model.heads, 'head')}, {model.vocab:,} tokens, "
        f"{model.parameter_count:,} parameters"
    )
    yield f"takes sequences of {model.longest:,} tokens; trained on those of {model.context:,}"
    if model.tied:
        yield "the output projection is the embedding's own matrix"
    else:
        yield "the output projection has weights of its own, not those of the embedding"


def _training(facts: Facts) -> Iterator[str]:
    manifest, rule = facts.manifest, facts.manifest.optimizer
    batch = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    yield f"trained by volunteers over the Internet, in the swarm `{facts.swarm}`"
    begins = "the weights of an imported model" if manifest.start else "random weights"
    yield f"begins with {begins}; {plural(manifest.stage_count, 'pipeline stage')}"
    if (lora := manifest.model.lora) is not None:
        yield (
            f"only adapters are trained (LoRA, rank {lora.rank}, alpha {lora.alpha:g}) of "
            f"{', '.join(lora.targets)}; all else is frozen, in {lora.base}"
        )
    yield (
        f"{facts.version:,} of {_steps(facts):,} steps of {batch:,} tokens, "
        f"{facts.version * batch:,} tokens"
    )
    yield (f"{rule.name}, learning rate {_rate(rule)} with {rule.warmup_steps:,} steps of warm-up")
    averaged = "gradients"
    if (rounds := manifest.local_rounds) is not None:
        averaged, own = "what they moved", rounds.inner_microbatches
        momentum = f" and momentum {rounds.outer_momentum:g}" if rounds.outer_momentum else ""
        yield (
            f"a step is a local round: each volunteer took steps of its own, after every "
            f"{plural(own, 'microbatch', 'microbatches')}; the mean of what they moved is applied "
            f"at rate {rounds.outer_lr:g}{momentum}"
        )
    if manifest.compute != "fp32":
        types = " or ".join(POSSIBLE[manifest.compute])
        yield f"passes in {types}, parameters and updates in fp32"
    for one in facts.amendments:
        when = "" if one.from_step is None else f", from step {one.from_step:,} on"
        yield f"changed by the founder{when}: {one.words}"
    yield (
        f"between stages {manifest.boundary_codec}; {averaged} averaged in "
        f"{manifest.averaging_codec} by {manifest.aggregation}"
    )
    yield f"held-out loss: {held_out_words(manifest, facts.held_out)}"


def _steps(facts: Facts) -> int:
    return facts.amendments[-1].steps if facts.amendments else facts.manifest.steps


def _rate(rule: OptimizerSpec) -> str:
    if rule.schedule == "constant":
        return f"{rule.lr:g}"
    late = "" if rule.decay_from is None else f" from step {rule.decay_from:,} on"
    return f"{rule.lr:g} to {rule.min_lr:g}{late} ({rule.schedule})"


def _data(manifest: Manifest) -> Iterator[str]:
    data = manifest.data
    yield f"{_code(data.name)}, {human_bytes(data.size_bytes)} of tokens"
    yield f"digest `{data.digest}`"
    for part, share in zip(data.parts, shares(data.parts), strict=True):
        yield (
            f"{share:.2%} of what was read: {_code(part.name)}, {human_bytes(part.size_bytes)}, "
            f"digest `{part.digest}`"
        )
    if isinstance(data.answers, Answers):
        yield (
            f"conversations in windows of {data.answers.context:,} tokens; only answers are "
            f"learned, {data.answers.learned / data.tokens:.1%} of all tokens"
        )
    if data.tokenizer is not None:
        yield f"tokenizer of {data.vocab:,} tokens, digest `{data.tokenizer.digest}`"
    else:
        yield "a token is a byte of the text, and its id is the byte's value"


def _contributors(facts: Facts) -> Iterator[str]:
    of_one = facts.manifest.tokens_per_microbatch
    yield f"founded by `{facts.manifest.founder}`"
    if facts.own_microbatches:
        named = "" if facts.own is None else f", {_code(facts.own)},"
        yield (
            f"who exported this{named} computed {facts.own_microbatches:,} microbatches of "
            f"committed steps, {facts.own_microbatches * of_one:,} tokens, counted per stage"
        )
    if facts.contributors:
        yield "microbatches of the steps that its volunteer closed, in the stages that it held:"
    for one in facts.contributors[:MAX_NAMED]:
        called = f" {_code(one.name)}" if one.name else ""
        yield (
            f"{_code(one.peer)}{called}: {one.microbatches:,}, {one.tokens:,} tokens, "
            f"{one.share:.1%}"
        )


def _code(words: str) -> str:
    """Show words as they are: no markup in them has an effect."""
    return f"`{words.replace('`', chr(39))}`"
