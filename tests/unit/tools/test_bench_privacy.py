"""The attacks of the privacy benchmark do what they say, on tensors whose answer is known."""

from __future__ import annotations

import pytest
import torch

from tests.bench.privacy import (
    Seen,
    fit,
    recovered,
    rotation,
    rotation_from_axes,
    rotation_from_known,
    sum_rows,
)

WIDTH, VOCAB = 16, 12


def seen(seed: int, count: int = 4000) -> Seen:
    """Return tokens, the first of them most frequent, with tensors that stand for them."""
    table = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    tokens = (VOCAB * drawn.square()).long()
    around = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    return Seen(tokens, table[tokens] + 0.1 * around)


def test_the_inverter_reads_plain_tensors_and_not_rotated_ones() -> None:
    inverter, unknown = fit(seen(2), VOCAB), seen(4)
    assert recovered(inverter, unknown) > 0.95
    hidden = Seen(unknown.tokens, unknown.numbers @ rotation(WIDTH, 5))
    assert recovered(inverter, hidden) < 0.5


def test_as_many_known_tokens_as_channels_give_the_rotation_away() -> None:
    secret, unknown = rotation(WIDTH, 5), seen(4)
    crossed = unknown.numbers @ secret
    found = rotation_from_known(unknown.numbers[:WIDTH], crossed[:WIDTH])
    torch.testing.assert_close(found, secret, atol=1e-3, rtol=1e-3)
    inverter = fit(seen(2), VOCAB)
    assert recovered(inverter, Seen(unknown.tokens, crossed @ found.T)) > 0.95


def test_skewed_tensors_give_a_rotation_away_without_a_known_token() -> None:
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(1, 5, WIDTH)
    first, second = (
        spread * torch.empty(50_000, WIDTH).exponential_(generator=generator) for _ in range(2)
    )
    secret = rotation(WIDTH, 5)
    found = rotation_from_axes(first, second @ secret)
    torch.testing.assert_close(found, secret, atol=0.1, rtol=0)


def test_a_homomorphic_sum_is_the_sum() -> None:
    pytest.importorskip("phe")
    assert len(list(sum_rows(1))) == 2
