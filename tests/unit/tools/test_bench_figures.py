"""The page of figures is what the results say, and new figures take the place of old ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.bench.figures import PAGE, PROSE, Figure, page, read, replaced
from tests.bench.renew import PARTS, Failed, run

FIGURE = Figure("speed", "steps", "3 s", "2-4 s", "python -m x", "A", "`abc`")


def test_the_page_is_current_with_the_results() -> None:
    assert PAGE.read_text() == page(read(), PROSE.read_text()), "run python -m tests.bench --page"


@pytest.mark.parametrize("figure", read(), ids=lambda figure: figure.what)
def test_a_row_says_how_it_was_measured_and_what(figure: Figure) -> None:
    assert all((figure.value, figure.command, figure.machine, figure.code))
    assert not any("|" in cell for cell in (figure.what, figure.value, figure.spread))


def test_a_line_that_is_no_figure_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"table": "speed"}\n')
    with pytest.raises(msgspec.ValidationError):
        read(tmp_path / "x.jsonl")


def test_tables_are_put_where_the_prose_wants_them() -> None:
    written = page([FIGURE], "Before.\n\n{{speed}}\n\n{{size}}\n")
    assert "| steps | 3 s | 2-4 s | `python -m x` | A | `abc` |" in written
    assert "not measured yet" in written.splitlines()[-1]
    with pytest.raises(KeyError, match="speed"):
        page([FIGURE], "No place.")


def test_each_part_has_a_place_on_the_page() -> None:
    for part in PARTS.values():
        assert f"{{{{{part.table}}}}}" in PROSE.read_text()


def test_the_tables_of_new_figures_are_replaced_where_they_were() -> None:
    size = msgspec.structs.replace(FIGURE, table="size")
    again = msgspec.structs.replace(FIGURE, value="2 s")
    assert replaced([FIGURE, FIGURE, size], [again]) == [again, size]


def test_a_part_that_fails_says_what_it_ran() -> None:
    with pytest.raises(Failed, match="false ended with 1"):
        run("false")
