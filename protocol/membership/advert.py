"""The advert: a volunteer's description of itself to the whole swarm.

It is the body of the record "advert". An advert proves nothing: partners measure a volunteer while
they work with it, and the matching prefers their measurements.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.address import parse_address
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.names import MAX_NICKNAME_BYTES, shown_nickname
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Count, NonNegative, StageIndex, UnixSeconds
from protocol.wire.parts import SeatStatus

ADVERT: Final = "advert"
"""Record kind."""

AddressText = Annotated[str, Meta(max_length=limits.MAX_ADDRESS_CHARS)]


class Advert(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Capacity, limits and seats of one volunteer."""

    addresses: Annotated[tuple[AddressText, ...], Meta(max_length=limits.MAX_ADDRESSES)]
    flops: NonNegative
    """Measured floating point operations per second, in the fastest format that it uses."""
    memory_bytes: Count
    upload_bytes_per_s: NonNegative
    """At most what its owner allows."""
    download_bytes_per_s: NonNegative
    seats: Annotated[int, Meta(ge=0, le=limits.MAX_SEATS)]
    """Stages it has memory for, including those it serves already."""
    joined: UnixSeconds
    """When it entered the swarm, as it claims."""
    serves: Annotated[tuple[SeatStatus, ...], Meta(max_length=limits.MAX_SEATS)] = ()
    """Stages it holds; version, queue and rate are as of the time of issue."""
    leaving: bool = False
    """True in its last advert, which ends its membership."""
    unable: Annotated[tuple[StageIndex, ...], Meta(max_length=limits.MAX_STAGES)] = ()
    """Stages it cannot serve because it lacks memory or the training data, in ascending order."""
    relay_bytes_per_s: NonNegative = 0.0
    """The rate at which it relays for members that cannot be dialled; 0: it does not."""
    claimed_name: Annotated[str, Meta(max_length=MAX_NICKNAME_BYTES)] = ""
    """As it calls itself, for people; anybody may choose any. Empty: it has no name."""

    @property
    def nickname(self) -> str:
        """Its name as it may be shown; empty: it has none, or not a clean one."""
        return shown_nickname(self.claimed_name)


ADVERTS: Final = Canonical(Advert, "advert")


def check_advert(advert: Advert, author: PeerId, stages: int) -> None:
    """Refuse an advert that contradicts itself or a manifest of so many stages.

    Raises:
        RemoteProtocolError: it does.
    """
    check_seats(advert.serves, stages)
    rising = sorted(set(advert.unable)) == list(advert.unable)
    if not rising or (advert.unable and advert.unable[-1] >= stages):
        raise RemoteProtocolError("bad-seats", "unable: unknown or repeated stage", penalty=20)
    _check_addresses(advert.addresses, author)


def check_seats(seats: tuple[SeatStatus, ...], stages: int) -> None:
    """Refuse seats of stages that the manifest does not have, or one stage twice.

    Raises:
        RemoteProtocolError: ``bad-seats``.
    """
    held = {seat.stage for seat in seats}
    if len(held) != len(seats) or any(stage >= stages for stage in held):
        raise RemoteProtocolError("bad-seats", "unknown or repeated stage", penalty=20)


def _check_addresses(addresses: tuple[str, ...], author: PeerId) -> None:
    for text in addresses:
        try:
            address = parse_address(text)
        except ValueError as error:
            raise RemoteProtocolError("advert-address", str(error)) from error
        if address.peer not in (None, author):
            raise RemoteProtocolError("advert-address", "names another peer", penalty=50)
