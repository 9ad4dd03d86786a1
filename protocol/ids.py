"""Names of things: peers, swarms, stages.

Pure functions only. A peer id is the libp2p identity of an Ed25519 key: it *contains* the key, so a
signature can be checked by anyone who knows the peer id and nothing else.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NewType

from base58 import b58decode, b58encode

PeerId = NewType("PeerId", str)
"""Base58 text of the libp2p identity multihash of an Ed25519 public key (``12D3KooW...``)."""

SwarmId = NewType("SwarmId", str)
"""Hex of the BLAKE2b-256 of the canonical manifest (64 characters)."""

Stage = NewType("Stage", int)

# identity multihash (0x00), length 36, protobuf: field 1 = key type 1 (Ed25519), field 2 = 32 bytes
_ED25519_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
_PEER_ID_BYTES = len(_ED25519_PREFIX) + 32
PEER_ID_CHARS = 52
"""Of every Ed25519 peer id; anything else is not decoded at all."""


def peer_id_from_key(public_key: bytes) -> PeerId:
    """Return the libp2p peer id of a raw Ed25519 public key (32 bytes).

    Raises:
        ValueError: the key has another length.
    """
    if len(public_key) != 32:
        raise ValueError("an Ed25519 public key has 32 bytes")
    return PeerId(b58encode(_ED25519_PREFIX + public_key).decode())


def key_from_peer_id(peer: str) -> bytes:
    """Return the raw Ed25519 public key (32 bytes) that a peer id contains.

    Raises:
        ValueError: not the identity of an Ed25519 key.
    """
    raw = b58decode(peer) if len(peer) == PEER_ID_CHARS else b""
    if len(raw) != _PEER_ID_BYTES or not raw.startswith(_ED25519_PREFIX):
        raise ValueError(f"not an Ed25519 peer id: {peer[:64]!r}")
    return raw[len(_ED25519_PREFIX) :]


def parse_peer_id(text: str) -> PeerId:
    """Check that ``text`` is an Ed25519 peer id and return it; a key has one spelling.

    Raises:
        ValueError: it is not.
    """
    key_from_peer_id(text)
    return PeerId(text)


@lru_cache(maxsize=4096, typed=True)
def rank(*parts: object) -> bytes:
    """Return the BLAKE2b-128 that orders peers for a role (stewards, leaders, ties).

    Every peer computes the same rank from the same parts, so roles need no election.
    """
    text = "\x1f".join(str(part) for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


PASS_TO_ALL_UP_TO: Final = 8
PASS_FANOUT: Final = 3


def sample(siblings: Sequence[PeerId], *by: object) -> Sequence[PeerId]:
    """Return to whom a statement is passed on: to all, or of many siblings to some, by rank."""
    if len(siblings) <= PASS_TO_ALL_UP_TO:
        return siblings
    return sorted(siblings, key=lambda peer: rank(*by, peer))[:PASS_FANOUT]


def short(peer: str) -> str:
    """Return the last six characters of a peer id: enough to tell peers apart in a log line."""
    return peer[-6:]
