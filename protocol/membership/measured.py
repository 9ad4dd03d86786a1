"""The measured record: one volunteer's measurements of the peers it works with.

It is the body of the record "measured". Integers only. ``protocol.reputation`` combines many such
records.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, parse_peer_id
from protocol.wire.canonical import Canonical
from protocol.wire.fields import PeerText, StageIndex

MEASURED: Final = "measured"
"""Record kind."""

MAX_PARTNERS: Final = 32
MAX_RATES: Final = 4
"""Stages in which one partner can be measured: it may hold three and have just left a fourth."""

MAX_MEASURED_BYTES: Final = 5 * 1024
"""32 partners of at most 140 bytes."""

Seconds = Annotated[int, Meta(ge=0, le=3600)]
MOST_RATE: Final = 10**12
"""More is not said: whoever alone announces a stage's versions can let them rise as it likes."""
MicroRate = Annotated[int, Meta(ge=0, le=MOST_RATE)]
"""Millionths of a microbatch per second, the matching's unit."""


class StageRate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partner's throughput in one stage, and the seconds for which it was seen backlogged."""

    stage: StageIndex
    rate: MicroRate
    seconds: Seconds


class Partner(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The author's measurements of one peer."""

    peer: PeerText
    rates: Annotated[tuple[StageRate, ...], Meta(max_length=MAX_RATES)] = ()
    """In ascending order of stage."""


class Measurements(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: partners in ascending order of peer id."""

    partners: Annotated[tuple[Partner, ...], Meta(max_length=MAX_PARTNERS)] = ()


MEASUREMENTS: Final = Canonical(Measurements, "measured")


def check_measurements(measurements: Measurements, author: PeerId, stages: int) -> None:
    """Check measurements.

    Raises:
        RemoteProtocolError: about the author itself, about one peer twice, or about a stage that
            does not exist.
    """
    peers = [partner.peer for partner in measurements.partners]
    if sorted(set(peers)) != peers:
        raise _absurd("partners repeat or are not in order")
    if author in peers:
        raise _absurd("speaks of its own author")
    for partner in measurements.partners:
        try:
            parse_peer_id(partner.peer)
        except ValueError as error:
            raise _absurd(str(error)) from error
        held = [rate.stage for rate in partner.rates]
        if sorted(set(held)) != held or (held and held[-1] >= stages):
            raise _absurd("stages repeat, are not in order or do not exist")


def _absurd(words: str) -> RemoteProtocolError:
    return RemoteProtocolError("measured-absurd", words, penalty=20)
