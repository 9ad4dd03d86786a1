"""Four volunteers behind routers of four kinds, and one public relay: they train, and replace."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.netlab.four_routers import DIRECT, measured
from tests.netlab.internet import why_not

reason = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]


@pytest.mark.long
def test_a_swarm_behind_routers_of_four_kinds_counts_each_microbatch_once() -> None:
    steps = 3
    with tempfile.TemporaryDirectory(prefix="vol") as folder:
        result = measured(steps, Path(folder))
    assert result.ways["none"] == 0
    assert result.ways["punched"] >= DIRECT
    assert result.relayed_bytes > 0
    assert result.ledger.doubled == result.ledger.differing == 0
    assert result.ledger.missing == ()
    assert result.ledger.whole >= 2 * steps
