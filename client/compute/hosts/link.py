"""An encrypted connection between two hosts of a job that hold the same key.

Each end sends an ephemeral public key. Both derive a key for each direction from the agreement of
these (X25519) and the job's key, and prove it: the dialler first, so that whoever does not hold the
key learns nothing but 36 bytes. Noise calls this NNpsk0. Afterwards all is cut into chunks of at
most 256 KiB, each a length and its ciphertext (ChaCha20-Poly1305) with a counter as the nonce.

State: both keys, both counters, and what was decrypted and not taken yet.
"""

from __future__ import annotations

import secrets
import struct
import sys
from contextlib import suppress
from hashlib import blake2b

import psutil
import trio
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt as decrypt,
)
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_encrypt as encrypt,
)
from nacl.bindings import (
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

HANDSHAKE_S = 10.0
_MAGIC = b"VHL1"
_POINT_BYTES = 32
_TAG_BYTES = 16
_CHUNK_BYTES = 256 << 10
_LENGTH = struct.Struct("<I")
_NONCE = struct.Struct("<4xQ")
_PROOF = b"volunteer host"
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A host that vanishes without a word is noticed within half a minute, where the system can."""


class LinkBroken(Exception):
    """The other end is gone, or is none of the job's."""


class WrongKey(LinkBroken):
    """The other end does not hold the job's key."""


class Link:
    """The connection, once both ends have proved that they hold the key; made by `connect`."""

    def __init__(self, stream: trio.SocketStream, sends: bytes, receives: bytes) -> None:
        self._stream = stream
        name = stream.socket.getsockname()
        self._address = str(name[0]) if isinstance(name, tuple) else ""
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0
        self._unread = b""
        self._sending = trio.Lock()
        self.closed = trio.Event()

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send everything; may be called by several tasks.

        Raises:
            trio.BrokenResourceError: the other end is gone.
        """
        view = memoryview(data)
        async with self._sending:
            for start in range(0, len(view), _CHUNK_BYTES):
                await self._stream.send_all(self._seal(bytes(view[start : start + _CHUNK_BYTES])))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, nothing at the end.

        Raises:
            trio.BrokenResourceError: the other end is gone, or somebody changed what it sent.
        """
        if not self._unread:
            try:
                self._unread = await self._chunk(_CHUNK_BYTES)
            except WrongKey as error:
                raise trio.BrokenResourceError from error
            except LinkBroken:
                return b""
        taken = self._unread[:max_bytes]
        self._unread = self._unread[len(taken) :]
        return taken

    async def aclose(self) -> None:
        """Close it."""
        self.closed.set()
        await trio.aclose_forcefully(self._stream)

    @property
    def interface(self) -> str:
        """Name of the network interface that leads to the other end; empty: not known."""
        return interface_of(self._address)

    async def prove(self, *, dials: bool) -> None:
        """Show that this end holds the key, and see that the other does; the dialler shows first.

        Raises:
            LinkBroken: the other end is gone.
            WrongKey: it does not hold the key, or says that this end does not.
        """
        if dials:
            await self._stream.send_all(self._seal(_PROOF))
        try:
            proof = await self._chunk(len(_PROOF))
        except WrongKey:
            raise
        except LinkBroken as error:
            raise (WrongKey if dials else LinkBroken)("the connection was closed") from error
        if proof != _PROOF:
            raise WrongKey("the other end proves nothing")
        if not dials:
            await self._stream.send_all(self._seal(_PROOF))

    def _seal(self, plain: bytes) -> bytes:
        sealed = encrypt(plain, None, _NONCE.pack(self._sent), self._sends)
        self._sent += 1
        return _LENGTH.pack(len(sealed)) + sealed

    async def _chunk(self, most: int) -> bytes:
        (size,) = _LENGTH.unpack(await _exactly(self._stream, _LENGTH.size))
        if not _TAG_BYTES < size <= most + _TAG_BYTES:
            raise WrongKey(f"a chunk of {size} bytes")
        sealed = await _exactly(self._stream, size)
        try:
            plain = decrypt(sealed, None, _NONCE.pack(self._received), self._receives)
        except CryptoError as error:
            raise WrongKey("a chunk that the job's key does not open") from error
        self._received += 1
        return plain


async def connect(stream: trio.SocketStream, key: bytes, *, dials: bool) -> Link:
    """Make an encrypted link of a fresh connection; closes it if that fails.

    Args:
        stream: the connection.
        key: the job's, of 32 bytes.
        dials: whether this end has opened the connection.

    Raises:
        LinkBroken: the other end is gone, too slow, or speaks something else.
        WrongKey: it does not hold the key.
    """
    try:
        with trio.fail_after(HANDSHAKE_S):
            return await _connect(stream, key, dials=dials)
    except trio.TooSlowError as error:
        await trio.aclose_forcefully(stream)
        raise LinkBroken(f"no handshake within {HANDSHAKE_S:.0f} s") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
        await trio.aclose_forcefully(stream)
        raise LinkBroken("the connection broke") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _connect(stream: trio.SocketStream, key: bytes, *, dials: bool) -> Link:
    _keep_alive(stream)
    secret = secrets.token_bytes(_POINT_BYTES)
    ours = crypto_scalarmult_base(secret)
    await stream.send_all(_MAGIC + ours)
    greeting = await _exactly(stream, len(_MAGIC) + _POINT_BYTES)
    if not greeting.startswith(_MAGIC):
        raise LinkBroken("what answers there is no host of a job")
    theirs = greeting[len(_MAGIC) :]
    try:
        agreed = crypto_scalarmult(secret, theirs)
    except (CryptoError, RuntimeError) as error:  # a point of low order
        raise WrongKey("no public key") from error
    first, second = (ours, theirs) if dials else (theirs, ours)
    keys = blake2b(agreed + first + second, key=key, person=b"volunteer-hosts").digest()
    to_acceptor, to_dialler = keys[:_POINT_BYTES], keys[_POINT_BYTES:]
    link = Link(stream, *((to_acceptor, to_dialler) if dials else (to_dialler, to_acceptor)))
    await link.prove(dials=dials)
    return link


async def pipe(link: Link, stream: trio.SocketStream) -> None:
    """Carry bytes both ways until either end is closed; then both are."""

    async def carry(source: Link | trio.SocketStream, sink: Link | trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(_CHUNK_BYTES):
                await sink.send_all(data)
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, link, stream)
            nursery.start_soon(carry, stream, link)
    finally:
        await link.aclose()
        await trio.aclose_forcefully(stream)


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise LinkBroken("the connection was closed")
        data += piece
    return data


def _keep_alive(stream: trio.SocketStream) -> None:
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(trio.socket, name, None)
        if option is not None:
            with suppress(OSError):
                stream.setsockopt(trio.socket.IPPROTO_TCP, option, value)


LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""Name of the interface that stays within a host."""


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address; empty: none has."""
    plain = address.partition("%")[0].removeprefix("::ffff:")
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == plain for each in addresses):
            return str(name)
    return ""
