"""Model cards say what is known, and nothing in a name becomes markup."""

from __future__ import annotations

import msgspec
import pytest

from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.models.card import Facts, card
from client.cli.terminal.swarm_text import introduction
from client.control.snapshot import AmendmentView, ContributorView
from client.control.updates import StepPoint
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.mixture import Part
from model_zoo.specs.tokens import ChatFormat, TokenizerSpec
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest
from protocol.wire.envelope import Signer


@pytest.fixture
def facts() -> Facts:
    run = RunChoices(measure=False)
    founder = Signer(b"\x07" * 32).peer
    manifest = found_swarm(founder, run, ModelChoices(), OptimizerChoices()).manifest
    return Facts(
        swarm=SwarmId("ab" * 32),
        manifest=manifest,
        version=50,
        held_out=StepPoint(49, 0.0, 1.5, 0.0),
        own_microbatches=1234,
    )


def renamed(facts: Facts, **changes: object) -> Facts:
    manifest: Manifest = msgspec.structs.replace(facts.manifest, **changes)
    return msgspec.structs.replace(facts, manifest=manifest)


def test_it_says_what_the_model_is_and_how_it_was_trained(facts: Facts) -> None:
    text = card(facts)
    manifest = facts.manifest
    tokens = 50 * manifest.microbatches_per_step * manifest.tokens_per_microbatch
    for words in (
        "license: #",
        "869,504 parameters",
        f"50 of 200 steps, {tokens:,} tokens",
        "1.5000 nats a token, 2.1640 bits per byte of text, at version 49, as most members told",
        manifest.data.digest,
        f"founder    {manifest.founder}",
        "1,234 microbatches",
        facts.swarm,
        "a token is a byte",
        "library_name: transformers",
    ):
        assert words in text, words


def test_it_says_what_the_founder_has_changed(facts: Facts) -> None:
    longer = AmendmentView(number=1, words="the run is extended from 200 to 400 steps", steps=400)
    hotter = msgspec.structs.replace(
        longer, number=2, words="learning rate 0.003 in place of 0.002", from_step=212
    )
    text = card(msgspec.structs.replace(facts, amendments=[longer, hotter]))
    assert "50 of 400 steps" in text
    assert "changed by the founder: the run is extended from 200 to 400 steps\n" in text
    assert "changed by the founder, from step 212 on: learning rate 0.003 in place of" in text


def test_what_is_not_known_is_not_claimed(facts: Facts) -> None:
    nothing = {"held_out": None, "own_microbatches": 0}
    text = card(msgspec.structs.replace(facts, **nothing))
    assert "held-out loss: not known here" in text
    assert "who exported this" not in text


def test_contributors_are_named_once_and_not_without_end(facts: Facts) -> None:
    own, founder = PeerId("12D3KooWown"), facts.manifest.founder
    many = tuple(ContributorView(peer=f"12D3KooWpeer{n}", microbatches=9) for n in range(130))
    text = card(msgspec.structs.replace(facts, own=own, contributors=many))
    assert "who exported this, `12D3KooWown`, computed 1,234 microbatches" in text
    assert "`12D3KooWpeer99`" in text
    assert "`12D3KooWpeer100`" not in text
    assert text.count(own) == text.count(founder) == 1


def test_names_are_never_markup(facts: Facts) -> None:
    name = "x` <img src=x> [a](b)"
    text = card(renamed(facts, name=name))
    assert "# `x' <img src=x> [a](b)`\n" in text
    assert text.count("```") == 2, "and what is quoted stays so"


def test_the_parts_of_a_mixture_have_their_shares(facts: Facts) -> None:
    parts = Part("web", 6000, "1" * 64, 3), Part("x` <b>", 2000, "2" * 64, 1)
    data = DataSpec("mixed", 8000, "ef" * 32, parts=parts)
    text = card(renamed(facts, data=data))
    assert f"75.00% of what was read: `web`, 6.00 kB, digest `{'1' * 64}`" in text
    assert "25.00% of what was read: `x' <b>`" in text
    said = "\n".join(introduction(renamed(facts, data=data).manifest, SwarmId("ab")))
    assert "a mixture of web 75.00%, " in said


def test_of_conversations_only_answers_are_learned(facts: Facts) -> None:
    brought = TokenizerSpec("cd" * 32, 1000, 256, "0.23", ChatFormat("{{ messages }}"))
    data = DataSpec("talk", 4 * 641, "ef" * 32, brought, Answers(64, 160))
    assert "only answers are learned, 25.0% of all tokens" in card(renamed(facts, data=data))
    adapter = card(msgspec.structs.replace(facts, library="peft"))
    assert "library_name: peft" in adapter


def test_local_rounds_are_told_to_whoever_reads_the_card_or_joins(facts: Facts) -> None:
    local = renamed(facts, local_rounds=LocalRounds(16, outer_momentum=0.5))
    text = card(local)
    for words in ("200 rounds of", "a step of its own after 16 microbatches", "in a round two"):
        assert words in text
    assert "local" not in card(facts)
