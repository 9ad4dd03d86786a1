"""Prices of stages as values and as text; imports no torch. ``pricing`` determines them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class StagePrice(Struct, frozen=True):
    """One stage's cost for one microbatch, forward and backward."""

    stage: int
    layers: int
    flops: float
    """The manifest's value: measured seconds at the founder's speed, otherwise computed."""
    counted_flops: float
    """Multiplications and additions, counted."""
    seconds: float | None
    """Measured on one thread of the founder's machine; None: computed only."""


def table(prices: Sequence[StagePrice]) -> str:
    """Return the prices as text, one line per stage."""
    lines = ["stage  layers  GFLOP/microbatch  estimated  measured"]
    for each in prices:
        seconds = "-" if each.seconds is None else f"{1000 * each.seconds:.1f} ms"
        figures = f"{each.flops / 1e9:>16.3f}  {each.counted_flops / 1e9:>9.3f}"
        lines.append(f"{each.stage:>5}  {each.layers:>6}  {figures}  {seconds:>8}")
    return "\n".join(lines)
