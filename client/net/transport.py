"""The interface of a byte stream, and of a transport that opens such streams.

A transport carries bytes between two machines in order. It proves no identity; the handshake that
follows does. Each transport is a file beside this one, named in ``protocol.address.TRANSPORTS``,
which defines ``TRANSPORT``. The rest of this folder uses only this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import TypeVar

import trio

from client.net.errors import DialError
from protocol.address import TRANSPORTS, Address

Buffer = bytes | bytearray | memoryview


class ByteStream(trio.abc.AsyncResource):
    """Bytes in order both ways, between us and one other machine.

    One task may send and one may receive at a time. ``aclose`` ends it at once, without waiting for
    the other side.
    """

    @property
    @abstractmethod
    def remote_host(self) -> str:
        """The address of the other end, a number, by which connections are counted and penalised;
        empty when it is gone already."""

    @property
    def host_by_relay(self) -> str:
        """The address of the other end, a number, as a relay says; empty: none says so."""
        return ""

    @property
    def ports(self) -> tuple[int, int]:
        """Our own port and the other end's; zeros where there is no such thing."""
        return 0, 0

    @property
    def own_host(self) -> str:
        """The address of our end, a number; empty where there is no such thing."""
        return ""

    @property
    def queue_s(self) -> float:
        """Seconds that packets wait on their way now, beyond the shortest round trip; 0: they do
        not, or it is not known."""
        return 0.0

    @abstractmethod
    async def send_all(self, data: Buffer) -> None:
        """Send the bytes, waiting while the other side takes none.

        Args:
            data: must not change afterwards; the stream may read from it later.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken.
        """

    @abstractmethod
    async def receive_some(self, most: int) -> bytes:
        """Wait for bytes and return up to ``most`` of them; empty at the end of the stream.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken.
        """

    async def receive_into(self, buffer: memoryview, wanted_bytes: int) -> int:
        """Wait for bytes, put them in front and return how many; 0 at the end of the stream.

        Override it where that saves a copy.

        Args:
            buffer: takes what there is, at most its size.
            wanted_bytes: fewer are of no use yet, so the stream need not wake us for them; it may.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken.
        """
        data = await self.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)


Stream = TypeVar("Stream", bound=ByteStream, covariant=True)


class Listener(trio.abc.Listener[Stream]):
    """Listens by one transport; ``accept`` waits for the next connection.

    Attributes:
        welcome: asked with the other end's address, a number, when a connection comes; a listener
            that can ends one that is not welcome at once, before it costs a task.
    """

    welcome: Callable[[str], bool] = staticmethod(lambda _host: True)

    @property
    @abstractmethod
    def address(self) -> Address:
        """The address on which it listens, without our peer id. The port is the one that the system
        chose; the host may be 0.0.0.0 or ``::``."""


class Transport(ABC):
    """One way to carry bytes between machines."""

    @abstractmethod
    def dial(self, address: Address) -> AbstractAsyncContextManager[ByteStream]:
        """Connect to an address; the stream is closed with the block.

        Raises:
            DialError: nobody there, in words with the address.
        """

    def meet(self, address: Address, own_port: int) -> AbstractAsyncContextManager[ByteStream]:
        """Connect from a port of ours to who connects to us from the address at the same time; the
        stream is closed with the block.

        Raises:
            DialError: we have not met, in words with the address.
        """
        raise DialError(f"{address}: its transport cannot do that")

    @abstractmethod
    def listen(self, address: Address) -> AbstractAsyncContextManager[Listener[ByteStream]]:
        """Listen on an IP address and port; port 0 lets the system choose.

        On IPv6 addresses only IPv6 is taken, so that ``::`` and 0.0.0.0 can have the same port.

        Raises:
            PortInUse, NoSuchFamily, ListenError: cannot listen there.
        """

    def usual_address(self, host: str, port: int) -> Address | None:
        """Return the address to listen on for a host and a port without a transport; None: only if
        the transport is named."""
        return None

    def network_changed(self) -> None:  # noqa: B027  (most have learned nothing)
        """Forget what was learned of the network that this machine was in."""


def transport_of(address: Address) -> Transport:
    """Return the transport that an address names."""
    return _load(address.transport)


def usual_addresses(host: str, port: int) -> list[Address]:
    """Return the addresses of all transports to listen on for a host and a port."""
    found = (_load(name).usual_address(host, port) for name in TRANSPORTS)
    return [address for address in found if address is not None]


def forget_network() -> None:
    """Let all transports forget the network that this machine was in."""
    for name in TRANSPORTS:
        _load(name).network_changed()


@asynccontextmanager
async def closing(opened: trio.abc.AsyncResource) -> AsyncIterator[None]:
    """Close a stream or a listener at the end, without waiting for the other side.

    It is shielded from cancellation, which would replace an error that is being raised.
    """
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(opened)


def _load(name: str) -> Transport:
    found: Transport = import_module(f"client.net.{name}").TRANSPORT
    return found
