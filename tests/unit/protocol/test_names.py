"""Nicknames and purposes: which may be shown, and that nothing else is."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.membership.advert import ADVERTS
from protocol.names import (
    MAX_NICKNAME_BYTES,
    MAX_NICKNAME_CHARS,
    MAX_PURPOSE_CHARS,
    nickname_problem,
    normal,
    purpose_problem,
    shown_nickname,
)
from tests.support.protocol_examples import advert


@pytest.mark.parametrize(
    "name", ["", "Anna", "Anna's PC", "żółw", "李雷", "x" * MAX_NICKNAME_CHARS, "İ-1", "नमस्ते", "🐢"]
)
def test_names_of_people_may_be_shown(name: str) -> None:
    assert nickname_problem(name) is None
    assert shown_nickname(name) == name


@pytest.mark.parametrize(
    "name",
    [
        " Anna",
        "An  na",
        "An\u00a0na",
        "An\nna",
        "\x1b[31mAnna",
        "An\u200bna",  # zero width
        "\ufeffAnna",
        "An\u00adna",
        "anna\u202etxt",  # reading order
        "An\u2028na",
        "\ud800",
        "\ue000",
        "\u0378",  # nobody's yet
        "e\u0301",  # not composed
        "\uff21nna",  # full width
        "Bob (4AphPb)",
        "x" * (MAX_NICKNAME_CHARS + 1),
        "🐢" * (MAX_NICKNAME_BYTES // 4 + 1),
    ],
)
def test_what_hides_or_spoils_a_terminal_is_not_shown(name: str) -> None:
    assert nickname_problem(name)
    assert shown_nickname(name) == ""


@given(st.text(max_size=40))
def test_whatever_is_shown_is_harmless(text: str) -> None:
    shown = shown_nickname(text)
    assert len(shown) <= MAX_NICKNAME_CHARS
    assert len(shown.encode()) <= MAX_NICKNAME_BYTES
    assert shown == shown.strip() == unicodedata.normalize("NFKC", shown)
    assert shown.isprintable()


def test_what_a_user_types_is_brought_into_the_one_spelling() -> None:
    assert normal("  Anna's\t  e\u0301 ") == "Anna's \u00e9"


def test_a_purpose_is_longer_and_may_have_brackets() -> None:
    assert purpose_problem("Haiku in Basque (for a school)") is None
    assert purpose_problem("x" * MAX_PURPOSE_CHARS) is None
    assert purpose_problem("x" * (MAX_PURPOSE_CHARS + 1))
    assert purpose_problem("two\nlines")


def test_an_advert_with_a_bad_name_counts_and_its_name_is_dropped() -> None:
    said = (advert(claimed_name=name) for name in ("a\u202eb", "Anna"))
    bad, good = (ADVERTS.parse(ADVERTS.encode(one)) for one in said)
    assert (bad.nickname, bad.claimed_name) == ("", "a\u202eb")
    assert good.nickname == "Anna"
