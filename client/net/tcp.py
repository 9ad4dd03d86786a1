"""TCP: byte streams over sockets of the system, tuned for small messages beside large tensors.

State: for each stream, the bytes that the kernel waits for before it wakes the reader, and those
that it may keep unsent.
"""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from client.config import EVERYWHERE
from client.net.addresses import WILDCARDS
from client.net.errors import AddressError, DialError, ListenError, PortInUse
from client.net.rendezvous import Rendezvous, await_at
from client.net.transport import Buffer, ByteStream, closing
from protocol.address import Address
from protocol.hosts import is_global, kind_of, number_of

UNSENT_BYTES = 64 * 1024
"""Unsent bytes in the kernel at most; more would delay control messages behind tensors."""
SEND_BUFFER_BYTES = 32 * 1024 * 1024
"""Unacknowledged bytes in the kernel, with its bookkeeping: 400 Mb/s over 300 ms."""
MAX_LOW_WATER_BYTES = 16 * 1024
"""Asked to wait for much more than this, Linux (6.18) clamps the receive window to it."""
BACKLOG = 65535
"""Connections that wait to be taken; the kernel has a bound of its own."""
SHARED_DIALS = 8
IPV6_ADDR_PREFERENCES, LASTING = 72, 2
"""Linux: leave from an address that lasts (RFC 5014), which we advertise, and not from one that was
made up to be thrown away: so others see us where we listen."""
SO_SNDBUFFORCE = 32  # Linux; not named by the socket module
TCP_NOTSENT_LOWAT: Final = {"linux": 25, "darwin": 0x201}
"""By system: the socket module names it only from Python 3.12 on."""


class TcpStream(ByteStream):
    """One TCP connection; ``stream`` is trio's."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._low_water = 1  # bytes that the kernel waits for before it wakes us
        self._unsent_bytes = UNSENT_BYTES
        with contextlib.suppress(OSError):  # it has ended already
            (own, own_port, *_), (other, port, *_) = (
                stream.socket.getsockname(),
                stream.socket.getpeername(),
            )
            self.own_host, self.remote_host = _number(own), _number(other)
            self.ports = own_port, port
        _tune(stream)

    def keep_unsent(self, most_bytes: int) -> None:
        self._unsent_bytes = min(most_bytes, UNSENT_BYTES)
        _bound_unsent(self.stream, self._unsent_bytes)

    async def wait_for_room(self) -> None:
        """Linux adds to a packet that has not left, up to 64 KiB, however much is unsent."""
        if self._unsent_bytes < UNSENT_BYTES:
            # closed: whoever sends next is told so
            with contextlib.suppress(OSError, ValueError, trio.ClosedResourceError):
                await trio.lowlevel.wait_writable(self.stream.socket.fileno())

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            await self.stream.send_all(memoryview(buffer))

    async def receive_some(self, most: int) -> bytes:
        return await self.stream.receive_some(most)

    async def receive_into(self, buffer: memoryview, wanted_bytes: int) -> int:
        self._wake_for(min(wanted_bytes, MAX_LOW_WATER_BYTES))
        try:
            return await self.stream.socket.recv_into(buffer)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        await self.stream.aclose()

    def _wake_for(self, size: int) -> None:
        """Sleep through the packets of a message: on a slow line, a tenth of the work."""
        if size != self._low_water:
            self._low_water = size
            with contextlib.suppress(OSError):  # not everywhere, and not needed
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


class TcpListener(trio.abc.Listener[TcpStream]):
    """A socket that listens."""

    lets_in: Callable[[TcpStream], bool] = staticmethod(lambda _stream: True)
    """Asked when a connection comes; one that is not let in ends at once."""

    def __init__(self, opened: socket.socket) -> None:
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(opened))
        host, port = opened.getsockname()[:2]
        both = opened.family == socket.AF_INET6 and not opened.getsockopt(
            socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
        )
        hosts = WILDCARDS.values() if both else [host]
        self.addresses = [Address(kind_of(host), host, port) for host in hosts]
        """Where it listens, without our peer id; hosts may be 0.0.0.0 and ``::``."""

    async def accept(self) -> TcpStream:
        """Wait for the next connection that is let in."""
        while True:
            stream = TcpStream(await self._listener.accept())
            if stream.remote_host and self.lets_in(stream):  # else it has ended already
                return stream
            stream.stream.socket.close()

    async def aclose(self) -> None:
        await self._listener.aclose()


class Tcp:
    """Dials and listens.

    The first dial to each of a few machines of the internet leaves from one port, so that several
    see it and no liar decides where it is seen. State: that port, and who was dialled from it.
    """

    def __init__(self) -> None:
        self._shared_port = 0
        self._dialled: set[str] = set()

    @asynccontextmanager
    async def dial(self, address: Address, own_port: int | None = None) -> AsyncIterator[TcpStream]:
        """Connect to an address, whose host is a number; the stream is closed with the block.

        Args:
            own_port: of ours, from which we connect to who connects to us from the address at the
                same time; None: nobody does.

        Raises:
            DialError: nobody there, or we have not met, in words with the address.
        """
        try:
            if own_port is None:
                stream = await self._connect(address)
            else:
                stream = await self._meet(address, own_port)
        except OSError as error:  # trio's words repeat the address
            raise DialError(f"{address}: {os.strerror(error.errno or 0)}") from error
        opened = TcpStream(stream)
        async with closing(opened):
            yield opened

    @asynccontextmanager
    async def listen(self, host: str, port: int) -> AsyncIterator[TcpListener]:
        """Listen on a port of an address; port 0 lets the system choose.

        Args:
            host: a number, or ``EVERYWHERE``; ``::`` stands for all addresses of IPv6 only.

        Raises:
            AddressError: these are no address and port.
            PortInUse, ListenError: cannot listen there.
        """
        is_host = host == EVERYWHERE or (number_of(host) is not None and "%" not in host)
        if not is_host or not 0 <= port <= 65535:
            what = f"{host!r} port {port}: not an IP address and port, nor {EVERYWHERE!r}"
            raise AddressError(f"cannot listen on {what}")
        try:
            opened = TcpListener(_listening(host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(port) from error
            words = os.strerror(error.errno or 0)
            raise ListenError(f"cannot listen on {host} port {port}: {words}") from error
        async with closing(opened):
            yield opened

    def network_changed(self) -> None:
        """Let another port be seen by others."""
        self._shared_port = 0
        self._dialled.clear()

    async def _connect(self, address: Address) -> trio.SocketStream:
        host, port = address.host, address.port
        if self._shares_port(host):
            self._dialled.add(host)
            try:
                stream = await self._connect_from(self._shared_port, host, port)
                self._shared_port = stream.socket.getsockname()[1]
                return stream
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
        return await self._connect_from(0 if is_global(host) else None, host, port)

    async def _meet(self, address: Address, own_port: int) -> trio.SocketStream:
        """Dial a peer from a port, and take it if it comes there first.

        Simultaneous open reaches the socket that dials. Who listens gets a peer that came before we
        dialled, and one whose router shows another port to us than it knows. Our own dial has then
        told our router that the peer's host is welcome, so we wait for it though the dial has
        failed.
        """
        met: list[trio.SocketStream] = []

        async def dial() -> None:
            with contextlib.suppress(OSError):
                met.append(await self._connect_from(own_port, address.host, address.port))
                nursery.cancel_scope.cancel()

        async def wait(rendezvous: Rendezvous) -> None:
            met.append(await rendezvous.accept(address.host))
            nursery.cancel_scope.cancel()

        try:
            with await_at(address.host, own_port) as rendezvous:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait, rendezvous)
                    nursery.start_soon(dial)
        except BaseException:
            while met:
                met.pop().socket.close()
            raise
        for stream in met[1:]:
            stream.socket.close()
        return met[0]

    def _shares_port(self, host: str) -> bool:
        new = host not in self._dialled and len(self._dialled) < SHARED_DIALS
        return new and kind_of(host) == "ip4" and is_global(host)

    async def _connect_from(self, own_port: int | None, host: str, port: int) -> trio.SocketStream:
        """Connect from a port that other sockets may have, too; 0: from any such; None: from any
        of our own. Where a router may be between, its mapping or firewall then lets in others."""
        family = socket.AF_INET6 if kind_of(host) == "ip6" else socket.AF_INET
        opened = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            if own_port is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                await opened.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", own_port))
            if family == socket.AF_INET6 and sys.platform == "linux":
                with contextlib.suppress(OSError):
                    opened.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, LASTING)
            await opened.connect((host, port))
        except BaseException:
            opened.close()
            raise
        return trio.SocketStream(opened)


TCP: Final = Tcp()


def _number(host: str) -> str:
    """Return a host without its line, and one of IPv4 as such."""
    host = host.partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; everywhere is IPv4 alone where this machine lacks IPv6, or has
    it switched off (``disable_ipv6``)."""
    family = socket.AF_INET
    if host == EVERYWHERE:
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.EADDRNOTAVAIL:
                raise
        host = "0.0.0.0"
    elif kind_of(host) == "ip6":
        family = socket.AF_INET6
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _tune(stream: trio.SocketStream) -> None:
    """Send without delay, fill long lines, and keep few bytes unsent in the kernel, where nothing
    overtakes them."""
    with contextlib.suppress(OSError):  # closed already, on some systems
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _bound_unsent(stream, UNSENT_BYTES)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # takes CAP_NET_ADMIN
            stream.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES // 2)


def _bound_unsent(stream: trio.SocketStream, most_bytes: int) -> None:
    if (option := TCP_NOTSENT_LOWAT.get(sys.platform)) is not None:
        with contextlib.suppress(OSError):
            stream.setsockopt(socket.IPPROTO_TCP, option, most_bytes)
