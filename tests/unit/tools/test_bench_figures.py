"""The page of figures is what the results say, and new figures take the place of old ones."""

import msgspec

from tests.bench.figures import PAGE, PROSE, Figure, page, read, replaced

FIGURE = Figure("speed", "steps", "3 s", "2-4 s", "python -m x", "A", "`abc`")


def test_the_page_is_current_with_the_results() -> None:
    assert PAGE.read_text() == page(read(), PROSE.read_text()), "run python -m tests.bench --page"


def test_the_tables_of_new_figures_are_replaced_where_they_were() -> None:
    size = msgspec.structs.replace(FIGURE, table="size")
    again = msgspec.structs.replace(FIGURE, value="2 s")
    assert replaced([FIGURE, FIGURE, size], [again]) == [again, size]
