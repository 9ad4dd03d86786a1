"""Requests for more chunks than are read: a few bytes that ask for a gigabyte."""

import msgspec
import trio

from client.net.yamux import YamuxStream
from client.train.transfer.state_size import data_bytes
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.membership.records import parse_record
from protocol.recovery.stored import STORED, Copy, Stored
from protocol.wire.messages import ChunkRequest, RecordDigest, Records
from tests.hostile.attack import Attack
from tests.hostile.bare import BareLink, again_and_again, bare_link
from tests.hostile.stranger import Stranger

REQUESTS = 500
LINKS = 4
ASK_S = 5.0


async def attack(stranger: Stranger) -> None:
    """Ask one node for its largest state many times over and take a byte every ten seconds."""

    async def ask(number: int) -> None:
        async with bare_link(stranger.addresses[0], stranger.swarm, _reluctantly) as link:
            copy = await _largest_copy(link, stranger.manifest)
            if copy is None:
                return
            count = -(-data_bytes(stranger.manifest, copy.stage) // CHUNK_BYTES)
            for index in range(REQUESTS):
                await link.say(ChunkRequest(copy.hash, index % count))
            await link.ended()

    await again_and_again(LINKS, 1.0, ask)


async def _largest_copy(link: BareLink, manifest: Manifest) -> Copy | None:
    """Return what the records that the node has name as the largest state."""
    await link.say(RecordDigest([], want_reply=False))
    found: list[Copy] = []
    with trio.move_on_after(ASK_S):
        async for message in link.heard:
            if isinstance(message, Records):
                for one in message.records:
                    if one.kind == STORED:
                        body = parse_record(one.body).body
                        found += msgspec.msgpack.decode(body, type=Stored).copies
    return max(found, key=lambda copy: data_bytes(manifest, copy.stage), default=None)


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
