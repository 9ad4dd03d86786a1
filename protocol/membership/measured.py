"""The measured record: one volunteer's measurements of the peers it works with.

It is the body of the record "measured". Integers only. ``protocol.reputation`` combines many such
records, and leaves out what makes no sense: of a stage told twice one rate counts, and nobody's
word about itself does.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

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


class Measurements(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body."""

    partners: Annotated[tuple[Partner, ...], Meta(max_length=MAX_PARTNERS)] = ()


MEASUREMENTS: Final = Canonical(Measurements, "measured")
