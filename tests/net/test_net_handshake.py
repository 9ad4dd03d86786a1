"""What is agreed on before two peers talk, and why they do not."""

from collections.abc import Sequence
from typing import cast

import pytest
import trio
import trio.testing

from client.net.errors import HandshakeFailed, NotAnswered
from client.net.handshake import (
    accept_protocol,
    handshake,
    make_identity,
    request_protocol,
)
from client.net.libp2p_patches import GuardedStream
from client.net.secure import SecureChannel
from client.net.transport import Buffer, ByteStream

HELLO, ASKED = b"\x13/multistream/1.0.0\n", b"\x04/xy\n"


class Pipe(ByteStream):
    """One end of a stream in memory."""

    def __init__(self, stream: trio.StapledStream) -> None:  # type: ignore[type-arg]
        self.stream = stream

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        await self.stream.send_all(b"".join(buffers))

    async def receive_some(self, most: int) -> bytes:
        return bytes(await self.stream.receive_some(most))

    async def aclose(self) -> None:
        await self.stream.aclose()


class Talk:
    """A stream that answers with given bytes; what is said is kept."""

    def __init__(self, answer: bytes, *, broken: bool = False) -> None:
        self.said, self._answer, self._broken = bytearray(), bytearray(answer), broken
        self.before_answer = b""
        self.stream = GuardedStream(cast(ByteStream, self))

    async def receive_some(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.before_answer = self.before_answer or bytes(self.said)
        taken = bytes(self._answer[:most])
        del self._answer[:most]
        return taken

    async def send_all(self, buffers: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        if self._broken:
            raise trio.BrokenResourceError("it has gone")
        self.said += b"".join(buffers)


async def test_a_protocol_is_asked_for_with_what_follows_it() -> None:
    talk = Talk(HELLO + ASKED)
    await request_protocol(talk.stream, "/xy", b"and this")
    assert talk.before_answer == talk.said == HELLO + ASKED + b"and this", "in one round trip"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\x03/no\n"[:1] + b"no\n", "'no' is not multistream-select"),
        (HELLO + b"\x03na\n", "the answer is 'na'"),
        (HELLO, "/xy was refused"),
        (b"", "/xy was refused"),
    ],
)
async def test_whoever_does_not_agree_is_not_talked_to(answer: bytes, words: str) -> None:
    with pytest.raises(HandshakeFailed, match=words):
        await request_protocol(Talk(answer).stream, "/xy")


async def test_a_stream_that_has_gone_refuses() -> None:
    with pytest.raises(HandshakeFailed, match="/xy was refused"):
        await request_protocol(Talk(b"", broken=True).stream, "/xy")


async def test_the_other_side_chooses_among_what_we_offer() -> None:
    assert await accept_protocol(Talk(HELLO + ASKED).stream, ["/ab", "/xy"]) == "/xy"
    for asked in (HELLO + b"\x04/zz\n" * 99, HELLO, b""):
        with pytest.raises(HandshakeFailed, match="no protocol agreed on"):
            await accept_protocol(Talk(asked).stream, ["/ab", "/xy"])


ALICE, BOB, CAROL = (make_identity(bytes([n]) * 32) for n in range(3))


async def test_two_peers_prove_who_they_are_and_what_came_early_is_kept() -> None:
    ends = [Pipe(end) for end in trio.testing.memory_stream_pair()]
    found = list[SecureChannel]()

    async def answer() -> None:
        found.append(await handshake(ends[1], BOB, None))

    claimed = list[int]()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            made = await handshake(ends[0], ALICE, BOB.peer, lambda: claimed.append(1))
        assert (made.peer, found[0].peer) == (BOB.peer, ALICE.peer)
        assert claimed == [1], "before it learns who called"
        await made.send_all([b"hello"])
        assert b"".join(await found[0].receive()) == b"hello"


async def test_a_dialler_that_expects_another_peer_does_not_say_who_it_is() -> None:
    ends = [Pipe(end) for end in trio.testing.memory_stream_pair()]
    failed = list[Exception]()

    async def answer() -> None:
        with pytest.raises(HandshakeFailed) as caught:
            await handshake(ends[1], BOB, None)
        failed.append(caught.value)

    def never() -> None:
        raise HandshakeFailed("another address was faster")

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(HandshakeFailed) as refused:
                await handshake(ends[0], ALICE, CAROL.peer, never)
            assert not isinstance(refused.value, NotAnswered), "somebody was there"
            await ends[0].aclose()
    assert len(failed) == 1


async def test_who_closes_at_once_has_not_answered() -> None:
    ours, theirs = (Pipe(end) for end in trio.testing.memory_stream_pair())
    await theirs.stream.send_eof()
    with trio.fail_after(20), pytest.raises(NotAnswered, match="closed at once"):
        await handshake(ours, ALICE, BOB.peer)
    ours, theirs = (Pipe(end) for end in trio.testing.memory_stream_pair())
    await theirs.stream.send_eof()
    with trio.fail_after(20), pytest.raises(HandshakeFailed) as failed:
        await handshake(ours, ALICE, None)
    assert not isinstance(failed.value, NotAnswered), "who is dialled expects no answer"
