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
from model_zoo.specs.precision import Compute, Precision, precision_on
from protocol.limits import MAX_ADDRESSES
from protocol.membership.advert import Advert

PROBE_SIZES = [384, 768]
HOUSEHOLD_BYTES_PER_S = 12.5e6
"""100 Mb/s: the median line of the simulated market's world."""
SLOW_AFTER_S = 30.0
"""Seconds of transfers after which a line may count as slower than a household's: in fewer, the
other side may have been the limit."""
MEMORY_SHARE = 0.85


class Capacity(Struct, frozen=True):
    """Measured by ``Probe`` with given devices and number of threads."""

    device: str
    threads: int
    peaks: dict[Precision, float]
    """FLOP/s of the best product of matrices in each type of numbers."""
    memory_total_bytes: int
    on_gpu: bool = False
    """Whether the memory is a GPU's."""
    platform: str = ""
    """`cuda`, `rocm` or `mps`; or `cpu`."""
    unused: dict[str, str] = {}
    """GPUs that are there and cannot train, with the reason."""
    identity: str = ""
    """Of what was measured, see `Probed`."""
    free_bytes: int = 0
    """Of the memory, when this session began; 0: not known."""

    def peak_flops(self, compute: Compute) -> float:
        """Return the FLOP/s that the device reaches in the run's type of numbers; 0: not
        measured."""
        fast = self.on_gpu and self.peaks.get("bf16", 0.0) > self.peaks.get("fp32", 0.0)
        return self.peaks.get(precision_on(compute, fast_in_bf16=fast), 0.0)

    @property
    def has_host(self) -> bool:
        """Whether the machine has other memory than that which stages may take: an Apple GPU
        shares the processor's."""
        return self.on_gpu and self.platform != "mps"


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
) -> Capacity:
    """Return the saved measurement if it is of this machine, else measure now, which takes seconds;
    where the disk does not keep it, at the next start, too."""
    file = Persisted(folder / Entry.CAPACITY, Capacity)
    known = file.peek()
    wanted = (settings.device, threads)
    request = Probe(sizes=[], device=settings.device, threads=threads)
    reply, _ = await worker.call(request)
    free_bytes = reply.memory_available_bytes
    measured = known and (known.device, known.threads, known.identity)
    if known and measured == (*wanted, reply.identity):
        return replace(known, free_bytes=free_bytes)
    reply, _ = await worker.call(replace(request, sizes=PROBE_SIZES))
    capacity = replace(capacity_of(reply, *wanted), free_bytes=free_bytes)
    file.keep(capacity)
    return capacity


def capacity_of(found: Probed, device: str, threads: int) -> Capacity:
    """Return what was measured of a machine with these devices and so many threads."""
    names: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16"}
    best = {
        precision: max((r.flop_per_s for r in found.rates if r.dtype == dtype), default=0.0)
        for precision, dtype in names.items()
    }
    on_gpu = not found.device.startswith("cpu")
    return Capacity(
        *(device, threads),
        best,
        found.memory_total_bytes,
        on_gpu=on_gpu,
        platform=found.platform,
        unused=found.unused,
        identity=found.identity,
        free_bytes=found.memory_available_bytes,
    )


def usable_memory_bytes(capacity: Capacity, settings: Settings) -> int:
    """Return the memory that stages may take: a GPU's within the owner's share of it, and of what
    other programs have left free.

    With several devices each holds the stages: it is the memory of one of them.
    """
    limit_bytes = settings.memory_limit_bytes // len(settings.devices)
    if not capacity.on_gpu:
        return limit_bytes or int(MEMORY_SHARE * capacity.memory_total_bytes)
    total_bytes = capacity.memory_total_bytes
    lent_bytes = int(min(MEMORY_SHARE, settings.vram_share / 100) * total_bytes)
    lent_bytes = min(lent_bytes, int(MEMORY_SHARE * (capacity.free_bytes or total_bytes)))
    return min(limit_bytes or lent_bytes, lent_bytes)


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
    the stages that we serve.

    Args:
        joined: Unix seconds at which we entered the swarm.
        folder: with what earlier sessions measured of our line.
        flops: of the device, of which the owner may lend a share.
        memory_bytes: for stages.
        seats: stages that fit in it.
    """
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
