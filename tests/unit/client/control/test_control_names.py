"""Names beside ids: in lists, in words of the node, and never in place of an id."""

from __future__ import annotations

from client.control.names import named, with_names

ANNA, OTHER, WORDY = (f"12D3KooWexample{end}" for end in ("4AphPb", "9CqrSt", "stages"))
NAMES = {ANNA: "Anna's PC", OTHER: "Anna's PC"}


def test_two_members_with_one_name_are_told_apart_by_their_ids() -> None:
    assert named(ANNA, NAMES) == "Anna's PC (4AphPb)"
    assert named(OTHER, NAMES) == "Anna's PC (9CqrSt)"
    assert named(WORDY, NAMES) == "stages"


def test_words_about_members_get_their_names_beside_the_ends_of_their_ids() -> None:
    words = "4AphPb is down; 9CqrSt took over, x4AphPb and 4AphPbx not"
    assert with_names(words, (ANNA, OTHER), NAMES) == (
        "Anna's PC (4AphPb) is down; Anna's PC (9CqrSt) took over, x4AphPb and 4AphPbx not"
    )
    assert with_names("4AphPb is down", (ANNA,), {}) == "4AphPb is down"


def test_an_id_that_looks_like_a_word_renames_no_word_of_an_event_about_others() -> None:
    assert with_names("all stages", (ANNA,), {WORDY: "Evil", ANNA: "Anna"}) == "all stages"
