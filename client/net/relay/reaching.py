"""Reaching others through relays, and being reached.

A member that nobody can dial keeps reservations at two relays, of different prefixes where there
are such, so that the end of one relay cuts off nobody. A relay that refuses, at first or later, is
left alone for a while: it could change our addresses without end. After five minutes a reservation
goes on where it would be made now, and not where there is a better relay; the place of one that
relays no more is filled at once. A circuit to a peer is dialled like any address; one from a peer
is handed to the host like an inbound connection. The usual handshake runs over a circuit, so the
relay sees ciphertext and cannot take the peer's place.

State, all bounded: the relays it may choose, the reservations and requests, at most two each beside
those that lapse, and the relays that were of no use lately.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from client.net.addresses import Destination, parse_destination
from client.net.errors import AddressError, DialError, NetworkError
from client.net.host import Connection
from client.net.relay.exchange import Links, agreed, answered, send_last, send_message
from client.net.transport import ByteStream, closing
from client.net.yamux import YamuxStream
from protocol.hosts import number_of, prefix_of
from protocol.ids import PeerId
from protocol.pace import ASIDE_S, SETTLED_S, TICK_S
from protocol.relay.messages import Connect, Reserve, Status, Stop

RELAYS: Final = 2
"""Reservations that are kept."""
REVIEW_S: Final = SETTLED_S
"""A reservation is as good as a new one for so long; one that is not wanted any more is kept for as
long again, while others have an address of ours from before."""
MAX_AVOIDED: Final = 1024
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The most that a relay may have in flight to us in one circuit, within the link's budget."""
REFUSALS: Final = {
    "not-offered": "the relay does not relay any more",
    "full": "the relay has no place left",
    "no-reservation": "the peer is not reached through this relay any more",
    "over-a-circuit": "we reach the relay only through another relay",
    "own-circuit": "a peer is not called through itself",
    "too-often": "the relay is asked too often",
    "unreachable": "the relay does not reach the peer",
}


@dataclass(slots=True, eq=False)
class _Reservation:
    stream: YamuxStream
    """It lasts as long."""
    at: Destination
    """Where the relay is."""
    until: float
    """When it is reviewed; or, if it lapses, when it ends."""
    lapses: bool = False
    """Whether its place is filled, or is to be."""


class Reaching:
    """See the module's docstring; the nursery ends with the network."""

    def __init__(self, links: Links, nursery: trio.Nursery) -> None:
        self._links, self._nursery = links, nursery
        self._needed = False
        self._candidates: dict[PeerId, tuple[Destination, ...]] = {}
        self._reserved: dict[PeerId, _Reservation] = {}
        self._asked: list[PeerId] = []
        """Relays that are being asked."""
        self._avoided: dict[PeerId, float] = {}
        self._networks = 0
        """How often this machine's network has changed."""

    @property
    def relays(self) -> tuple[PeerId, ...]:
        """The relays through which we are reached, those that leave last."""
        return tuple(sorted(self._reserved, key=lambda one: (self._reserved[one].lapses, one)))

    @property
    def addresses(self) -> list[str]:
        """The addresses at which we are reached through relays."""
        at, me = [self._reserved[relay].at for relay in self.relays], self._links.peer_id
        return [str(replace(one, peer=me, relay=one.peer)) for one in at]

    def update(self, relays: Mapping[PeerId, Sequence[str]], *, needed: bool) -> None:
        """Set the members that relay with their addresses, the best first, and whether nobody can
        dial us. Call it often."""
        found = {peer: _dialled_directly(texts) for peer, texts in relays.items()}
        me = self._links.peer_id
        self._candidates = {peer: at for peer, at in found.items() if at and peer != me}
        self._needed = needed
        self._review()

    def renew(self) -> None:
        """This machine's network has changed: relays may be of use that were of none."""
        self._avoided.clear()
        self._networks += 1
        self._review()

    def _review(self) -> None:
        """Give up what has lapsed, and ask further relays as needed."""
        now = trio.current_time()
        self._avoided = {relay: at for relay, at in self._avoided.items() if at > now}
        for relay, one in list(self._reserved.items()):
            over = now >= one.until
            if not self._needed or (one.lapses and over):
                self._reserved.pop(relay).stream.reset()
            elif not one.lapses and (over or relay not in self._candidates):
                one.lapses, one.until = True, now + REVIEW_S
        while self._needed and (best := self._further()) is not None:
            if (known := self._reserved.get(best)) is not None:
                known.lapses, known.until = False, now + REVIEW_S
            else:
                self._asked.append(best)
                self._nursery.start_soon(self._reserve, best)

    def _further(self) -> PeerId | None:
        """Return a relay to reserve at beside those that we count on, or ask; None: there are
        enough, or no others."""
        held = [relay for relay, one in self._reserved.items() if not one.lapses]
        if len(standing := [*held, *self._asked]) >= RELAYS:
            return None
        known = self._candidates
        near = {_prefix_of(known[relay][0]) for relay in standing if relay in known}
        free = [one for one in known if one not in standing and one not in self._avoided]
        return min(free, key=lambda one: _prefix_of(known[one][0]) in near, default=None)

    async def serve(self, connection: Connection, stream: YamuxStream, message: Stop) -> None:
        """Take a circuit that a relay brings on a stream of its own."""
        relay = connection.peer
        if relay not in (*self._reserved, *self._asked) or connection.relay is not None:
            await send_last(stream, Status("no-reservation"))
            return
        await send_message(stream, Status("ok"))
        stream.let_window_grow(WINDOW_BYTES)
        self._links.serve_circuit(stream, relay, PeerId(message.asker))

    @asynccontextmanager
    async def dial(self, address: Destination) -> AsyncIterator[ByteStream]:
        """Ask the relay for a circuit, once linked with it; it ends with the block. Raises
        DialError: it gives none, in words with the address."""
        hop = address.first_hop
        if self._links.direct(hop.peer) is None:
            await self._links.connect(str(hop))
        connection = self._links.direct(hop.peer)
        if connection is None:
            raise DialError(f"{address}: {REFUSALS['over-a-circuit']}")
        found = await answered(self._links, connection, Connect(address.peer))
        if found is None:
            raise DialError(f"{address}: the relay does not answer")
        stream, answer = found
        stream.let_window_grow(WINDOW_BYTES)
        async with closing(stream):
            if answer != Status("ok"):
                code = answer.code if isinstance(answer, Status) else "unreachable"
                raise DialError(f"{address}: {REFUSALS.get(code, 'the relay refuses')}")
            yield stream

    async def _reserve(self, relay: PeerId) -> None:
        """Ask a relay for a reservation, and see when it ends."""
        network = self._networks
        found = await self._ask(relay)
        self._asked.remove(relay)
        if found is None:
            if network == self._networks:
                self._avoid(relay)
            self._review()
            return
        connection, stream, at = found
        one = _Reservation(stream, at, trio.current_time() + REVIEW_S)
        self._reserved[relay] = one
        self._review()
        with suppress(NetworkError):
            await stream.receive_some(1)
        stream.reset()
        if not connection.session.closed:
            with trio.move_on_after(TICK_S):  # what ends all streams ends one of them first
                await connection.ended.wait()
        if self._reserved.get(relay) is one:
            del self._reserved[relay]
            if not connection.session.closed:
                self._avoid(relay)  # it has ended the reservation, and its link goes on
            self._review()

    def _avoid(self, relay: PeerId) -> None:
        self._avoided.pop(relay, None)
        if len(self._avoided) >= MAX_AVOIDED:
            del self._avoided[next(iter(self._avoided))]
        self._avoided[relay] = trio.current_time() + ASIDE_S

    async def _ask(self, relay: PeerId) -> tuple[Connection, YamuxStream, Destination] | None:
        """Ask a relay for a reservation; None: it gives none."""
        if not (candidates := self._candidates.get(relay)):
            return None
        if self._links.direct(relay) is None:
            await self._links.dial_any([str(address) for address in candidates])
        connection = self._links.direct(relay)
        stream = await agreed(self._links, connection, Reserve())
        if connection is None or stream is None:
            return None
        near = tuple(one for one in candidates if one.host == connection.ip)
        return connection, stream, (near or candidates)[0]


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
