"""Engines of a swarm that is entered by invitation, in memory: Hello, invites, expulsions."""

from __future__ import annotations

from collections.abc import Callable

import trio

from client.train.engine import Engine
from client.train.messaging.admission import Vouching
from client.train.reporting.event_sink import EventSink
from protocol.ids import PeerId
from protocol.invite import SwarmFile
from protocol.vouching.register import KeptRegister, Register
from protocol.wire.messages import Goodbye, Heartbeat
from tests.support.memory_network import MemoryHub, MemoryNetwork
from tests.support.protocol_examples import manifest, peer, signer

MANIFEST = manifest(peer(1))
ENCODED, SIGNATURE = signer(1).sign_manifest(MANIFEST)
FILE = SwarmFile(MANIFEST, ENCODED, SIGNATURE, ())
SWARM = FILE.swarm


class Member:
    """An engine without stages, in a swarm founded by number 1."""

    def __init__(
        self,
        hub: MemoryHub,
        number: int,
        nursery: trio.Nursery,
        ticket: bytes | None = None,
    ) -> None:
        self.network: MemoryNetwork = hub.join(peer(number))
        sink = EventSink(lambda event: None)
        self.engine = Engine(self.network, signer(number), FILE, sink, nursery)
        self.register = Register(signer(number), peer(1), SWARM)
        self.kept = KeptRegister()
        self.out: list[str] = []
        self.vouching = Vouching(
            self.register,
            ticket,
            self.engine,
            self._keep,
            self.engine.greet_all,
            self.engine.expel,
            self.out.append,
        )
        self.engine.handshake.vouching = self.vouching
        nursery.start_soon(self.engine.run)

    @property
    def peer(self) -> PeerId:
        return self.register.me

    def admits(self, other: Member) -> bool:
        return other.peer in self.engine.handshake.admitted

    def _keep(self, kept: KeptRegister) -> None:
        self.kept = kept


async def until(happened: Callable[[], object]) -> None:
    with trio.fail_after(600.0):
        while not happened():
            await trio.sleep(0.05)


async def linked(one: Member, other: Member) -> None:
    await one.network.connect(other.network.addresses[0])


async def test_an_expelled_member_says_why_and_not_that_its_old_invite_is_unknown(
    nursery: trio.Nursery,
) -> None:
    hub = MemoryHub(nursery)
    founder = Member(hub, 1, nursery)
    friend = Member(hub, 2, nursery, founder.vouching.draw_ticket(bytes(32), 1).secret)
    await linked(friend, founder)
    await until(lambda: friend.register.is_member)
    guest = Member(hub, 3, nursery, friend.vouching.draw_ticket(b"g" * 32, 1).secret)
    await linked(guest, friend)
    await until(lambda: guest.register.is_member)

    said = founder.register.expel(friend.peer, "sends noise", guest.engine.wall())
    guest.vouching.expelled(founder.peer, said)
    assert len(guest.out) == 1
    await linked(guest, founder)  # it does not end at once, and a link comes up meanwhile
    await trio.sleep(5.0)
    assert all("sends noise" in words for words in guest.out)


async def test_before_we_are_vouched_for_only_who_made_our_invite_may_refuse_us(
    nursery: trio.Nursery,
) -> None:
    hub = MemoryHub(nursery)
    founder, stranger = Member(hub, 1, nursery), Member(hub, 2, nursery)
    friend = Member(hub, 3, nursery, b"never drawn by anybody".ljust(32))
    friend.engine.handshake.greets = lambda peer: peer == founder.peer
    await linked(friend, stranger)
    stranger.engine.send(friend.peer, Goodbye("go away"))
    await trio.sleep(5.0)
    refused = stranger.engine.network.statistics().refused
    assert (friend.out, refused) == ([], {}), "it is not shown the invite"
    await linked(friend, founder)
    await until(lambda: friend.out)
    assert "we did not make this invite" in friend.out[0]


async def test_an_invite_is_redeemed_and_an_expulsion_reaches_everybody(
    nursery: trio.Nursery,
) -> None:
    hub = MemoryHub(nursery)
    founder = Member(hub, 1, nursery)
    ticket = founder.vouching.draw_ticket(bytes(32), 2)
    friend = Member(hub, 2, nursery, ticket.secret)
    bad = Member(hub, 3, nursery, ticket.secret)
    for newcomer in (friend, bad):
        await linked(newcomer, founder)
    await until(lambda: friend.register.is_member and bad.register.is_member)
    assert friend.kept.chain == friend.register.chain, "it is on disk"
    await linked(friend, bad)
    await until(lambda: friend.admits(bad) and bad.admits(friend))

    founder.vouching.expel(bad.peer, "sends noise")
    await until(lambda: not friend.admits(bad) and not founder.admits(bad))
    assert friend.kept.expulsions == founder.kept.expulsions
    assert len(friend.kept.expulsions) == 1
    if not bad.out:  # the link may end before what was said on it arrives: it will call again
        await linked(bad, founder)
    await until(lambda: bad.out)
    assert "sends noise" in bad.out[0], "it is told why, with the proof"
    await trio.sleep(30.0)
    assert not founder.admits(bad)
    assert friend.admits(founder)


async def test_a_member_is_told_who_is_out_once_on_a_link(nursery: trio.Nursery) -> None:
    hub = MemoryHub(nursery)
    founder = Member(hub, 1, nursery)
    ticket = founder.vouching.draw_ticket(bytes(32), 2)
    bad, friend = (Member(hub, number, nursery, ticket.secret) for number in (2, 3))
    await linked(bad, founder)
    await until(lambda: bad.register.is_member)
    founder.vouching.expel(bad.peer, "")
    told = list[PeerId]()
    founder.vouching._tell = lambda peer, expulsions: told.extend(peer for _ in expulsions)  # type: ignore[method-assign]
    await linked(friend, founder)
    await until(lambda: friend.register.is_member and friend.admits(founder))
    for _ in range(3):
        friend.engine.greet_all()
    await trio.sleep(5.0)
    assert told.count(friend.peer) == 1


async def test_whoever_is_expelled_counts_for_no_majority_from_that_moment(
    nursery: trio.Nursery,
) -> None:
    hub = MemoryHub(nursery)
    founder = Member(hub, 1, nursery)
    bad = Member(hub, 2, nursery, founder.vouching.draw_ticket(bytes(32), 1).secret)
    await linked(bad, founder)
    await until(lambda: bad.register.is_member and founder.admits(bad))
    contacts = founder.engine.membership.contacts
    founder.engine.on_membership(bad.peer, Heartbeat(1, []))
    assert not contacts.is_gone(bad.peer)

    founder.vouching.expel(bad.peer, "")
    assert contacts.is_gone(bad.peer)
    late = founder.engine._taker(bad.peer, Heartbeat(2, []), 0)
    assert late is None, "what was on its way counts no more"
