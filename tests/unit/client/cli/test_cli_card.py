"""Model cards say what is known, and nothing in a name becomes markup."""

from dataclasses import replace

import msgspec
import pytest

from client.cli.models.card import Facts, card
from client.cli.models.model_source import Trained
from client.control.snapshot import AmendmentView, ContributorView
from client.control.updates import StepPoint
from protocol.ids import SwarmId
from tests.support.saved_swarms import founded


@pytest.fixture
def facts() -> Facts:
    trained = Trained(SwarmId("ab" * 32), founded().manifest, 50, state={}, model=None)
    told = StepPoint(49, 0.0, 1.5, 0.0)
    return Facts(trained=trained, held_out=told)


def test_it_says_what_the_model_is_and_how_it_was_trained(facts: Facts) -> None:
    text = card(facts)
    manifest = facts.trained.manifest
    tokens = 50 * manifest.microbatches_per_step * manifest.tokens_per_microbatch
    for words in (
        "license: #",
        "869,504 parameters",
        f"50 of 200 steps, {tokens:,} tokens",
        "1.5000 nats a token, 2.1640 bits per byte of text, at version 49, as members told",
        manifest.data.digest,
        f"founder    {manifest.founder}",
        facts.trained.swarm,
        "a token is a byte",
        "library_name: transformers",
    ):
        assert words in text, words


def test_it_says_what_the_founder_has_changed(facts: Facts) -> None:
    words = "the run is extended from 200 to 400 steps"
    longer = AmendmentView(number=1, words=words, steps=400, from_step=150)
    hotter = msgspec.structs.replace(
        longer, number=2, words="learning rate 0.003 in place of 0.002", from_step=212
    )
    changed = replace(facts.trained, amendments=[longer, hotter])
    text = card(msgspec.structs.replace(facts, trained=changed))
    assert "50 of 400 steps" in text
    assert (
        "changed by the founder, from step 150 on: the run is extended from 200 to 400 steps\n"
        in text
    )
    assert "changed by the founder, from step 212 on: learning rate 0.003 in place of" in text


def test_names_are_never_markup(facts: Facts) -> None:
    name = "x` <img src=x> [a](b)"
    manifest = msgspec.structs.replace(facts.trained.manifest, name=name)
    named = replace(facts.trained, manifest=manifest)
    board = [ContributorView(peer="12D3KooWpeer", name=name, microbatches=9)]
    text = card(msgspec.structs.replace(facts, trained=named, contributors=board))
    assert "- `12D3KooWpeer` `x' <img src=x> [a](b)`: 9, " in text
    assert "# `x' <img src=x> [a](b)`\n" in text
    assert text.count("```") == 2, "and what is quoted stays so"
