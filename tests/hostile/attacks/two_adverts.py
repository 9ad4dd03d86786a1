"""Two adverts with one number: half of the swarm is told one thing of us, half another."""

from __future__ import annotations

import sys

import msgspec
import trio

from protocol.membership.advert import ADVERT, encode_advert
from tests.hostile.attack import Attack, Bounds
from tests.hostile.stranger import Stranger


async def attack(stranger: Stranger) -> None:
    """Be a member with much memory for some, and with little for the others."""
    advert = stranger.own_advert()
    little = msgspec.structs.replace(advert, memory_bytes=2**28, seats=0)
    number = int(stranger.wall() * 1000)
    for index, peer in enumerate(list(stranger.peers)):
        body = encode_advert(little if index % 2 else advert)
        await stranger.say(peer, stranger.record(ADVERT, stranger.me, body, seq=number))
    began = stranger.now()
    while stranger.network.statistics().peers:
        await trio.sleep(0.1)
    print(f"all links cut after {stranger.now() - began:.1f} s", file=sys.stderr, flush=True)
    await trio.sleep_forever()


ATTACK = Attack(
    name="two-adverts",
    issue="17.1",
    what="A stranger signs two adverts with one number, and tells each half of the swarm one.",
    stranger=attack,
    bounds=Bounds(shut_out_by=4),
)
