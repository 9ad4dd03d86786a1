"""The table of a run: every figure with its range, every comparison as a ratio with its range."""

from __future__ import annotations

from tests.bench.rivals.records import Records


def markdown(records: Records) -> str:
    return ""
