"""Frames that are begun, sent to their last byte but one, and never ended."""

from __future__ import annotations

from client.train.transfer.state_size import largest_payload
from protocol.wire.framing import encode_frame
from protocol.wire.messages import Backward, encode_message
from tests.hostile.attack import MIB, Attack
from tests.hostile.bare import again_and_again, bare_link
from tests.hostile.stranger import Stranger

LINKS = 8


async def attack(stranger: Stranger) -> None:
    """Hold such frames on eight links to one node; the largest there are, or that it takes."""
    header = encode_message(Backward(stage=0, step=1, microbatch=1, attempt=0))
    sizes = (61 * MIB, largest_payload(stranger.manifest))

    async def hold(number: int) -> None:
        for size in sizes:
            async with bare_link(stranger.addresses[0], stranger.swarm) as link:
                data = b"".join(encode_frame(header, bytes(size)))[:-1]
                await link.write("bulk", data)
                await link.ended()

    await again_and_again(LINKS, 4.0, hold)


ATTACK = Attack(
    name="unfinished-frames",
    issue="B6",
    what="Eight links hold frames of 61 MiB that never end.",
    stranger=attack,
    rest_s=120.0,
)
