"""What the engine passes between the membership, the matching and the seats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from train_swarm import ADVERT, open_swarm

from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.matching.machine import Matching
from protocol.membership.shared import POSTING


async def test_who_enters_late_hears_what_stewards_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its worker takes seconds to start; a posting is repeated every twenty. Without it, it would
    take the stage for vacant and itself for the steward."""
    heard: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Matching, "receive_record", lambda _, *said: heard.append(said[:3]) or [])
    async with open_swarm(tmp_path) as swarm:
        steward, late = await swarm.add(), await swarm.add()
        peer = steward.engine.signer.peer
        steward.engine.perform(Publish(POSTING, "0", 7, b"words"))
        await swarm.until(late.engine.membership.heard_before)
        assert not heard
        late.engine.describe(ADVERT, has_text=True)
        assert heard == [(peer, POSTING, b"words")]


async def test_a_record_heard_before_cannot_stop_who_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[bytes] = []

    def receive(_: Matching, author: PeerId, kind: str, body: bytes, now: float) -> list[Any]:
        heard.append(body)
        if body == b"poison":
            raise ValueError("a bug of ours")
        return []

    monkeypatch.setattr(Matching, "receive_record", receive)
    async with open_swarm(tmp_path) as swarm:
        steward, late = await swarm.add(), await swarm.add()
        steward.engine.perform(Publish(POSTING, "0", 7, b"poison"))
        steward.engine.perform(Publish(POSTING, "1", 7, b"words"))
        await swarm.until(lambda: len(late.engine.membership.heard_before()) == 2)
        late.engine.describe(ADVERT, has_text=True)
        assert sorted(heard) == [b"poison", b"words"]
        assert late.engine.guard.internal_errors == 1
