"""The measurement of robust sums: its attacks are the published ones, its page shows medians."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.bench import robust

HONEST = torch.randn(11, 5000, generator=torch.Generator().manual_seed(3)) + 1.0


@pytest.mark.parametrize(("rule", "how"), robust.tried())
def test_every_rule_and_variant_is_near_the_mean_without_liars(rule: str, how: str) -> None:
    error = (robust.aggregated(rule, HONEST, 2, how) - HONEST.mean(0)).norm()
    assert error < 0.3 * HONEST.mean(0).norm()


def test_a_lie_little_is_enough_hides_among_the_honest() -> None:
    lie = robust.alie(HONEST[0], HONEST, 5)
    off = (lie - HONEST.mean(0)) / HONEST.std(0)
    assert torch.allclose(off, off[0].expand_as(off), atol=1e-3)
    assert -1 < off[0] < 0


def test_inner_products_of_the_attacks_are_negative() -> None:
    for name, lie in robust.lies(5).items():
        along = float(torch.dot(lie(HONEST[0], HONEST), HONEST.mean(0)))
        assert (along < 0) is (name not in ("none", "ALIE")), name


def test_the_page_shows_the_median_of_seeds_and_the_newest_of_each() -> None:
    row = robust.Row("loss", "sum", 4, 0, "none", 9.0, "nats", "100 steps", 1, "here")
    rows = [row, *(replace(row, value=value, seed=seed) for seed, value in ((1, 2.5), (2, 2.7)))]
    text = robust.markdown([replace(row, machine="elsewhere", value=7.0), *rows])
    assert "| 4 | 0 | none | 2.6 |" in text
    assert "Not shown: 1 runs of other machines." in text
