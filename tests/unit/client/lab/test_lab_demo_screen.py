"""Layout of the demo's live view."""

from __future__ import annotations

import pytest

from client.lab.demo.screen import BARS, Screen, View, bar, layout, sparkline
from tests.support.control_fakes import example_snapshot


def _view(step: int = 3, dead: frozenset[str] = frozenset()) -> View:
    now = example_snapshot(step=step)
    return View(now, {"12D3KooWexamplepeer": "volunteer 1"}, dead, [3.0, 2.5, 2.0], 65)


def test_the_block_says_who_holds_what_and_fits_the_width() -> None:
    lines = layout(_view(), 40)
    assert all(len(line) < 40 for line in lines)
    assert "step  3/10  loss 2.5000" in lines[0]
    assert "stage 0  volunteer 1 serving v3" in lines
    assert "stage 1  nobody yet" in lines


def test_a_killed_volunteer_is_shown_as_such() -> None:
    assert "stage 0  volunteer 1 killed" in layout(
        _view(dead=frozenset({"12D3KooWexamplepeer"})), 80
    )


@pytest.mark.parametrize(("done", "filled"), [(0, 0), (5, 5), (10, 10), (99, 10)])
def test_bar(done: int, filled: int) -> None:
    assert bar(done, 10, 10) == "█" * filled + "░" * (10 - filled)


def test_sparkline_falls_with_its_values_and_is_no_wider_than_asked() -> None:
    assert sparkline([3, 2, 1], 10) == BARS[7] + BARS[4] + BARS[0]
    assert sparkline([1, 1], 10) == BARS[0] * 2
    assert len(sparkline(list(range(1000)), 60)) == 60


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
