"""The model card of an export: ``README.md``, as the Hugging Face Hub shows it, which says itself
how a model of this library is loaded.

It says what this home has kept, which is a minute old if its volunteer runs. Names come from the
manifest, which a stranger may have written: they are shown as code and never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from client.cli.reach.home import Home
from client.cli.terminal.mixture_text import shares
from client.cli.terminal.swarm_text import introduction
from client.control.contributors import contributors_view
from client.control.snapshot import ContributorView
from client.control.updates import StepPoint
from client.store.paths import Kept
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from client.train.reporting.event_sink import bits_per_byte
from client.views.words import size as human_bytes
from model_zoo.specs.data import Answers
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.manifest import Manifest

if TYPE_CHECKING:
    from client.cli.models.model_source import Trained  # which imports torch

CARD = "README.md"
Library = Literal["transformers", "peft", "gguf"]
_HEAD = """---
license: # for the founder to fill in
library_name: {}
pipeline_tag: text-generation
---
"""


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a trained model."""

    trained: Trained
    held_out: StepPoint | None = None
    """The loss on held-out text that members told of the newest version up to this one; None: none
    was told here."""
    library: Library = "transformers"
    """What loads it: an adapter without its base peft, a model for llama.cpp gguf."""
    contributors: Sequence[ContributorView] = ()
    """The leaderboard, the most work first."""


def facts(home: Home, trained: Trained, library: Library) -> Facts:
    """Return what this home knows."""
    points = Persisted(home.folders.of(trained.swarm, Kept.HELD_OUT), list[StepPoint]).peek() or []
    told = [point for point in points if point.step <= trained.version]
    path = home.folders.of(trained.swarm, Kept.CONTRIBUTIONS)
    kept = Persisted(path, KeptContributions).peek() or KeptContributions()
    return Facts(
        trained=trained,
        held_out=max(told, key=lambda point: point.step, default=None),
        library=library,
        contributors=contributors_view(
            kept.counts, lambda peer: kept.names.get(peer, ""), trained.manifest
        ),
    )


def held_out_words(known: Facts) -> str:
    """Say how good the model is."""
    told, terms = known.held_out, known.trained.manifest.evaluation
    if told is None or terms is None:
        return "held-out loss: not known here: a volunteer of the swarm hears it while it trains"
    bits = bits_per_byte(told.loss, terms)
    return (
        f"held-out loss: {told.loss:.4f} nats a token, {bits:.4f} bits per byte of text, at "
        f"version {told.step:,}, as members told it of {terms.tokens:,} tokens"
    )


def card(known: Facts) -> str:
    """Return the text of a model card, Markdown."""
    manifest = known.trained.manifest
    tells = {
        "Training": _training(known),
        "Data": _data(manifest),
        "Contributors": _contributors(known),
    }
    described = "\n".join(introduction(manifest, known.trained.swarm)).replace("`", "'")
    parts = [
        f"{_HEAD.format(known.library)}\n# {_code(manifest.name)}\n\n"
        f"Trained by volunteers over the Internet.\n\n```\n{described}\n```\n"
    ]
    for title, lines in tells.items():
        if listed := "".join(f"- {line}\n" for line in lines):
            parts.append(f"\n## {title}\n\n{listed}")
    return "".join(parts)


def _training(known: Facts) -> Iterator[str]:
    """Yield what the description of the swarm does not say: how far it came, and how it went."""
    trained, manifest = known.trained, known.trained.manifest
    rule = manifest.optimizer
    batch = manifest.tokens_per_step
    yield f"in the swarm `{trained.swarm}`"
    yield f"{trained.version:,} of {trained.steps:,} steps, {trained.version * batch:,} tokens"
    yield f"{rule.name}, learning rate {_rate(rule)} with {rule.warmup_steps:,} steps of warm-up"
    for one in trained.amendments:
        yield f"changed by the founder, from step {one.from_step:,} on: {one.words}"
    yield held_out_words(known)


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


def _contributors(known: Facts) -> Iterator[str]:
    if known.contributors:
        yield "microbatches of the steps that the exporter closed, in the stages that it held:"
    for one in known.contributors:
        called = f" {_code(one.name)}" if one.name else ""
        yield (
            f"{_code(one.peer)}{called}: {one.microbatches:,}, {one.tokens:,} tokens, "
            f"{one.share:.1%}"
        )


def _code(words: str) -> str:
    """Show words as they are: no markup in them has an effect."""
    return f"`{words.replace('`', chr(39))}`"
