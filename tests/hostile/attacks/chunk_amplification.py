"""Requests for more chunks than are read: a few bytes that ask for a gigabyte."""

from __future__ import annotations

import trio

from client.net.yamux_stream import YamuxStream
from protocol.transfer.blob import chunk_count
from protocol.wire.messages import BlobOffer, BlobQuery, ChunkRequest
from tests.hostile.attack import Attack
from tests.hostile.bare import BareLink, again_and_again, bare_link
from tests.hostile.stranger import Stranger

REQUESTS = 500
LINKS = 4
ASK_S = 5.0


async def attack(stranger: Stranger) -> None:
    """Ask one node for its largest blob many times over and take a byte every ten seconds."""

    async def ask(number: int) -> None:
        async with bare_link(stranger.addresses[0], stranger.swarm, _reluctantly) as link:
            offer = await _largest_offer(link, stranger.manifest.stage_count)
            if offer is None:
                return
            for index in range(REQUESTS):
                place = index % chunk_count(offer.size_bytes)
                await link.say(ChunkRequest(offer.kind, offer.stage, offer.version, place))
            await link.ended()

    await again_and_again(LINKS, 1.0, ask)


async def _largest_offer(link: BareLink, stages: int) -> BlobOffer | None:
    await link.say(BlobQuery("data", 0, None))
    for stage in range(stages):
        await link.say(BlobQuery("state", stage, None))
    found: list[BlobOffer] = []
    with trio.move_on_after(ASK_S):
        async for message in link.heard:
            if isinstance(message, BlobOffer):
                found.append(message)
    return max(found, key=lambda offer: offer.size_bytes, default=None)


async def _reluctantly(name: str, stream: YamuxStream) -> None:
    while await stream.receive_some(1):
        await trio.sleep(10.0)


ATTACK = Attack(
    name="chunk-amplification",
    issue="B5",
    what="500 requests for chunks on each of 4 links, of which a byte is read every 10 s.",
    stranger=attack,
    rest_s=120.0,
)
