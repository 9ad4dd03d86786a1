"""The loss that volunteers are shown when a replica of the last stage lies about its own."""

from pathlib import Path

import msgspec
import pytest

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.wire.messages import Message, Ready
from protocol.wire.parts import Decree
from tests.support.cases import usual
from tests.support.train_swarm import Volunteer, open_swarm


def lie_about_losses(liar: Volunteer, lie: float) -> None:
    """Have a volunteer say ``lie`` for every sum of losses that others are sent, and in every
    decree that it proposes."""

    def of_sums(to: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
        if isinstance(message, Ready) and to != liar.peer:
            message = msgspec.structs.replace(message, loss_sum=lie)
        return message, payload

    liar.distort(of_sums)
    driver = liar.held(1).driver
    proposer = driver.seat.leader.proposer
    propose = proposer.propose

    def lying(decree: Decree, now: float) -> list[Send]:
        return propose(msgspec.structs.replace(decree, loss_sum=lie), now)

    proposer.propose = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(("lie", "replicas"), usual(2, [(0.0, 2), (5e26, 3), (0.0, 3), (5e26, 2)]))
async def test_one_liar_changes_nothing_of_what_the_honest_are_shown(
    tmp_path: Path, lie: float, replicas: int
) -> None:
    async with open_swarm(tmp_path, steps=8, microbatches=12) as swarm:
        first = await swarm.add(0)
        honest = [await swarm.add(1) for _ in range(replicas - 1)]
        liar = await swarm.add(1)
        await swarm.until(lambda: liar.serves(1))
        lie_about_losses(liar, lie)
        await swarm.until_done()
        for volunteer in [first, *honest]:
            assert volunteer.losses
            assert all(3.0 < loss < 7.0 for loss in volunteer.losses.values()), volunteer.losses
