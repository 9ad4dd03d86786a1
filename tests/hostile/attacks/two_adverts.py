"""Two adverts with one number: half of the swarm is told one thing of us, half another."""

import time

import trio

from protocol.membership.advert import ADVERT, ADVERTS
from protocol.wire.messages import Records
from tests.hostile.attack import Attack
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
    await trio.sleep_forever()


ATTACK = Attack(
    name="two-adverts",
    issue="17.1",
    what="A stranger signs two adverts with one number, and tells each half of the swarm one.",
    stranger=attack,
)
