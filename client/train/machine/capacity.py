"""The capacity that this volunteer advertises: measured once, saved beside its identity.

The worker measures compute speed and memory at the first start, and again when the device, its
driver or torch has changed. Bandwidth is the highest rate of the transfers so far (saved too), and
that of a household before there are any; the owner's limit caps it.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from client.compute.process import Worker
from client.compute.requests import Probe, Probed
from client.config import Settings
from client.store.paths import Entry
from client.store.persisted import Persisted
from client.train.workers.patience import OPENING_S
from model_zoo.specs.precision import Precision
from protocol.limits import MAX_ADDRESSES
from protocol.membership.advert import Advert

PROBE_SIZES = [384, 768]
HOUSEHOLD_BYTES_PER_S = 12.5e6
"""100 Mb/s: the median line of the simulated market's world."""
SLOW_AFTER_S = 30.0
"""Seconds of transfers after which a line may count as slower than a household's: in fewer, the
other side may have been the limit."""


class Peaks(Struct, frozen=True):
    """What was measured of given devices with a number of threads; as in `Probed`."""

    device: str
    threads: int
    identity: str
    peaks: dict[Precision, float]


class Line(Struct, frozen=True):
    """The highest rate of our line in each direction, and the seconds of transfers measured."""

    upload_bytes_per_s: float = 0.0
    upload_s: float = 0.0
    download_bytes_per_s: float = 0.0
    download_s: float = 0.0


def kept_line(folder: Path) -> Line:
    """Return what earlier sessions measured."""
    return Persisted(folder / Entry.LINE, Line).peek() or Line()


def save_line(folder: Path, line: Line) -> None:
    """Keep a measured line beside the identity, as far as the disk allows it."""
    Persisted(folder / Entry.LINE, Line).keep(line)


def line_rates(line: Line, settings: Settings) -> tuple[float, float]:
    """Return (upload, download) in bytes/s as we advertise them."""
    upload = _line_rate(line.upload_bytes_per_s, line.upload_s)
    download = _line_rate(line.download_bytes_per_s, line.download_s)
    return (
        min(upload, settings.upload_limit_bytes_per_s or upload),
        min(download, settings.download_limit_bytes_per_s or download),
    )


def _line_rate(reached: float, seconds: float) -> float:
    slower = reached < HOUSEHOLD_BYTES_PER_S
    if not 0 < reached < 1e15 or (slower and seconds < SLOW_AFTER_S):
        return HOUSEHOLD_BYTES_PER_S
    return float(f"{reached:.1e}")


async def measured_capacity(
    worker: Worker, settings: Settings, folder: Path, threads: int
) -> Probed:
    """Return what this machine is; its speed is measured now, which takes seconds, unless the one
    that is saved is its own."""
    file = Persisted(folder / Entry.CAPACITY, Peaks)
    request = Probe(sizes=[], device=settings.device, threads=threads)
    found = await worker.call(request, OPENING_S)
    known, of = file.peek(), (settings.device, threads, found.identity)
    if known is None or (known.device, known.threads, known.identity) != of:
        measured = await worker.call(replace(request, sizes=PROBE_SIZES), OPENING_S)
        known = Peaks(*of, measured.peaks)
        file.keep(known)
    return replace(found, peaks=known.peaks)


def advert(
    settings: Settings,
    addresses: tuple[str, ...],
    joined: int,
    folder: Path,
    *,
    flops: float = 0.0,
    memory_bytes: int = 0,
    seats: int = 0,
) -> Advert:
    """Return our advert, that of a member that only relays unless it offers more; membership adds
    the stages that we serve. ``joined``: Unix seconds at which we entered the swarm; ``folder`` has
    what earlier sessions measured of our line; of the ``flops`` of the device the owner may lend a
    share."""
    upload, download = line_rates(kept_line(folder), settings)
    return Advert(
        addresses=addresses[:MAX_ADDRESSES],
        flops=settings.compute_share / 100 * flops,
        memory_bytes=memory_bytes,
        upload_bytes_per_s=upload,
        download_bytes_per_s=download,
        seats=seats,
        joined=joined,
        claimed_name=settings.nickname,
    )
