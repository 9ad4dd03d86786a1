"""Adverts of invented members that all name one third party's port."""

import secrets
import sys
import time

import trio

from protocol.membership.advert import ADVERT, ADVERTS
from protocol.wire.envelope import Envelope, Signer
from protocol.wire.messages import Records
from tests.hostile.attack import Attack
from tests.hostile.stranger import HOST, Stranger, advert, record_of

INVENTED = 50
EVERY_S = 10.0


async def attack(stranger: Stranger) -> None:
    """Be the third party, too, and tell on stderr how often it was called each minute."""
    await stranger.introduce()
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    port = listener.socket.getsockname()[1]
    signers = [Signer(secrets.token_bytes(32)) for _ in range(INVENTED)]
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(_count, listener)
        while True:
            records = [_advert(stranger, signer, port) for signer in signers]
            await stranger.say_to_all(Records(records))
            await trio.sleep(EVERY_S)


async def _count(listener: trio.SocketListener) -> None:
    began, calls = time.monotonic(), 0
    while True:
        stream = await listener.accept()
        calls += 1
        await trio.aclose_forcefully(stream)
        print(f"{calls} calls in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _advert(stranger: Stranger, signer: Signer, port: int) -> Envelope:
    peer = signer.peer
    addresses = [f"/ip4/127.0.0.{n}/tcp/{port}/p2p/{peer}" for n in range(1, 9)]
    body = ADVERTS.encode(advert(peer, addresses, seats=0, joined=int(time.time())))
    return record_of(signer, stranger.swarm, ADVERT, body)


ATTACK = Attack(
    name="reflection",
    issue="B8",
    what="50 adverts name one third party's port, eight addresses each.",
    stranger=attack,
    lasts_s=75.0,
)
