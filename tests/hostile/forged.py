"""A history of the run that never was: records that name it, and the states that go with it."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from client.compute.checkpoint import CheckpointInfo, build_header, read_info
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES, MAX_RECORDS_PER_MESSAGE
from protocol.manifest import FIRST_SAVED, Manifest
from protocol.membership.advert import ADVERT, encode_advert
from protocol.recovery.stored import STORED, Copy, Stored, begun, encode_stored
from protocol.transfer.blob import Blob, chunk_count
from protocol.wire.envelope import Envelope, Signer
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest, Records
from tests.hostile.stranger import Stranger, advert, record_of

ASK_S = 10.0
EVERY_S = 5.0
"""Records are said again so often, each with a higher number."""


def records_of(
    stranger: Stranger, signer: Signer, stored: Stored, **changes: object
) -> list[Envelope]:
    """Return an identity's advert, and its record of what it has; ``changes``: of the advert."""
    said = encode_advert(advert(signer.peer, **changes))
    bodies = ((ADVERT, said), (STORED, encode_stored(stored)))
    return [record_of(signer, stranger.swarm, kind, body) for kind, body in bodies]


async def tell(stranger: Stranger, signers: Sequence[Signer], stored: Stored) -> None:
    """Say once that these identities follow a lineage and have copies of it."""
    said = [record for signer in signers for record in records_of(stranger, signer, stored)]
    for at in range(0, len(said), MAX_RECORDS_PER_MESSAGE):
        await stranger.say_to_all(Records(said[at : at + MAX_RECORDS_PER_MESSAGE]))


async def keep_telling(stranger: Stranger, signers: Sequence[Signer], stored: Stored) -> None:
    """Say it again and again."""
    while True:
        await tell(stranger, signers, stored)
        await trio.sleep(EVERY_S)


def invented(count: int) -> list[Signer]:
    """Return identities that nobody has."""
    return [Signer(secrets.token_bytes(32)) for _ in range(count)]


async def forged_states(stranger: Stranger, version: int) -> list[bytes]:
    """Return a state of every stage that passes for one of a version: honest shapes, forged
    numbers."""
    states = []
    for stage in range(stranger.manifest.stage_count):
        honest = await _fetched(stranger, stage)
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(honest)
            info = read_info(Path(file.name))
        data = bytes(info.size_bytes - info.data_start)
        digest = state_hash(version, data)
        header = build_header(
            CheckpointInfo(
                swarm=stranger.swarm,
                stage=stage,
                stages=info.stages,
                version=version,
                hash=digest.hex(),
                layout=info.layout,
                state=info.state,
            )
        )
        states.append(header + data)
    return states


def state_hash(version: int, data: bytes) -> bytes:
    """Return the hash of a version whose tensors are these bytes."""
    return hashlib.blake2b(version.to_bytes(8, "little") + data, digest_size=32).digest()


def lineage_of(number: int, version: int, states: Sequence[bytes], elector: PeerId) -> Stored:
    """Return the record of who has a whole version from which a lineage begins, after ``number``
    roll-backs."""
    hashes = tuple(state_hash(version, _data(state)) for state in states)
    copies = tuple(Copy(stage, version, digest) for stage, digest in enumerate(hashes))
    return Stored(begun(number, version, hashes, (elector,), b""), copies)


def saved_versions(manifest: Manifest) -> list[int]:
    """Return the first versions of which the replicas of a stage save a copy."""
    return sorted({manifest.policy.newest_saved(step) for step in range(FIRST_SAVED, 1000)})


async def serve(stranger: Stranger, version: int, states: Sequence[bytes]) -> None:
    """Give these states to whoever asks for them."""
    async for heard in stranger.heard:
        match heard.message:
            case BlobQuery(kind="state", stage=stage, version=asked) if asked == version:
                await stranger.say(heard.peer, blob_of(stage, version, states[stage]).offer)
            case ChunkRequest(kind="state", stage=stage, version=asked, index=index):
                if asked == version and (index or 0) < chunk_count(len(states[stage])):
                    chunk = Chunk("state", stage, version, index)
                    await stranger.say(heard.peer, chunk, part(states[stage], index))
            case _:
                await trio.lowlevel.checkpoint()


def blob_of(stage: int, version: int, state: bytes) -> Blob:
    """Return a state as a blob."""
    digests = [digest_of(piece) for piece in pieces_of(state)]
    return Blob.of("state", stage, version, len(state), digests)


def part(state: bytes, index: int | None) -> bytes:
    """Return a chunk of a state, or the list of the digests of its chunks."""
    return blob_of(0, 0, state).listed if index is None else pieces_of(state)[index]


async def _fetched(stranger: Stranger, stage: int) -> bytes:
    with trio.fail_after(ASK_S):
        for version in saved_versions(stranger.manifest):
            await stranger.say_to_all(BlobQuery("state", stage, version))
        offer, pieces = None, dict[int, bytes]()
        async for heard in stranger.heard:
            match heard.message:
                case BlobOffer(kind="state", size_bytes=size_bytes) as found if (
                    found.stage == stage and size_bytes and offer is None
                ):
                    offer = found
                    for index in range(chunk_count(offer.size_bytes)):
                        request = ChunkRequest("state", stage, offer.version, index)
                        await stranger.say(heard.peer, request)
                case Chunk(kind="state", stage=of, index=int(index)) if of == stage:
                    pieces[index] = heard.payload
            if offer is not None and len(pieces) == chunk_count(offer.size_bytes):
                return b"".join(pieces[index] for index in sorted(pieces))
    raise AssertionError("the stream of messages has no end")


def _data(state: bytes) -> bytes:
    return state[8 + int.from_bytes(state[:8], "little") :]


def pieces_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def digest_of(piece: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=32).digest()
