"""A circuit as a byte stream: one stream of the link with a relay, which passes the bytes on.

The usual handshake runs over it from end to end, so the relay sees ciphertext and cannot take the
peer's place. State: the stream.
"""

import trio

from client.net.errors import ConnectionLost, StreamReset
from client.net.transport import Buffer, ByteStream
from client.net.yamux import YamuxStream

WINDOW_BYTES = 4 * 1024 * 1024
"""The most that a relay may have in flight to us in one circuit, within the link's budget."""
_RELAY_FAILED = (StreamReset, ConnectionLost)
"""What goes wrong on the link with the relay is not the fault of the peer behind it."""


class CircuitStream(ByteStream):
    """Our end of a circuit; ``host`` is where the relay sees the other one, as it says."""

    def __init__(self, stream: YamuxStream, host: str = "") -> None:
        self._stream, self.host_by_relay = stream, host
        stream.let_window_grow(WINDOW_BYTES)

    async def send_all(self, data: Buffer) -> None:
        """Send the bytes. See `ByteStream.send_all`."""
        try:
            await self._stream.send_all([data])
        except _RELAY_FAILED as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def receive_some(self, most: int) -> bytes:
        """Return up to ``most`` bytes. See `ByteStream.receive_some`."""
        try:
            return bytes(await self._stream.receive_some(most))
        except _RELAY_FAILED as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        """End the circuit at once."""
        self._stream.reset()
        await trio.lowlevel.checkpoint()
