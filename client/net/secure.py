"""The Noise transport after its handshake: sealed messages over one byte stream.

The same bytes on the wire as the library's (libp2p specs, noise/README.md), in fewer steps: the
library makes several calls and copies per 64 KiB, this seals many messages into one write and opens
all messages of one read.

State: the two ciphers of the handshake with their counters, and the unopened rest of the last read.
"""

from collections.abc import Iterable

import trio
from cryptography.exceptions import InvalidTag
from noise.state import CipherState

from client.net.errors import ConnectionLost
from client.net.transport import Buffer, ByteStream
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

TAG_BYTES = 16
MAX_MESSAGE_BYTES = 65535
MAX_PLAINTEXT_BYTES = MAX_MESSAGE_BYTES - TAG_BYTES
"""Most plaintext of one Noise message, whose length field has two bytes."""
READ_BYTES = 256 * 1024
"""Least room of one read from a busy stream: four full Noise messages."""
FIRST_BUFFER_BYTES = 68 * 1024
"""Room for one message and a little more: most connections of strangers never need as much."""
_LENGTH_BYTES = 2


def seal(cipher: CipherState, plaintexts: Iterable[Buffer]) -> bytearray:
    """Return the wire form of messages of at most ``MAX_PLAINTEXT_BYTES`` each.

    They are encrypted in place, which takes a quarter of the time of joining what the cipher
    returns. The buffer is new each time, so that the stream may read from it later.
    """
    messages = list(plaintexts)
    wire = bytearray(sum(_LENGTH_BYTES + len(message) + TAG_BYTES for message in messages))
    end = 0
    with memoryview(wire) as view:
        for message in messages:
            start, sealed_bytes = end + _LENGTH_BYTES, len(message) + TAG_BYTES
            view[end:start] = sealed_bytes.to_bytes(_LENGTH_BYTES, "big")
            end = start + sealed_bytes
            inner, nonce = cipher.cipher, cipher.n
            cipher.set_nonce(nonce + 1)
            inner.cipher.encrypt_into(inner.format_nonce(nonce), message, None, view[start:end])
    return wire


class SecureChannel(ByteStream):
    """Encrypted, authenticated messages over one byte stream; a byte stream itself.

    One task may send and one may receive at a time. A send that is cancelled half way leaves the
    channel unusable, so the owner has to close it (`yamux.py` does).

    Args:
        stream: nobody else reads or writes it from now on.
        sealer: of what we send.
        opener: of what we receive.
        peer: who has proved to be at the other end.
    """

    def __init__(
        self, stream: ByteStream, sealer: CipherState, opener: CipherState, peer: PeerId
    ) -> None:
        self.stream, self._sealer, self._opener, self.peer = stream, sealer, opener, peer
        self._put_back: list[bytes] = []
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._filled = 0  # begins with a message that has not wholly arrived
        self.bytes_in = 0
        self.bytes_out = 0

    async def send_all(self, buffers: Iterable[Buffer]) -> None:
        """Seal and send messages of at most ``MAX_PLAINTEXT_BYTES`` each, in one write. Raises
        ConnectionLost: the connection is broken."""
        data = seal(self._sealer, buffers)
        try:
            await self.stream.send_all([data])
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost("connection lost while sending") from error
        self.bytes_out += len(data)

    async def receive(self) -> list[bytes]:
        """Wait for at least one message and return all that have arrived; [] at the end.

        Raises:
            ConnectionLost: the connection is broken.
            RemoteProtocolError: a message that the peer did not seal.
        """
        if self._put_back:
            messages, self._put_back = self._put_back, []
            await trio.lowlevel.checkpoint()
            return messages
        while True:
            try:
                with memoryview(self._buffer) as buffer, buffer[self._filled :] as free:
                    count = await self.stream.receive_into(free, self._missing_bytes())
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLost("connection lost while receiving") from error
            if not count:
                return []
            self.bytes_in += count
            self._filled += count
            full = self._filled == len(self._buffer)
            messages = self._open_all()
            if full:
                self._enlarge()
            if messages:
                return messages

    async def receive_some(self, most: int) -> bytes:
        """Wait for bytes and return up to ``most`` of them; empty at the end. See `receive`."""
        data = b"".join(await self.receive())
        if rest := data[most:]:
            self._put_back = [rest]
        return data[:most]

    def release(self) -> None:
        """Release the buffer once nothing more is received: references may keep an ended connection
        alive until the garbage collector runs."""
        self._buffer = bytearray()
        self._filled = 0

    def _enlarge(self) -> None:
        """The peer fills our reads: read more at a time from now on."""
        size = READ_BYTES + MAX_MESSAGE_BYTES
        if len(self._buffer) < size:
            self._buffer += bytes(size - len(self._buffer))

    def _missing_bytes(self) -> int:
        """Return the least bytes that must arrive before a message can be opened."""
        if self._filled < _LENGTH_BYTES:
            return 1
        return _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big") - self._filled

    def _open_all(self) -> list[bytes]:
        """Open the complete messages and move the rest, at most one message, to the front."""
        position, messages = 0, []
        with memoryview(self._buffer) as buffer:
            while self._filled - position >= _LENGTH_BYTES:
                start = position + _LENGTH_BYTES
                end = start + int.from_bytes(buffer[position:start], "big")
                if end > self._filled:
                    break
                try:
                    messages.append(self._opener.decrypt_with_ad(b"", buffer[start:end]))
                except InvalidTag as error:
                    raise RemoteProtocolError("noise-tag", penalty=0) from error
                position = end
            buffer[: self._filled - position] = buffer[position : self._filled]
        self._filled -= position
        return messages

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)
