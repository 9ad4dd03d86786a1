"""A newcomer with nothing but an invite gets the manifest, whatever its member says before it."""

import pytest
import trio

from client.errors import UserError
from client.net.connection_limiter import HostLimits
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, NetEvent
from client.train.messaging.bootstrap import dial_first, fetch_manifest
from client.train.messaging.handshake import PROTOCOL
from protocol.address import parse_peer_address
from protocol.manifest import swarm_id
from protocol.wire.envelope import Signer
from protocol.wire.messages import Hello, RecordDigest
from tests.support.loopback import Networks
from tests.support.protocol_examples import manifest

CAREFUL = HostLimits(hello_s=20.0)
FOUNDER = Signer(bytes(32))


async def _answer(member: Libp2pNetwork, reply: Hello) -> None:
    async for event in member.events:
        match event:
            case Inbound(peer, Hello()):
                member.post(peer, RecordDigest([], True))  # it knows us from an earlier link
                member.post(peer, reply)
            case _:
                pass


async def test_the_manifest_does_not_wait_behind_what_a_member_says_first(
    networks: Networks,
) -> None:
    encoded, signature = FOUNDER.sign_manifest(manifest(FOUNDER.peer))
    swarm, seen = swarm_id(encoded), list[NetEvent]()
    async with (
        networks(limits=CAREFUL) as member,
        networks(limits=CAREFUL) as newcomer,
        trio.open_nursery() as nursery,
    ):
        reply = Hello(PROTOCOL, swarm, "v", manifest=encoded, signature=signature)
        nursery.start_soon(_answer, member, reply)
        peer = await newcomer.connect(member.addresses[0])
        found = await fetch_manifest(newcomer, peer, swarm, seen)
        nursery.cancel_scope.cancel()
    assert found.swarm == swarm


async def test_an_error_names_each_address_and_its_fault_once(networks: Networks) -> None:
    async with networks() as newcomer:
        async with networks() as gone, networks() as left:
            at = [parse_peer_address(network.addresses[0]) for network in (gone, left)]
        with pytest.raises(UserError) as caught:
            await dial_first(newcomer, at, 0.5)
        said = caught.value.message
        assert said.endswith("; ".join(f"{address}: Connection refused" for address in at))
        assert [said.count(str(address.port)) for address in at] == [1, 1]
