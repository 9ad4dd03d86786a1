"""``volunteer status matches``: readable, deaf to tricks."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from client.cli.terminal.output import printable
from client.control.matches import PayingMove
from client.views.report import matches_report
from tests.support.control_fakes import (
    example_matches,
    example_snapshot,
    example_stage,
)


def test_the_longest_reasons_fit_100_columns() -> None:
    wide = example_stage(stage=127, shared_level=999_999.0, obstacle="because " * 30)
    moves = [PayingMove(home=n, to=127) for n in range(20)]
    now = example_matches(stages=[wide] * 3, paying_moves=moves)
    assert max(map(len, matches_report(example_snapshot(), now).splitlines())) <= 100


@given(st.text())
def test_words_of_strangers_neither_break_lines_nor_drive_the_terminal(words: str) -> None:
    told = [msgspec.structs.replace(example_matches().explanations[0], words=f"told {words} end")]
    now = example_matches(stages=[example_stage(obstacle=words)], explanations=told)
    text = matches_report(example_snapshot(), now)
    assert printable(text) == text
    assert "\t" not in text


# --- the command -----------------------------------------------------------------------------
