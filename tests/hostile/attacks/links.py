"""Many links at once that come and go, say nothing or little, or never end a frame."""

import trio

from client.train.transfer.state_size import largest_payload
from protocol.wire.framing import encode_frame
from protocol.wire.messages import Backward, Heartbeat, encode_message
from tests.hostile.attack import MIB, Attack
from tests.hostile.bare import again_and_again, bare_link, proved
from tests.hostile.stranger import Stranger

CYCLES_PER_S = 70.0
SILENT, SILENT_PER_S = 34 * 8, 60.0
"""As many as fill every place of a node."""
UNFINISHED = 8
STRANGERS = 100
EVERY_S = 0.05


async def cycle(stranger: Stranger) -> None:
    """Connect to one node after the other with a new identity each time."""

    async def once(number: int) -> None:
        async with proved(stranger.addresses[number % len(stranger.addresses)]):
            return

    await again_and_again(8 * len(stranger.addresses), CYCLES_PER_S, once)


async def hold_silently(stranger: Stranger, count: int, rate_per_s: float) -> None:
    """Hold so many silent links, and take each again when it is lost."""

    async def hold(number: int) -> None:
        address = stranger.addresses[number % len(stranger.addresses)]
        async with proved(address) as link:
            while await link.receive():
                await trio.sleep(0)

    await again_and_again(count, rate_per_s, hold)


async def fill_silently(stranger: Stranger) -> None:
    """Hold one in every place of every node."""
    await hold_silently(stranger, SILENT * len(stranger.addresses), SILENT_PER_S)


async def never_end(stranger: Stranger) -> None:
    """Hold such frames on eight links to one node; the largest there are, or that it takes."""
    header = encode_message(Backward(stage=0, step=1, microbatch=1))
    sizes = (61 * MIB, largest_payload(stranger.manifest))

    async def hold(number: int) -> None:
        for size in sizes:
            async with bare_link(stranger.addresses[0], stranger.swarm) as link:
                data = b"".join(encode_frame(header, bytes(size)))[:-1]
                await link.write("bulk", data)
                await link.ended()

    await again_and_again(UNFINISHED, 4.0, hold)


async def say_little(stranger: Stranger) -> None:
    """Say Hello and heartbeats without a seat, twenty a second each."""

    async def flood(number: int) -> None:
        address = stranger.addresses[number % len(stranger.addresses)]
        async with bare_link(address, stranger.swarm) as link:
            count = 0
            while not link.session.closed:
                count += 1
                await link.say(Heartbeat(count, []))
                await trio.sleep(EVERY_S)

    await again_and_again(STRANGERS, 40.0, flood)


ATTACKS = (
    Attack(
        name="connect-cycles",
        issue="B6",
        what="4,000 connections prove an identity and end.",
        stranger=cycle,
        lasts_s=60.0,
        rest_s=120.0,
    ),
    Attack(
        name="silent-links",
        issue="B6",
        what="272 links to each node prove an identity and say nothing.",
        stranger=fill_silently,
        rest_s=120.0,
    ),
    Attack(
        name="unfinished-frames",
        issue="B6",
        what="Eight links hold frames of 61 MiB that never end.",
        stranger=never_end,
        rest_s=120.0,
    ),
    Attack(
        name="stranger-flood",
        issue="B6",
        what="100 strangers say 20 heartbeats a second each.",
        stranger=say_little,
        rest_s=120.0,
    ),
)
