"""Two adverts with one number: half of the swarm is told one thing of us, half another."""

import sys
import time

import trio

from protocol.membership.advert import ADVERT, ADVERTS
from protocol.wire.messages import Records
from tests.hostile.attack import Attack, Bounds
from tests.hostile.stranger import Stranger, advert, record_of


async def attack(stranger: Stranger) -> None:
    """Be a member with much memory for some, and with little for the others."""
    number = int(time.time() * 1000)
    addresses = stranger.network.addresses
    for index, peer in enumerate(list(stranger.peers)):
        little = {"memory_bytes": 2**28, "seats": 0} if index % 2 else {}
        body = ADVERTS.encode(advert(stranger.me, addresses, **little))
        record = record_of(stranger.signer, stranger.swarm, ADVERT, body, number)
        await stranger.say(peer, Records([record]))
    began = trio.current_time()
    while stranger.network.statistics().peers:
        await trio.sleep(0.1)
    print(f"all links cut after {trio.current_time() - began:.1f} s", file=sys.stderr, flush=True)
    await trio.sleep_forever()


ATTACK = Attack(
    name="two-adverts",
    issue="17.1",
    what="A stranger signs two adverts with one number, and tells each half of the swarm one.",
    stranger=attack,
    bounds=Bounds(shut_out_by=4),
)
