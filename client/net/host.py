"""The host: listens, dials, authenticates, and keeps the number of connections bounded.

State: the addresses it listens on and the connections that are alive; the limiter decides who is
let in. The host does not know the purpose of a connection: it runs the one handler it was opened
with, once for each authenticated connection.
No event on one connection, including an exception in the handler, may end another.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from client.net.addresses import (
    LOOPBACK,
    WILDCARDS,
    Destination,
    numeric_host,
    reachable_hosts,
)
from client.net.connection_limiter import ConnectionLimiter, HostLimits, InboundConnection, Refusal
from client.net.errors import (
    ConnectionLost,
    DialError,
    HandshakeFailed,
    NotAnswered,
    NotCalled,
    TurnedAway,
)
from client.net.handshake import Identity, handshake, make_identity
from client.net.racing import race
from client.net.secure import SecureChannel
from client.net.tcp import TCP
from client.net.transport import ByteStream, closing
from client.net.yamux import YamuxSession
from protocol.address import Address
from protocol.errors import RemoteProtocolError
from protocol.hosts import is_global
from protocol.ids import PeerId

PROBE_S = 5.0
MEET_S = 2.5
"""Longest wait for the connection of who dials us at the same time: one packet may be lost."""
DRAIN_S = 1.0
"""Seconds after the end of the connection to read data that arrived before."""
_log = logging.getLogger(__name__)


class Connection:
    """An authenticated connection: its peer, and the streams to it.

    Args:
        channel: with who has proved to be at the other end.
        dialled: whether we dialled.
        inbound: the record of an inbound connection at the limiter.
        called: where we dialled it; its host, or that of its relay, is a number.
        punched: whether both sides dialled at once; then the one that began Noise has "dialled".
    """

    def __init__(
        self,
        channel: SecureChannel,
        *,
        dialled: bool,
        inbound: InboundConnection | None = None,
        called: Destination | None = None,
        punched: bool = False,
    ) -> None:
        self.peer, self.dialled, self.called, self.punched = channel.peer, dialled, called, punched
        self.inbound, way = inbound, inbound or called
        self.relay = None if way is None else way.relay
        """The peer that passes the connection on; None: it is direct."""
        stream = channel.stream
        self.host_by_relay = ""
        """Where the relay sees the other end, a number; empty: it has not said so."""
        self.ip, self.own_host, self.ports = stream.remote_host, stream.own_host, stream.ports
        """See `ByteStream`."""
        self.session = YamuxSession(channel, dialler=dialled)
        self._channel = channel
        self._scope = trio.CancelScope()
        self.reason = ""
        """Why it ended, once it has: the first reason given stands."""
        self.by_peer = False
        """Whether the other side ended it without a word, as its machine does for a process that
        died."""
        self.ended = trio.Event()
        """Set by the handler when it has finished with the connection."""
        self._doubted_at: int | None = None
        """What it had received when the peer did not answer."""

    @property
    def bytes_in(self) -> int:
        """Bytes received from the network, encryption included."""
        return self._channel.bytes_in

    @property
    def bytes_out(self) -> int:
        """Bytes sent to the network, encryption included."""
        return self._channel.bytes_out

    @property
    def in_doubt(self) -> bool:
        return self._doubted_at == self.bytes_in

    def doubt(self) -> None:
        self._doubted_at = self.bytes_in

    def close(self, reason: str) -> None:
        """End the connection from any task."""
        self.reason = self.reason or reason
        self._scope.cancel()

    def lost(self, reason: str) -> None:
        """Note that the other side has ended the connection, if it has not broken a rule; behind a
        relay that is uncertain."""
        broken, told = self.session.violation, self.session.told_to_go
        silently = self.relay is None and not told and broken is None
        self.by_peer = self.by_peer or (silently and not self.reason)
        self.reason = self.reason or (reason if broken is None else broken.reason)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the session, and some work on its streams, until either ends or ``close``."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._run_session)
                    await work()
                    self._scope.cancel()
            await self.session.go_away()
        finally:
            self._channel.release()

    async def _run_session(self) -> None:
        try:
            await self.session.run()
            self.lost("closed by the peer")
        except ConnectionLost as error:
            self.lost(str(error))
        except RemoteProtocolError as error:
            self.close(error.reason)
        # Received data may still be read; a task that waits for more gets the end of the stream.
        await trio.sleep(DRAIN_S)
        self._scope.cancel()


class _Proved(HandshakeFailed):
    """A peer that we probe has proved its identity."""


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
        self._identity, self._handler, self.nursery = identity, handler, nursery
        self._limits, self.bound = limits, bound
        """Where we listen."""
        self.is_member: Callable[[PeerId], bool] = lambda _peer: True
        """Tells which peers are members; their connections have places apart from strangers'."""
        self.dial_circuit: Callable[[Destination], AbstractAsyncContextManager[ByteStream]]
        """Dials an address that names a relay, as ``TCP.dial`` the others; set by the network."""
        self.limiter = ConnectionLimiter(limits, lambda peer: self.is_member(peer))
        self._arrived: dict[ByteStream, tuple[InboundConnection, trio.CancelScope, float]] = {}
        """Those let in that have no task yet, each with what ends it and when it is its turn."""
        self.refused: Counter[str] = Counter()
        """Connections that did not come about or ended by a violation, by reason."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses at which others reach us now, public ones first; they change with the
        network."""
        own = [replace(bound, peer=self.peer_id) for bound in self.bound]
        found = [replace(bound, host=host) for bound in own for host in reachable_hosts(bound.host)]
        found = found or [replace(bound, host=LOOPBACK[bound.host]) for bound in own]
        return tuple(map(str, sorted(found, key=lambda address: not is_global(address.host))))

    @property
    def chosen_hosts(self) -> list[str]:
        """The addresses of this machine that we listen on, where they were chosen."""
        return [bound.host for bound in self.bound if bound.host not in WILDCARDS.values()]

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer

    async def connect(
        self, targets: Sequence[Destination], may_call: Callable[[Destination], bool] | None = None
    ) -> Connection:
        """Dial a peer at its addresses, as `racing` says; the handler then runs in the host.
        ``may_call`` is asked when one is about to be tried; its host is a number.

        Raises:
            NotCalled: no address may be called.
            DialError: nobody there, somebody else there, or too slow.
        """
        words = ", ".join(map(str, targets))
        if any(target.peer == self.peer_id for target in targets):
            raise DialError(f"{words} is this very peer")
        try:
            with trio.fail_after(self._limits.dial_s):
                return await self.nursery.start(self._dial, targets, may_call)
        except trio.TooSlowError:
            raise DialError(f"{words}: no answer within {self._limits.dial_s:.0f} s") from None

    async def _dial(
        self,
        targets: Sequence[Destination],
        may_call: Callable[[Destination], bool] | None,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a race, and then the connection of its winner."""
        attempt = partial(self._attempt, may_call=may_call, task_status=task_status)
        await race(attempt, targets)

    async def _attempt(
        self,
        target: Destination,
        claim: Callable[[], None],
        *,
        may_call: Callable[[Destination], bool] | None,
        task_status: Any,
    ) -> None:
        """Dial one address; if that wins the race, run the connection to its end."""
        numeric = await numeric_host(target)
        if may_call is not None and not may_call(numeric):
            raise NotCalled(f"{target} is not called now")
        dial = TCP.dial if numeric.relay is None else self.dial_circuit
        async with dial(numeric) as stream:
            try:
                channel = await handshake(stream, self._identity, target.peer, claim)
            except NotAnswered as error:
                raise TurnedAway(f"{target}: {error}") from error
            except HandshakeFailed as error:
                raise DialError(f"{target}: {error}") from error
            connection = Connection(channel, dialled=True, called=numeric)
            task_status.started(connection)
            await self._dialled(connection)

    async def probe(self, target: Destination) -> bool:
        """Whether a peer proves its identity at an address within `PROBE_S`; it does not learn
        ours."""

        def proved() -> None:
            raise _Proved("that is all we wanted to know")

        with trio.move_on_after(PROBE_S):
            try:
                async with TCP.dial(target) as stream:
                    await handshake(stream, self._identity, target.peer, proved)
            except _Proved:
                return True
            except (DialError, HandshakeFailed):
                return False
        return False

    async def meet(self, target: Destination, own_port: int, *, first: bool) -> None:
        """Connect to a peer that does the same; returns once the connection runs in the host.

        Args:
            target: where the peer dials from.
            own_port: from which we do; the peer knows where it is seen.
            first: whether we begin Noise.

        Raises:
            DialError: nobody came, or somebody else, or too slow.
        """
        await self.nursery.start(self._meet, target, own_port, first)

    async def _meet(
        self,
        target: Destination,
        own_port: int,
        first: bool,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with AsyncExitStack() as stack:
            try:
                with trio.fail_after(MEET_S):
                    stream = await stack.enter_async_context(TCP.dial(target, own_port))
                with trio.fail_after(self._limits.handshake_s):
                    other = target.peer if first else None
                    channel = await handshake(stream, self._identity, other)
            except (HandshakeFailed, trio.TooSlowError) as error:
                raise DialError(f"{target}: {str(error) or 'nobody came in time'}") from error
            if channel.peer != target.peer:
                raise DialError(f"{target}: somebody else came")
            connection = Connection(channel, dialled=first, punched=True)
            task_status.started()
            await self._dialled(connection)

    async def _dialled(self, connection: Connection) -> None:
        self.limiter.dialled += 1
        try:
            await self._guarded(connection)
        finally:
            self.limiter.dialled -= 1

    def _lets_in(self, stream: ByteStream, relay: PeerId | None = None) -> bool:
        """Whether a connection may come in; it costs no task before: most of a crowd's may not."""
        scope, now = trio.CancelScope(), trio.current_time()
        inbound = InboundConnection(stream.remote_host, scope.cancel, relay=relay)
        try:
            turn_at = now + self.limiter.arrive(inbound, now)
        except Refusal as refusal:
            self.refused[str(refusal)] += 1
            return False
        self._arrived[stream] = inbound, scope, turn_at
        return True

    async def _serve(self, stream: ByteStream, asker: PeerId | None = None) -> None:
        """Handle one inbound connection, which was let in, to its last byte."""
        inbound, scope, turn_at = self._arrived.pop(stream)
        try:
            async with closing(stream):
                with scope:
                    await trio.sleep_until(turn_at)
                    await self._receive(stream, inbound, asker)
        except Refusal as refusal:
            self.refused[str(refusal)] += 1
        finally:
            self.limiter.leave(inbound)
        if scope.cancelled_caught:
            self.refused["made-room"] += 1

    async def serve_circuit(self, stream: ByteStream, relay: PeerId, asker: PeerId) -> None:
        """Handle an inbound connection that a relay passes on for ``asker``, as it says."""
        async with closing(stream):
            if self._lets_in(stream, relay):
                await self._serve(stream, asker)

    async def _receive(
        self, stream: ByteStream, inbound: InboundConnection, asker: PeerId | None
    ) -> None:
        try:
            with trio.fail_after(self._limits.handshake_s):
                channel = await handshake(stream, self._identity, None)
        except trio.TooSlowError:
            raise Refusal("handshake-slow") from None
        except HandshakeFailed as error:
            raise Refusal("handshake-failed") from error
        if asker not in (None, channel.peer):
            raise Refusal("circuit-identity")  # the relay lies, or its client does
        await trio.sleep(self.limiter.recognise(inbound, channel.peer, trio.current_time()))
        connection = Connection(channel, dialled=False, inbound=inbound)
        inbound.evict = partial(connection.close, "made room for another")
        await self._guarded(connection)

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
    listen: tuple[str, int],
    handler: Handler,
    limits: HostLimits,
) -> AsyncIterator[Host]:
    """Open a host; everything it runs ends with the block.

    Args:
        seed: 32 bytes of the Ed25519 identity.
        listen: where, as `Tcp.listen` takes it.
        handler: called with every authenticated connection; it has to ``run`` it, and the
            connection is closed when it returns.

    Raises:
        PortInUse, ListenError, AddressError: cannot listen there.
    """
    identity = make_identity(seed)
    async with TCP.listen(*listen) as listener, trio.open_nursery() as nursery:
        host = Host(identity, handler, nursery, limits, listener.addresses)
        listener.lets_in = host._lets_in
        nursery.start_soon(trio.serve_listeners, host._serve, [listener])
        try:
            yield host
        finally:
            nursery.cancel_scope.cancel()
