"""The model card of an export: ``README.md``, as the Hugging Face Hub shows it, which says itself
how a model of this library is loaded.

It says what this machine knows. Names come from the manifest, which a stranger may have written:
they are shown as code and never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from client.cli.models.kept import held_out_words
from client.cli.terminal.mixture_text import shares
from client.cli.terminal.swarm_text import introduction
from client.control.snapshot import AmendmentView, ContributorView
from client.control.updates import StepPoint
from client.views.words import size as human_bytes
from model_zoo.specs.data import Answers
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest

CARD = "README.md"
Library = Literal["transformers", "peft", "gguf"]
MAX_NAMED = 100
"""Members that are named."""
_HEAD = """---
license: # for the founder to fill in
library_name: {}
pipeline_tag: text-generation
---
"""


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a trained model."""

    swarm: SwarmId
    manifest: Manifest
    version: int
    held_out: StepPoint | None = None
    """The loss that members told last; None: it is not known here."""
    amendments: Sequence[AmendmentView] = ()
    """What the founder has changed in the run."""
    library: Library = "transformers"
    """What loads it: an adapter without its base peft, a model for llama.cpp gguf."""
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
        "Training": _training(facts),
        "Data": _data(manifest),
        "Contributors": _contributors(facts),
    }
    described = "\n".join(introduction(manifest, facts.swarm)).replace("`", "'")
    parts = [
        f"{_HEAD.format(facts.library)}\n# {_code(manifest.name)}\n\n"
        f"Trained by volunteers over the Internet.\n\n```\n{described}\n```\n"
    ]
    for title, lines in tells.items():
        parts.append(f"\n## {title}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "".join(parts)


def _training(facts: Facts) -> Iterator[str]:
    """Yield what the description of the swarm does not say: how far it came, and how it went."""
    manifest, rule = facts.manifest, facts.manifest.optimizer
    batch = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    steps = facts.amendments[-1].steps if facts.amendments else manifest.steps
    yield f"in the swarm `{facts.swarm}`"
    yield f"{facts.version:,} of {steps:,} steps, {facts.version * batch:,} tokens"
    yield f"{rule.name}, learning rate {_rate(rule)} with {rule.warmup_steps:,} steps of warm-up"
    for one in facts.amendments:
        when = "" if one.from_step is None else f", from step {one.from_step:,} on"
        yield f"changed by the founder{when}: {one.words}"
    yield f"held-out loss: {held_out_words(manifest, facts.held_out)}"


def _rate(rule: OptimizerSpec) -> str:
    if rule.schedule == "constant":
        return f"{rule.lr:g}"
    late = f" from step {rule.falls_from:,} on" if rule.schedule == "wsd" else ""
    return f"{rule.lr:g} to {rule.min_lr:g}{late} ({rule.schedule})"


def _data(manifest: Manifest) -> Iterator[str]:
    data = manifest.data
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
