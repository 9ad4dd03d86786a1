"""Signatures: an envelope binds a body to its author, its kind and its swarm.

Pure functions over libsodium's Ed25519, which is deterministic. The signed transcript names the
protocol, the context (the swarm's id) and the kind, so a signature made for one purpose is invalid
for any other. The signer's peer id contains the public key, so no key lookup is needed.
"""

from typing import Final

from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, key_from_peer_id, peer_id_from_key
from protocol.manifest import Manifest, decode_manifest, encode_manifest, swarm_id
from protocol.wire.fields import Envelope

SEED_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PROTOCOL_TAG: Final = b"volunteer/1"
MANIFEST_KIND: Final = "manifest"

_BAD_SIGNATURE_PENALTY = 50
"""An honest peer verifies before it relays, so two bad signatures are enough for a ban."""


class Signer:
    """One identity's private key: it signs and knows its peer id; the seed is never exposed."""

    __slots__ = ("_key", "peer")

    def __init__(self, seed: bytes) -> None:
        """Take the 32-byte Ed25519 seed; raises ``LocalProtocolError`` on another length."""
        if len(seed) != SEED_BYTES:
            raise LocalProtocolError(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._key = SigningKey(seed)
        self.peer: PeerId = peer_id_from_key(bytes(self._key.verify_key))

    def __repr__(self) -> str:
        return f"Signer({self.peer})"

    def sign(self, kind: str, body: bytes, context: str) -> Envelope:
        """Return ``body`` in an envelope of ``kind``, valid in ``context`` only."""
        signature = self._signature(kind, body, context)
        return Envelope(signer=self.peer, kind=kind, body=body, signature=signature)

    def sign_manifest(self, manifest: Manifest) -> tuple[bytes, bytes]:
        """Return (canonical bytes, signature) of a manifest that names this signer as founder.

        Raises:
            LocalProtocolError: the manifest names another founder.
        """
        if manifest.founder != self.peer:
            raise LocalProtocolError("only the founder signs a manifest")
        encoded = encode_manifest(manifest)
        return encoded, self._signature(MANIFEST_KIND, encoded, swarm_id(encoded))

    def _signature(self, kind: str, body: bytes, context: str) -> bytes:
        return self._key.sign(transcript(kind, body, context)).signature


def transcript(kind: str, body: bytes, context: str) -> bytes:
    """Return the bytes that are signed: tag, ``context``, ``kind`` and ``body``, each after its
    length, so that no part can be read as another."""
    parts = (PROTOCOL_TAG, context.encode(), kind.encode(), body)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def verify(envelope: Envelope, context: str) -> None:
    """Check that the signer named in the envelope signed it in this context.

    Raises:
        RemoteProtocolError: ``bad-signer`` (not an Ed25519 peer id) or ``bad-signature``.
    """
    message = transcript(envelope.kind, envelope.body, context)
    _check(envelope.signer, message, envelope.signature)


def verify_manifest(encoded: bytes, signature: bytes) -> Manifest:
    """Parse a manifest and check its founder's signature; the key is in the founder's peer id.

    Raises:
        RemoteProtocolError: as ``decode_manifest``, ``bad-signer`` or ``bad-signature``.
    """
    manifest = decode_manifest(encoded)
    _check(manifest.founder, transcript(MANIFEST_KIND, encoded, swarm_id(encoded)), signature)
    return manifest


def _check(signer: str, message: bytes, signature: bytes) -> None:
    try:
        key = VerifyKey(key_from_peer_id(signer))
    except ValueError as error:
        raise RemoteProtocolError("bad-signer", str(error), _BAD_SIGNATURE_PENALTY) from error
    try:
        key.verify(message, signature)
    except CryptoError as error:
        raise RemoteProtocolError("bad-signature", signer, _BAD_SIGNATURE_PENALTY) from error
