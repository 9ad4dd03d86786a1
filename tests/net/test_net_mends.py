"""The mends of the library one by one: what hostile bytes before an agreement cost us."""

from types import SimpleNamespace
from typing import cast

import pytest

from client.net.errors import HandshakeFailed
from client.net.handshake import MAX_PROPOSALS, MAX_TOKEN_BYTES, MULTISTREAM, accept_protocol
from client.net.libp2p_patches import GuardedStream
from client.net.transport import ByteStream

# isort: split
# After mends, which imports the library quietly.
from libp2p.io.exceptions import IOException

PROTOCOL = "/volunteer/test/1"


def stream_of(
    data: bytes, budget_bytes: int = 10**6, sent: list[bytes] | None = None
) -> GuardedStream:
    """A stream that brings these bytes, and notes what is sent."""
    rest, noted = bytearray(data), list[bytes]() if sent is None else sent

    async def receive_some(most: int) -> bytes:
        taken = bytes(rest[:most])
        del rest[:most]
        return taken

    async def send_all(buffers: list[bytes]) -> None:
        noted.extend(buffers)

    stream = SimpleNamespace(receive_some=receive_some, send_all=send_all)
    return GuardedStream(cast(ByteStream, stream), budget_bytes)


HEADER = b"\x13" + MULTISTREAM.encode() + b"\n"
BAD_TOKENS = {
    "not UTF-8 (fault 1)": b"\x05\xff\xfe\xfd\xfc\n",
    "without line feed": b"\x05abcde",
    "empty": b"\x00",
    "huge (fault 6)": b"\x80\x80\x80\x80\x10" + b"x" * 10000,
    "endless length": b"\xff" * 30,
    "one byte too long": b"\x81\x08" + b"x" * MAX_TOKEN_BYTES + b"\n",
    "truncated": b"\x05ab",
    "nothing": b"",
}


@pytest.mark.parametrize("data", BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
async def test_a_bad_token_ends_the_agreement_and_is_not_read_to_its_end(data: bytes) -> None:
    stream = stream_of(HEADER + data)
    with pytest.raises(HandshakeFailed):
        await accept_protocol(stream, [PROTOCOL])
    assert stream._budget_bytes > 10**6 - 100


async def test_who_proposes_protocols_without_end_is_not_answered_for_long() -> None:
    answers = list[bytes]()
    with pytest.raises(HandshakeFailed, match="too many were proposed"):
        await accept_protocol(stream_of(HEADER + b"\x02x\n" * 10_000, sent=answers), [PROTOCOL])
    assert answers == [HEADER, *[b"\x03na\n"] * MAX_PROPOSALS]


async def test_the_budget_of_a_handshake() -> None:
    stream = stream_of(b"x" * 100, budget_bytes=10)
    assert await stream.read(8) == b"x" * 8
    with pytest.raises(IOException, match="more bytes than a handshake needs"):
        await stream.read(8)
    with pytest.raises(IOException):
        await stream.read(None)
