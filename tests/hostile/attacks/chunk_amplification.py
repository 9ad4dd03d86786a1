"""Requests for more chunks than are read: a few bytes that ask for a gigabyte."""

from __future__ import annotations

import trio

from client.net.yamux_stream import YamuxStream
from protocol.manifest import Manifest
from protocol.transfer.blob import chunk_count
from protocol.transfer.leaves import LEAVES
from protocol.wire.messages import BlobOffer, BlobQuery, ChunkRequest
from tests.hostile.attack import Attack
from tests.hostile.bare import BareLink, again_and_again, bare_link
from tests.hostile.forged import saved_versions
from tests.hostile.stranger import Stranger

REQUESTS = 500
LINKS = 4
ASK_S = 5.0


async def attack(stranger: Stranger) -> None:
    """Ask one node for its largest blob many times over and take a byte every ten seconds."""

    async def ask(number: int) -> None:
        async with bare_link(stranger.addresses[0], stranger.swarm, _reluctantly) as link:
            offer = await _largest_offer(link, stranger.manifest)
            if offer is None:
                return
            for index in range(REQUESTS):
                place = index % chunk_count(offer.size_bytes)
                await link.say(ChunkRequest(offer.kind, offer.stage, offer.version, place))
            await link.ended()

    await again_and_again(LINKS, 1.0, ask)


async def _largest_offer(link: BareLink, manifest: Manifest) -> BlobOffer | None:
    await link.say(BlobQuery("data", 0, LEAVES))
    for stage in range(manifest.stage_count):
        for version in saved_versions(manifest):
            await link.say(BlobQuery("state", stage, version))
    found: list[BlobOffer] = []
    with trio.move_on_after(ASK_S):
        async for message in link.heard:
            if isinstance(message, BlobOffer):
                found.append(message)
    return max((one for one in found if one.size_bytes), key=_size, default=None)


def _size(offer: BlobOffer) -> int:
    return offer.size_bytes


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
