"""Reaching others through relays, and being reached: the driver of ``RelayClient``.

State: the machine, the streams of our reservations, and the addresses of the relays it may choose.
A circuit to a peer is dialled like any address; one from a peer is handed to the host like an
inbound connection.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import trio

from client.net.addresses import Destination, parse_destination
from client.net.errors import AddressError, DialError, NetworkError
from client.net.host import Connection
from client.net.relay.circuit import CircuitStream
from client.net.relay.exchange import Links, answered, send_last, send_message
from client.net.transport import ByteStream, closing
from client.net.yamux import YamuxStream
from protocol.hosts import number_of, prefix_of
from protocol.ids import PeerId
from protocol.pace import TICK_S
from protocol.relay.client import RelayClient
from protocol.relay.messages import Connect, Reserve, Status, Stop

REFUSALS: Final = {
    "not-offered": "the relay does not relay any more",
    "full": "the relay has no place left",
    "no-reservation": "the peer is not reached through this relay any more",
    "over-a-circuit": "we reach the relay only through another relay",
    "own-circuit": "a peer is not called through itself",
    "too-often": "the relay is asked too often",
    "unreachable": "the relay does not reach the peer",
}


class Reaching:
    """See the module's docstring.

    Args:
        links: the links of this network.
        nursery: ends with the network.
    """

    def __init__(self, links: Links, nursery: trio.Nursery) -> None:
        self._links, self._nursery = links, nursery
        self.machine = RelayClient()
        self._candidates: dict[PeerId, tuple[Destination, ...]] = {}
        self._reserved: dict[PeerId, tuple[YamuxStream, Destination]] = {}
        """The stream of each reservation, which lasts as long, and where the relay is."""

    def update(self, relays: Mapping[PeerId, Sequence[str]], *, needed: bool) -> None:
        """Set the members that relay with their addresses, and whether we need any. Call it
        often."""
        found = {peer: _dialled_directly(texts) for peer, texts in relays.items()}
        me = self._links.peer_id
        self._candidates = {peer: at for peer, at in found.items() if at and peer != me}
        prefixes = {peer: _prefix_of(at[0]) for peer, at in self._candidates.items()}
        self._perform(self.machine.update(prefixes, needed, trio.current_time()))

    @property
    def addresses(self) -> list[str]:
        """The addresses at which we are reached through relays."""
        at, me = [self._reserved[relay][1] for relay in self.machine.relays], self._links.peer_id
        return [str(replace(one, peer=me, relay=one.peer)) for one in at]

    def renew(self) -> None:
        """This machine's network has changed: relays may be of use that were of none."""
        self._perform(self.machine.renew(trio.current_time()))

    async def serve(self, connection: Connection, stream: YamuxStream, message: Stop) -> None:
        """Take a circuit that a relay brings on a stream of its own."""
        relay = connection.peer
        if relay not in self.machine.needed or connection.relay is not None:
            await send_last(stream, Status("no-reservation"))
            return
        await send_message(stream, Status("ok"))
        circuit = CircuitStream(stream, message.host)
        self._links.serve_circuit(circuit, relay, PeerId(message.asker))

    @asynccontextmanager
    async def dial(self, address: Destination) -> AsyncIterator[ByteStream]:
        """Ask the relay for a circuit, once linked with it; it ends with the block.

        Raises:
            DialError: it gives none, in words with the address.
        """
        connection = await self._relay_of(address)
        found = await answered(self._links, connection, Connect(address.peer))
        if found is None:
            raise DialError(f"{address}: the relay does not answer")
        stream, answer = found
        said = answer if isinstance(answer, Status) else Status("unreachable")
        opened = CircuitStream(stream, said.host)
        async with closing(opened):
            if said.code != "ok":
                raise DialError(f"{address}: {REFUSALS.get(said.code, 'the relay refuses')}")
            yield opened

    async def _relay_of(self, address: Destination) -> Connection:
        """Return the connection with the relay of an address, made if need be."""
        hop = address.first_hop
        if self._links.direct(hop.peer) is None:
            await self._links.connect(str(hop))
        connection = self._links.direct(hop.peer)
        if connection is None:
            raise DialError(f"{address}: {REFUSALS['over-a-circuit']}")
        return connection

    async def _reserve(self, relay: PeerId) -> None:
        """Ask a relay for a reservation, and see when it ends."""
        if (found := await self._ask(relay)) is None:
            self._perform(self.machine.answered(relay, False, trio.current_time()))
            return
        connection, stream, at = found
        self._reserved[relay] = stream, at
        self._perform(self.machine.answered(relay, True, trio.current_time()))
        with suppress(NetworkError):
            await stream.receive_some(1)
        stream.reset()
        if not connection.session.closed:
            with trio.move_on_after(TICK_S):  # what ends all streams ends one of them first
                await connection.ended.wait()
        if self._reserved.get(relay) == (stream, at):
            refused = not connection.session.closed
            self._perform(self.machine.lost(relay, trio.current_time(), refused=refused))

    async def _ask(self, relay: PeerId) -> tuple[Connection, YamuxStream, Destination] | None:
        """Ask a relay for a reservation; None: it gives none."""
        if not (candidates := self._candidates.get(relay)):
            return None
        if self._links.direct(relay) is None:
            await self._links.dial_any([str(address) for address in candidates])
        connection = self._links.direct(relay)
        found = await answered(self._links, connection, Reserve())
        if connection is None or found is None:
            return None
        stream, answer = found
        if answer != Status("ok"):
            stream.reset()
            return None
        near = tuple(one for one in candidates if one.host == connection.ip)
        return connection, stream, (near or candidates)[0]

    def _perform(self, requests: list[PeerId]) -> None:
        for relay in requests:
            self._nursery.start_soon(self._reserve, relay)
        for relay in self._reserved.keys() - set(self.machine.relays):
            self._reserved.pop(relay)[0].reset()


def _prefix_of(address: Destination) -> str:
    """Return the prefix of a relay's address: relays in one prefix may fail together."""
    return address.host if number_of(address.host) is None else prefix_of(address.host)


def _dialled_directly(texts: Sequence[str]) -> tuple[Destination, ...]:
    """Return the addresses that name no relay."""
    found = []
    for text in texts:
        try:
            address = parse_destination(text)
        except AddressError:
            continue
        if address.relay is None:
            found.append(address)
    return tuple(found)
