"""Layout of the demo's live view."""

from __future__ import annotations

import pytest

from client.lab.demo.screen import Screen, View, layout
from tests.support.control_fakes import example_snapshot


def _view(step: int = 3, dead: frozenset[str] = frozenset()) -> View:
    now = example_snapshot(step=step)
    return View(now, {"12D3KooWexamplepeer": "volunteer 1"}, dead, [3.0, 2.5, 2.0], 65)


def test_the_block_says_who_holds_what_and_who_was_killed_within_the_width() -> None:
    lines = layout(_view(), 40)
    assert all(len(line) < 40 for line in lines)
    assert "stage 0  volunteer 1 serving v3" in lines
    killed = _view(dead=frozenset({"12D3KooWexamplepeer"}))
    assert "stage 0  volunteer 1 killed" in layout(killed, 80)


def test_without_a_terminal_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    for _ in range(5):
        screen.show(_view(step=3))
    screen.show(_view(step=4))
    text = capsys.readouterr().err
    assert text.count("step  3/10") == 1
    assert text.count("step  4/10") == 1
    assert text.count("stage 0") == 1
    assert "\x1b" not in text
