"""The secure handshake: turns a fresh byte stream into a channel with a proven peer id.

multistream-select agrees on Noise, the library's Noise XX handshake proves the identities,
multistream-select inside agrees on Yamux. Nothing else is offered and nothing else is accepted. It
has no state and no deadline; the caller sets one for the whole handshake.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from client.net.errors import HandshakeFailed, NotAnswered
from client.net.libp2p_patches import MUXER, SECURITY, GuardedStream
from client.net.secure import SecureChannel
from client.net.transport import ByteStream
from protocol.ids import PeerId, parse_peer_id

# isort: split
# After mends, which imports the library quietly.
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.peer.id import ID
from libp2p.security.noise.patterns import PatternXX
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

MULTISTREAM = "/multistream/1.0.0"
MAX_TOKEN_BYTES = 1024
"""Longest multistream token; the longest honest one is a protocol id of some 30 bytes."""
MAX_PROPOSALS = 15
"""Protocols that one agreement may try: each that we do not know is answered."""


@dataclass(frozen=True)
class Identity:
    """The keys of a host: its Ed25519 identity and an X25519 key for Noise, made at each start."""

    peer: PeerId
    libp2p_id: Any = field(repr=False)
    private_key: Any = field(repr=False)
    noise_key: Any = field(repr=False)


def make_identity(seed: bytes) -> Identity:
    """Return the identity of a 32-byte Ed25519 seed."""
    if len(seed) != 32:
        raise ValueError("an Ed25519 seed has 32 bytes")
    keys = create_new_key_pair(seed)
    libp2p_id = ID.from_pubkey(keys.public_key)
    peer = parse_peer_id(libp2p_id.to_base58())
    return Identity(peer, libp2p_id, keys.private_key, create_noise_key_pair().private_key)


async def handshake(
    stream: ByteStream,
    identity: Identity,
    expected: PeerId | None,
    claim: Callable[[], None] | None = None,
) -> SecureChannel:
    """Authenticate the other side and agree on Noise and Yamux.

    Args:
        stream: fresh.
        identity: ours.
        expected: the peer that must answer if we dialled; None if we were dialled.
        claim: called when the peer that we dialled has proved its identity and is about to learn
            ours; it may raise HandshakeFailed, and the peer then never learns who called.

    Raises:
        HandshakeFailed: names the fault of the other side.
    """
    raw = GuardedStream(stream) if expected is None else _Asking(SECURITY, stream)
    pattern = _Pattern(identity.libp2p_id, identity.private_key, identity.noise_key)
    try:
        if expected is None:
            await accept_protocol(raw, [SECURITY])
            session = await pattern.handshake_inbound(raw)
        else:
            pattern.claim = claim
            session = await pattern.handshake_outbound(raw, ID.from_base58(expected))
        peer = parse_peer_id(session.get_remote_peer().to_base58())
        channel = _take_over(stream, session, peer)
        inside = GuardedStream(channel)
        if expected is None:
            await accept_protocol(inside, [MUXER])
        else:
            await request_protocol(inside, MUXER)
    except HandshakeFailed as error:
        if isinstance(raw, _Asking) and not raw.heard:
            raise NotAnswered("closed at once; it may be full: too many come now") from error
        raise
    except Exception as error:
        # The library and the Noise package raise some twenty unrelated types on hostile bytes
        # (ValueError, KeyError, InvalidTag, ...). All mean the same: the other side is no valid
        # peer.
        raise HandshakeFailed(f"{type(error).__name__}: {error}") from error
    if expected is not None and peer != expected:
        raise HandshakeFailed(f"{peer} answered instead of {expected}")
    return channel


async def request_protocol(stream: GuardedStream, protocol: str, then: bytes = b"") -> None:
    """Ask the other side for a protocol on a fresh stream, in one round trip; ``then`` is sent
    along, and whoever agrees reads it next. Raises HandshakeFailed if it refuses."""
    await _agree(stream, protocol, _request(protocol) + then)


def _request(protocol: str) -> bytes:
    return _token(MULTISTREAM) + _token(protocol)


async def _agree(stream: GuardedStream, protocol: str, question: bytes = b"") -> None:
    """Ask for a protocol, if that is to do still, and read what agrees to it; raises
    HandshakeFailed if it is something else."""
    try:
        if question:
            await stream.write(question)
        await _expect_multistream(stream)
        agreed = await _read_token(stream)
    except HandshakeFailed:
        raise
    except Exception as error:
        raise HandshakeFailed(f"{protocol} was refused: {error}") from error
    if agreed != protocol:
        raise HandshakeFailed(f"{protocol} was refused: the answer is {agreed!r}")


async def _expect_multistream(stream: GuardedStream) -> None:
    if (header := await _read_token(stream)) != MULTISTREAM:
        raise HandshakeFailed(f"{header!r} is not multistream-select")


async def _read_token(stream: GuardedStream) -> str:
    """Read one token; raises some error where there is none within our bounds."""
    token = await read_varint_prefixed_bytes_limited(stream, MAX_TOKEN_BYTES)
    if not token.endswith(b"\n"):
        raise ValueError("a token without its line feed")
    return str(token[:-1], "utf-8")


def _token(text: str) -> bytes:
    """Return what multistream-select sends for a text: its length in one byte, a line feed."""
    data = text.encode() + b"\n"
    assert len(data) < 0x80
    return bytes([len(data)]) + data


async def accept_protocol(stream: GuardedStream, protocols: Collection[str]) -> str:
    """Let the other side choose one of our protocols; raises HandshakeFailed if it does not."""
    try:
        await stream.write(_token(MULTISTREAM))
        await _expect_multistream(stream)
        for _ in range(MAX_PROPOSALS):
            proposed = await _read_token(stream)
            if proposed in protocols:
                await stream.write(_token(proposed))
                return proposed
            await stream.write(_token("na"))
    except Exception as error:
        raise HandshakeFailed(f"no protocol agreed on: {error}") from error
    raise HandshakeFailed("no protocol agreed on: too many were proposed")


class _Asking(GuardedStream):
    """A stream that asks for a protocol along with the first bytes that are written, and reads the
    answer before the first that are read: that saves a round trip."""

    def __init__(self, protocol: str, stream: ByteStream) -> None:
        super().__init__(stream)
        self._protocol = protocol
        self._asked = self._answered = False
        self.heard = False
        """Whether the other side has said anything."""

    async def read(self, n: int | None = None) -> bytes:
        """Read up to ``n`` bytes behind the answer; raises HandshakeFailed if it refuses."""
        if not self._answered:
            self._answered = True
            await _agree(self, self._protocol)
        data = await super().read(n)
        self.heard = True
        return data

    async def write(self, data: bytes) -> None:
        """Write everything, the first time behind the question."""
        asking = b"" if self._asked else _request(self._protocol)
        self._asked = True
        await super().write(asking + data)


class _Pattern(PatternXX):  # type: ignore[misc]  # untyped library
    """The Noise handshake; ``claim`` is called before we say who we are."""

    claim: Callable[[], None] | None = None

    def make_handshake_payload(self) -> Any:
        """Return what proves our identity; a dialler sends it last."""
        if self.claim is not None:
            self.claim()
        return super().make_handshake_payload()


def _take_over(stream: ByteStream, session: Any, peer: PeerId) -> SecureChannel:
    """Take the ciphers out of the library's session, which reads exactly: no byte is lost."""
    noise = session.conn.noise_state.noise_protocol
    return SecureChannel(stream, noise.cipher_state_encrypt, noise.cipher_state_decrypt, peer)
