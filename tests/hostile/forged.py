"""A history of the run that never was: records that name it, and the states that go with it."""

import secrets
from collections.abc import Sequence

import trio

from client.train.transfer.state_size import data_bytes
from model_zoo.specs.state_hash import leaf_digest, root
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES, MAX_RECORDS_PER_MESSAGE
from protocol.manifest import Manifest
from protocol.membership.advert import ADVERT, ADVERTS
from protocol.recovery.stored import STORED, STORED_BODIES, Copy, Stored, begun
from protocol.wire.envelope import Envelope, Signer
from protocol.wire.messages import Chunk, ChunkRequest, Records
from tests.hostile.stranger import Stranger, advert, record_of

EVERY_S = 5.0
"""Records are said again so often, each with a higher number."""


def records_of(
    stranger: Stranger, signer: Signer, stored: Stored, **changes: object
) -> list[Envelope]:
    """Return an identity's advert, and its record of what it has; ``changes``: of the advert."""
    said = ADVERTS.encode(advert(signer.peer, **changes))
    bodies = ((ADVERT, said), (STORED, STORED_BODIES.encode(stored)))
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


def forged_states(manifest: Manifest) -> list[bytes]:
    """Return a state of every stage: honest sizes, forged numbers."""
    return [bytes(data_bytes(manifest, stage)) for stage in range(manifest.stage_count)]


def state_hash(version: int, data: bytes) -> bytes:
    """Return the hash of a version whose tensors are these bytes."""
    return bytes.fromhex(root(version, map(digest_of, pieces_of(data))))


def lineage_of(number: int, version: int, states: Sequence[bytes], elector: PeerId) -> Stored:
    """Return the record of who has a whole version from which a lineage begins, after ``number``
    roll-backs."""
    hashes = tuple(state_hash(version, state) for state in states)
    copies = tuple(Copy(stage, version, digest) for stage, digest in enumerate(hashes))
    return Stored(begun(number, version, hashes, (elector,), b""), copies)


async def serve(stranger: Stranger, states: Sequence[bytes]) -> None:
    """Give these states to whoever asks."""
    async for heard in stranger.heard:
        match heard.message:
            case ChunkRequest(version=version) as request if version:
                await answer(stranger, heard.peer, request, states)
            case _:
                await trio.lowlevel.checkpoint()


async def answer(
    stranger: Stranger, peer: PeerId, request: ChunkRequest, states: Sequence[bytes]
) -> None:
    """Answer a question for the state of a stage with one of these, whatever its hash is to be."""
    pieces, index = pieces_of(states[request.stage]), request.index
    listed = b"".join(map(digest_of, pieces))
    part = listed if index is None else b"".join(pieces[index : index + 1])
    await stranger.say(peer, Chunk(request.root, index), part)


def pieces_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def digest_of(piece: bytes) -> bytes:
    return leaf_digest([memoryview(piece)])
