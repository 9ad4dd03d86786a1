"""Names beside ids: in lists, in words of the node, and never in place of an id."""

from __future__ import annotations

from client.control.names import by_short, named, with_names

ANNA, OTHER, WORDY = (f"12D3KooWexample{end}" for end in ("4AphPb", "9CqrSt", "stages"))
NAMES = {ANNA: "Anna's PC", OTHER: "Anna's PC"}


def test_two_members_with_one_name_are_told_apart_by_their_ids() -> None:
    assert named(ANNA, NAMES) == "Anna's PC (4AphPb)"
    assert named(OTHER, NAMES) == "Anna's PC (9CqrSt)"
    assert named(WORDY, NAMES) == "stages"


def test_words_of_the_node_get_names_where_ids_stand() -> None:
    shorts = by_short(NAMES)
    told = with_names("4AphPb is down; 9CqrSt took over, x4AphPb and 4AphPbx not", shorts)
    assert told == (
        "Anna's PC (4AphPb) is down; Anna's PC (9CqrSt) took over, x4AphPb and 4AphPbx not"
    )
    assert with_names("4AphPb is down", {}) == "4AphPb is down"


def test_an_id_that_looks_like_a_word_renames_no_word() -> None:
    assert with_names("all stages", by_short({WORDY: "Evil"})) == "all stages"


def test_an_end_that_two_ids_share_names_nobody() -> None:
    shorts = by_short({ANNA: "Anna", "12D3KooWsomebodyelse4AphPb": "Boris"})
    assert with_names("4AphPb is up", shorts) == "4AphPb is up"
