"""A malformed gradient in a running swarm: another replica works it out, and all stays exact."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from protocol.ids import PeerId
from protocol.wire.messages import Backward, Message
from tests.support.train_swarm import open_swarm

BAD_STEP = 3


async def test_a_gradient_that_is_always_sent_malformed_holds_nobody_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, steps=8) as swarm:
        first, bad, _ = [await swarm.add(stage) for stage in (0, 1, 1)]
        send, sent = bad.engine.send, list[int]()

        def damage(peer: PeerId, message: Message, payload: bytes = b"") -> None:
            chosen = isinstance(message, Backward) and message.step == BAD_STEP
            if chosen and message.microbatch in (sent or [message.microbatch]):
                sent.append(message.microbatch)
                payload = payload[:-1] + bytes([payload[-1] ^ 1])
            send(peer, message, payload)

        bad.engine.send = damage  # type: ignore[method-assign]
        swarm.start()
        await swarm.until_done()
        swarm.assert_exact()
        assert len(sent) == 1, "it is not asked for that one again"
        assert first.engine.penalties == {"malformed-tensor": 1}
        assert first.engine.history.lineage.number == 0, "nothing was rolled back"
