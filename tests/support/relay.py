"""A TCP relay between two networks: it holds, slows or half-closes what passes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from client.net.addresses import parse_destination

PIECE_BYTES = 256 * 1024


class Relay:
    """Stands before the address it is opened with."""

    def __init__(self, nursery: trio.Nursery, behind: str) -> None:
        self._nursery = nursery
        self.behind = parse_destination(behind)
        self.streams: list[trio.SocketStream] = []
        self.address = ""
        self.open = trio.Event()
        """Nothing passes to the dialler before; set unless the test replaces it."""
        self.open.set()
        self.pause_s = 0.0
        """Pause after each piece."""

    async def serve(self, dialled: trio.SocketStream) -> None:
        target = await trio.open_tcp_stream(self.behind.host, self.behind.port)
        self.streams += [target, dialled]
        self._nursery.start_soon(self._pump, dialled, target, False)
        await self._pump(target, dialled, True)
        await self.open.wait()  # the end is held, too

    async def forget_dialler(self) -> None:
        """End the connection for who dialled; the other side notices nothing."""
        await trio.aclose_forcefully(self.streams[-1])

    async def _pump(self, source: trio.SocketStream, to: trio.SocketStream, held: bool) -> None:
        try:
            while data := await source.receive_some(PIECE_BYTES):
                if held:
                    await self.open.wait()
                await to.send_all(data)
                await trio.sleep(self.pause_s)
            if not held:
                await to.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@asynccontextmanager
async def open_relay(behind: str) -> AsyncIterator[Relay]:
    """A relay to a multiaddr; its own is `address`. Nothing it was told to forget is closed."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        relay = Relay(nursery, behind)
        port = listener.socket.getsockname()[1]
        relay.address = str(replace(relay.behind, port=port))
        nursery.start_soon(trio.serve_listeners, relay.serve, [listener])
        try:
            yield relay
        finally:
            nursery.cancel_scope.cancel()
            for stream in relay.streams:
                stream.socket.close()
