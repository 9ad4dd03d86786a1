"""Words of strangers cannot do anything to the terminal but be read."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.views.text import MAX_CHARACTERS, REPLACEMENT, clean, fit, width, wrap

HOSTILE = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]52;c;aGk=\x07", ""),
    ("a\x1b[2Jb\x1b[Hc", "abc"),
    ("\x9b31mc1", "c1"),
    ("\x1bPq payload \x1b\\x", "x"),
    ("line\nfeed\r\nback\ttab", "line feed  back tab"),
    ("a\u2028b\u2029c\x85d", "a b c d"),
    ("user\u202egnp.exe", f"user{REPLACEMENT}gnp.exe"),
    ("\u2066isolated\u2069", f"{REPLACEMENT}isolated{REPLACEMENT}"),
    ("zero\u200bwidth\ufeff", f"zero{REPLACEMENT}width{REPLACEMENT}"),
    ("bell\x07 back\x08space \x00 del\x7f", f"bell{REPLACEMENT} back{REPLACEMENT}space "
     f"{REPLACEMENT} del{REPLACEMENT}"),
    ("tag\U000e0041", f"tag{REPLACEMENT}"),
    ("private \ue000", f"private {REPLACEMENT}"),
    ("e" + "\u0301" * 40, "e\u0301\u0301"),
    ("[red]not markup[/red]", "[red]not markup[/red]"),
    ("plain ~ text", "plain ~ text"),
    ("Grüße 你好 ✓", "Grüße 你好 ✓"),
    ("\ud800 lone surrogate", f"{REPLACEMENT} lone surrogate"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "harmless"), HOSTILE)
def test_hostile_text_is_made_harmless(raw: str, harmless: str) -> None:
    assert clean(raw) == harmless


def test_long_text_is_cut_whatever_it_is() -> None:
    assert len(clean("x" * 10**6)) == MAX_CHARACTERS
    assert len(clean("\x1b[31m" * 10**5)) <= MAX_CHARACTERS
    assert clean("x" * 50, 10) == "x" * 9 + "…"


@given(st.text(st.characters(codec=None), max_size=300))
@example("\x1b" * 10)
def test_nothing_that_is_clean_controls_the_terminal(raw: str) -> None:
    found = clean(raw)
    assert clean(found) == found
    for character in found:
        assert character == REPLACEMENT or unicodedata.category(character)[0] != "C"
        assert unicodedata.category(character) not in ("Zl", "Zp")


@given(st.text(max_size=80), st.integers(0, 60), st.booleans())
def test_fitted_text_has_just_that_width(raw: str, cells: int, right: bool) -> None:
    assert width(fit(clean(raw), cells, right=right)) == cells


@given(st.text(max_size=200), st.integers(4, 60), st.integers(1, 6))
def test_wrapped_lines_fit(raw: str, cells: int, lines: int) -> None:
    found = wrap(clean(raw), cells, lines)
    assert len(found) <= lines
    assert all(width(line) <= cells for line in found)


def test_wrapping_breaks_at_blanks_and_loses_no_word() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    assert wrap(text, 16) == ["the quick brown", "fox jumps over", "the lazy dog"]
    assert wrap("x" * 10, 4) == ["xxxx", "xxxx", "xx"]
    assert wrap(text, 16, 2) == ["the quick brown", "fox jumps over …"]
    assert wrap("", 10) == []
