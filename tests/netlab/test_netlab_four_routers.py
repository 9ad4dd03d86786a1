"""Four volunteers behind routers of four kinds, and one public relay: they train, and replace."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

import pytest

from tests.bench import homes
from tests.netlab.internet import why_not

reason = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]


@pytest.mark.long
def test_a_swarm_behind_routers_of_four_kinds_counts_each_microbatch_once() -> None:
    asked = Namespace(
        mbit=20.0,
        rtt_ms=80.0,
        sequences=16,
        microbatches=8,
        steps=3,
        no_kill=False,
        settle_s=homes.START_S,
    )
    routers = {**homes.HOMES, homes.SPARE: homes.HOMES["port"]}
    with tempfile.TemporaryDirectory(prefix="vol") as folder:
        result = homes.measured(routers, asked, Path(folder))
    assert result.ways.get("none", 0) == 0
    assert result.ways["punched"] >= homes.DIRECT
    assert result.relayed_bytes > 0
    assert result.replaced_s > 0
    assert result.ledger.doubled == result.ledger.differing == 0
    assert result.ledger.missing == ()
    assert result.ledger.whole >= 2 * asked.steps
