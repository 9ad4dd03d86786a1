"""Model cards say what is known, and nothing in a name becomes markup."""

import msgspec

from client.cli.models.card import Facts, card
from client.cli.models.model_source import Trained
from client.control.snapshot import ContributorView
from protocol.ids import SwarmId
from tests.support.saved_swarms import founded


def test_names_are_never_markup() -> None:
    name = "x` <img src=x> [a](b)"
    manifest = msgspec.structs.replace(founded().manifest, name=name)
    trained = Trained(SwarmId("ab" * 32), manifest, 50, state={}, model=None)
    board = [ContributorView(peer="12D3KooWpeer", name=name, microbatches=9)]
    text = card(Facts(trained=trained, contributors=board))
    assert "- `12D3KooWpeer` `x' <img src=x> [a](b)`: 9, " in text
    assert "# `x' <img src=x> [a](b)`\n" in text
    assert text.count("```") == 2, "and what is quoted stays so"
