"""The host: listens, dials, authenticates, and keeps the number of connections bounded.

State: the addresses it listens on and the connections that are alive; the door decides who is let
in. The host does not know the purpose of a connection: it runs the one handler it was opened with,
once for each authenticated connection.
No event on one connection, including an exception in the handler, may end another.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from client.net.addresses import Destination, parse_destination, parse_listen, reachable_hosts
from client.net.door import Door, HostLimits, Refusal, Visit
from client.net.errors import ConnectionLost, DialError, HandshakeFailed
from client.net.handshake import Identity, handshake, make_identity
from client.net.secure import SecureChannel
from client.net.transport import ByteStream, Transport, closing, transport_of
from client.net.yamux import YamuxSession
from protocol.address import Address
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

DRAIN_S = 1.0
"""Seconds after the end of the connection to read data that arrived before."""
_log = logging.getLogger(__name__)


class Connection:
    """An authenticated connection: its peer, and the streams to it.

    Args:
        peer: the proven identity of the other end.
        channel: the encrypted connection.
        dialled: whether we dialled.
        early: messages that arrived with the handshake.
        ip: IPv4 address of the other end; empty behind a relay.
        visit: the record of an inbound connection at the door.
        relay: the peer that passes the connection on; None: it is direct.
    """

    def __init__(
        self,
        peer: PeerId,
        channel: SecureChannel,
        *,
        dialled: bool,
        early: Sequence[bytes],
        ip: str,
        visit: Visit | None = None,
        relay: PeerId | None = None,
    ) -> None:
        self.peer = peer
        self.dialled = dialled
        self.relay = relay
        self.ip = ip
        """The address of the other end."""
        self._visit = visit
        self.session = YamuxSession(channel, dialler=dialled)
        self._channel = channel
        self._early = early
        self._scope = trio.CancelScope()
        self.reason = ""
        """Why it ended, once it has: the first reason given stands."""
        self.by_peer = False
        """Whether the other side ended it, or its machine did for a process that died."""
        self.violation: RemoteProtocolError | None = None
        """The rule that the peer broke, if that is why."""
        self.ended = trio.Event()
        """Set by the handler when it has finished with the connection."""

    @property
    def bytes_in(self) -> int:
        """Bytes received from the network, encryption included."""
        return self._channel.bytes_in

    @property
    def bytes_out(self) -> int:
        """Bytes sent to the network, encryption included."""
        return self._channel.bytes_out

    def admitted(self) -> None:
        """Note that the peer's Hello was accepted."""
        if self._visit is not None:
            self._visit.admitted = True

    def close(self, reason: str) -> None:
        """End the connection from any task."""
        self.reason = self.reason or reason
        self._scope.cancel()

    def lost(self, reason: str) -> None:
        """Note that the other side has ended the connection; behind a relay that is uncertain."""
        self.by_peer = self.by_peer or (self.relay is None and not self.reason)
        self.reason = self.reason or reason

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the session, and some work on its streams, until either ends or ``close``."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._run_session)
                    await work()
                    self._scope.cancel()
        finally:
            self._channel.release()

    async def _run_session(self) -> None:
        try:
            await self.session.run(self._early)
            self.lost("closed by the peer")
        except ConnectionLost as error:
            self.lost(str(error))
        except RemoteProtocolError as error:
            self.violation = error
            self.close(error.reason)
        # Received data may still be read; a task that waits for more gets the end of the stream.
        await trio.sleep(DRAIN_S)
        self._scope.cancel()


Handler = Callable[[Connection], Awaitable[None]]


class Host:
    """Made by `open_host`."""

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        nursery: trio.Nursery,
        limits: HostLimits,
        bound: Sequence[Address],
    ) -> None:
        self._identity = identity
        self._handler = handler
        self._nursery = nursery
        self._limits = limits
        self._bound = bound
        self.is_member: Callable[[PeerId], bool] = _everybody
        """Tells which peers are members; their connections have places apart from strangers'."""
        self.circuits: Transport
        """Dials the addresses that name a relay; set by the network."""
        self.door = Door(limits, lambda peer: self.is_member(peer), trio.current_time())
        self.refused: Counter[str] = Counter()
        """Connections that did not come about or ended by a violation, by reason."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses at which others reach us now; they change with the network."""
        return tuple(
            str(replace(bound, host=host, peer=self.peer_id))
            for bound in self._bound
            for host in reachable_hosts(bound.host)
        )

    @property
    def chosen_hosts(self) -> list[str]:
        """The addresses of this machine that we listen on, where they were chosen."""
        return [bound.host for bound in self._bound if bound.host != "0.0.0.0"]

    @property
    def peer_id(self) -> PeerId:
        """Our peer id."""
        return self._identity.peer

    @property
    def connections(self) -> int:
        """Connections alive now, strangers included."""
        return self.door.connections

    async def connect(self, address: str) -> Connection:
        """Dial a full multiaddr and authenticate the peer; the handler then runs in the host.

        Raises:
            AddressError: not an address this client dials.
            DialError: nobody there, somebody else there, or too slow.
        """
        target = parse_destination(address)
        if target.peer == self.peer_id:
            raise DialError(f"{target} is this very peer")
        try:
            with trio.fail_after(self._limits.dial_s):
                return await self._nursery.start(self._dial, target)
        except trio.TooSlowError:
            raise DialError(f"{target}: no answer within {self._limits.dial_s:.0f} s") from None

    async def _dial(self, target: Destination, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        transport = transport_of(target) if target.relay is None else self.circuits
        async with transport.dial(target) as stream:
            try:
                proved = await handshake(stream, self._identity, target.peer)
            except HandshakeFailed as error:
                raise DialError(f"{target}: {error}") from error
            relay, ip = target.relay, ""
            if relay is None:
                ip = stream.remote_host or target.host
            connection = Connection(
                proved.peer, proved.channel, dialled=True, early=proved.early, ip=ip, relay=relay
            )
            task_status.started(connection)
            self.door.dialled += 1
            try:
                await self._guarded(connection)
            finally:
                self.door.dialled -= 1

    async def _serve(self, stream: ByteStream) -> None:
        """Handle one inbound connection from its first byte to its last."""
        async with closing(stream):
            ip = stream.remote_host
            if ip:  # else it was closed before we looked
                await self._visited(stream, ip)

    async def serve_circuit(self, stream: ByteStream, relay: PeerId, asker: PeerId) -> None:
        """Handle an inbound connection that a relay passes on for ``asker``, as it says."""
        async with closing(stream):
            await self._visited(stream, "", relay, asker)

    async def _visited(
        self, stream: ByteStream, ip: str, relay: PeerId | None = None, asker: PeerId | None = None
    ) -> None:
        with trio.CancelScope() as scope:
            visit = Visit(ip, scope.cancel, relay=relay)
            try:
                wait_s = self.door.arrive(visit, trio.current_time())
            except Refusal as refusal:
                self.refused[str(refusal)] += 1
                return
            try:
                await trio.sleep(wait_s)
                await self._receive(stream, visit, asker)
            finally:
                self.door.leave(visit)
        if scope.cancelled_caught:
            self.refused["made-room"] += 1

    async def _receive(self, stream: ByteStream, visit: Visit, asker: PeerId | None) -> None:
        connection = await self._authenticate(stream, visit)
        if connection is not None and asker not in (None, connection.peer):
            self.refused["circuit-identity"] += 1  # the relay lies, or its client does
            return
        if connection is not None:
            visit.peer = connection.peer
            visit.evict = partial(connection.close, "made room for another")
            await self._guarded(connection)

    async def _authenticate(self, stream: ByteStream, visit: Visit) -> Connection | None:
        try:
            with trio.fail_after(self._limits.handshake_s):
                proved = await handshake(stream, self._identity, None)
        except trio.TooSlowError:
            self.refused["handshake-slow"] += 1
            return None
        except HandshakeFailed:
            self.refused["handshake-failed"] += 1
            self.door.offence(visit.ip, trio.current_time())
            return None
        return Connection(
            proved.peer,
            proved.channel,
            dialled=False,
            early=proved.early,
            ip=visit.ip,
            visit=visit,
            relay=visit.relay,
        )

    async def _guarded(self, connection: Connection) -> None:
        """Run a connection; an error in its handler ends only this connection."""
        try:
            await self._handler(connection)
        except* Exception as errors:
            self.refused["handler-failed"] += 1
            _log.error("connection with %s failed", connection.peer, exc_info=errors)


@asynccontextmanager
async def open_host(
    seed: bytes,
    listen: Sequence[str | tuple[str, int]],
    handler: Handler,
    limits: HostLimits | None = None,
) -> AsyncIterator[Host]:
    """Open a host; everything it runs ends with the block.

    Args:
        seed: 32 bytes of the Ed25519 identity.
        listen: multiaddrs, or IPv4 addresses with ports; port 0 lets the system choose.
        handler: called with every authenticated connection; it has to ``run`` it, and the
            connection is closed when it returns.
        limits: bounds on connections.

    Raises:
        PortInUse, ListenError, AddressError: cannot listen there.
    """
    identity = make_identity(seed)
    wanted = [address for where in listen for address in parse_listen(where)]
    async with AsyncExitStack() as stack:
        listeners = [
            await stack.enter_async_context(transport_of(address).listen(address))
            for address in wanted
        ]
        bound = [listener.address for listener in listeners]
        async with trio.open_nursery() as nursery:
            host = Host(identity, handler, nursery, limits or HostLimits(), bound)
            if listeners:
                nursery.start_soon(trio.serve_listeners, host._serve, listeners)
            try:
                yield host
            finally:
                nursery.cancel_scope.cancel()


def _everybody(peer: PeerId) -> bool:
    return True
