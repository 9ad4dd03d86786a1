"""The page of figures is what the results say, and new figures take the place of old ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.bench.figures import PAGE, PROSE, Figure, page, read, replaced

FIGURE = Figure("speed", "steps", "3 s", "2-4 s", "python -m x", "A", "`abc`")


def test_the_page_is_current_with_the_results() -> None:
    assert PAGE.read_text() == page(read(), PROSE.read_text()), "run python -m tests.bench --page"


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


def test_the_tables_of_new_figures_are_replaced_where_they_were() -> None:
    size = msgspec.structs.replace(FIGURE, table="size")
    again = msgspec.structs.replace(FIGURE, value="2 s")
    assert replaced([FIGURE, FIGURE, size], [again]) == [again, size]
