"""What hosts of a job tell each other, beside the frames of the ranks.

A message is a length of four bytes and a msgpack map with a tag. `HostHere` opens the connection of
a host, which lasts as long as the host; `RankHere` one for the frames of a rank that it was asked
to start; `StoreHere` one to the store by which ranks meet.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeVar

import msgspec
import trio
from msgspec import Meta, Struct

from client.compute.hosts.link import Link, LinkBroken

MAX_MESSAGE_BYTES = 16 << 10
_LENGTH = struct.Struct("<I")

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=256)]
Words = Annotated[str, Meta(max_length=1024)]


class HostHere(Struct, frozen=True, tag=True, kw_only=True):
    """A host is ready to start ranks.

    Fields:
        index: among the hosts, from 1. process: differs between two processes with one index.
        name: of the host. device: the owner's words, as ``0,1``. version: of the program.
    """

    index: Annotated[int, Meta(ge=1, le=1024)]
    process: Id
    name: Name
    device: Name
    version: Name


class RankHere(Struct, frozen=True, tag=True, kw_only=True):
    """The connection of the rank that `StartRank` asked for."""

    ticket: Id


class StoreHere(Struct, frozen=True, tag=True, kw_only=True):
    """A connection for the store on this port of the first host's loopback."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class Leaving(Struct, frozen=True, tag=True):
    """This host is told to end: the volunteer is to hand over, save, and leave."""


class Welcome(Struct, frozen=True, tag=True):
    """The host is one of the volunteer's."""


class Refused(Struct, frozen=True, tag=True, kw_only=True):
    """The host is none of the volunteer's; `again`: trying again may help."""

    words: Words
    again: bool


class StartRank(Struct, frozen=True, tag=True, kw_only=True):
    """Start a rank and connect it."""

    ticket: Id


class Over(Struct, frozen=True, tag=True, kw_only=True):
    """The volunteer has ended: end with this exit code."""

    code: Annotated[int, Meta(ge=0, le=255)]


Opening = HostHere | RankHere | StoreHere
FromFollower = Leaving
FromLeader = Welcome | Refused | StartRank | Over
Message = Opening | FromFollower | FromLeader

OPENING = msgspec.msgpack.Decoder(Opening)
FROM_FOLLOWER = msgspec.msgpack.Decoder(FromFollower)
FROM_LEADER = msgspec.msgpack.Decoder(FromLeader)

Told = TypeVar("Told")


async def tell(link: Link, message: Message) -> None:
    """Send a message.

    Raises:
        LinkBroken: the other end is gone.
    """
    body = msgspec.msgpack.encode(message)
    try:
        await link.send_all(_LENGTH.pack(len(body)) + body)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise LinkBroken("the connection broke") from error


async def hear(link: Link, decoder: msgspec.msgpack.Decoder[Told]) -> Told:
    """Wait for a message.

    Raises:
        LinkBroken: the other end is gone, or what it says is no message.
    """
    (size,) = _LENGTH.unpack(await _exactly(link, _LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise LinkBroken(f"a message of {size} bytes")
    try:
        return decoder.decode(await _exactly(link, size))
    except (msgspec.DecodeError, RecursionError) as error:
        raise LinkBroken(f"no message: {error}") from error


async def _exactly(link: Link, size: int) -> bytes:
    data = b""
    try:
        while len(data) < size:
            piece = await link.receive_some(size - len(data))
            if not piece:
                raise LinkBroken("the connection was closed")
            data += piece
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise LinkBroken("the connection broke") from error
    return data
