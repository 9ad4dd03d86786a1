"""Write the page of figures from the results.

python -m tests.bench
"""

from __future__ import annotations

from tests.bench.figures import PAGE, write_page


def main() -> None:
    """Write the page, and say how many rows are of older code."""
    rows, stale = write_page()
    print(f"{PAGE}: {rows} rows, {stale} stale")


if __name__ == "__main__":
    main()
