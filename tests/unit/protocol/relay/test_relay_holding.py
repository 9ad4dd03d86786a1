"""A slow circuit holds little, a fast one may hold its whole window, and none stands still."""

from __future__ import annotations

import pytest

from protocol.relay.holding import LEAST_BYTES, WINDOW_BYTES, Holding

PIECE = 16 * 1024


def held_at(rate: float, seconds: float) -> tuple[int, int]:
    """Pass pieces on at a rate; return the window that stays open, and all that was passed."""
    holding, window, passed, now = Holding(0.0), WINDOW_BYTES, 0, 0.0
    while now < seconds:
        assert window >= PIECE, "the sender may send no more"
        window -= PIECE  # the sender fills what it has
        now += PIECE / rate
        passed += PIECE
        window += holding.passed(PIECE, now)
    return window, passed


@pytest.mark.parametrize(
    ("rate", "open_bytes"),
    [
        (20_000, LEAST_BYTES),
        (60_000, LEAST_BYTES),
        (300_000, 150_000),
        (1_000_000, WINDOW_BYTES),
        (20_000_000, WINDOW_BYTES),
    ],
)
def test_the_window_is_half_a_second_of_the_rate(rate: float, open_bytes: int) -> None:
    window, passed = held_at(rate, 30.0)
    assert window == pytest.approx(open_bytes, rel=0.1)
    assert passed > 29 * rate


def test_a_circuit_that_was_idle_starts_again() -> None:
    holding = Holding(0.0)
    holding.passed(1000, 100.0)  # 10 bytes a second until now
    opened = sum(holding.passed(PIECE, 100.0 + number / 1000) for number in range(1000))
    assert opened > 900 * PIECE
