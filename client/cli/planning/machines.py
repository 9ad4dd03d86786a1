"""The machines of a plan: equal ones from flags, or groups of equal ones from a table in TOML.

Missing values are taken from this machine: its speed is measured; memory and bandwidth are those it
would offer to a swarm. Imports torch only to measure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Group, Parameter
from msgspec import Meta, Struct

from client.cli.reach.home import Home
from client.errors import ExitCode, UsageError, system_errors
from client.plan.model import Machine
from client.quantities import parse_rate, parse_size
from model_zoo.specs.precision import Compute

MAX_MACHINES = 2000
MAX_TABLE_BYTES = 1 << 20
EXAMPLE = (
    'give each kind of machine a [[machine]] with count, gflops, memory = "16GB", '
    'up = "20Mbit/s", down, rtt_ms; see volunteer plan --help'
)
Rate = Annotated[float, Meta(gt=0, le=1e12)]

MACHINES = Group("The machines (what is left out is as this one, measured)", sort_key=0)


@Parameter(name="*", group=MACHINES)
@dataclass(frozen=True, kw_only=True)
class MachineChoices:
    """Alike machines, or a table of different ones; None means: not given. ``Kind`` has bounds."""

    table: Path | None = None
    """TOML file of machines, instead of the flags of this group."""
    machines: int | None = None
    """Number of machines (default: 4)."""
    gflops: float | None = None
    """Speed of one machine in 1e9 FLOP/s, as volunteer bench measures it in the type of numbers of
    --compute-dtype; of all its devices."""
    memory: str | None = None
    """Memory that one machine lends, such as 8GB; of several devices, that of one."""
    host_memory: str | None = None
    """Memory that the host of a GPU lends beside it: local rounds keep there what a step does not
    touch (default: none, as where processors compute)."""
    up: str | None = None
    """Upload of one machine, such as 20Mbit/s."""
    down: str | None = None
    """Download of one machine (default: this machine's, at least the upload)."""
    rtt_ms: float | None = None
    """Round trip between two machines in milliseconds (default: 0)."""


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    """Equal machines; None values are this machine's."""

    count: Annotated[int, Meta(ge=1, le=MAX_MACHINES)] = 1
    gflops: Rate | None = None
    """As ``volunteer bench`` measures it, in 1e9 FLOP/s."""
    memory: Annotated[str, Meta(max_length=40)] | None = None
    host_memory: Annotated[str, Meta(max_length=40)] | None = None
    """Beside a GPU's."""
    up: Annotated[str, Meta(max_length=40)] | None = None
    down: Annotated[str, Meta(max_length=40)] | None = None
    rtt_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of machines."""

    machine: Annotated[tuple[Kind, ...], Meta(min_length=1, max_length=MAX_MACHINES)]


def read_table(path: Path) -> tuple[Kind, ...]:
    """Return the kinds of machines that a file lists.

    Raises:
        UserError: it cannot be read or parsed.
    """
    unreadable = system_errors(f"--table: cannot read {path}", EXAMPLE, ExitCode.USAGE)
    with unreadable, path.open("rb") as file:
        content = file.read(MAX_TABLE_BYTES + 1)
    try:
        if len(content) > MAX_TABLE_BYTES:
            raise ValueError("it is larger than 1 MiB")
        return msgspec.toml.decode(content, type=Table).machine
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"--table: {path}: {error}", EXAMPLE) from error


def this_machine(home: Home, compute: Compute) -> Machine:
    """Return what this machine would offer to a swarm that computes so: measured now, its line as
    measured so far or a household's."""
    from client.compute.device import probe
    from client.compute.requests import Probe
    from client.limits.cores import find_cores
    from client.train.machine.capacity import PROBE_SIZES, kept_line, line_rates
    from client.train.workers.opening import devices_now

    settings = home.settings
    own = settings.threads or find_cores().usable
    found = probe(Probe(sizes=PROBE_SIZES, device=settings.device, threads=own))
    devices = devices_now(settings, found)
    up, down = line_rates(kept_line(home.folders.data), settings)
    speed = found.peak_flops(compute) * settings.compute_share / 100
    return Machine(speed, devices.memory_bytes, up, down, host_bytes=devices.host_bytes)


def machine_of(kind: Kind, here: Callable[[], Machine]) -> Machine:
    """Return one of these machines; ``here`` returns this one, for values that are left out.

    Raises:
        UserError: an amount that cannot be parsed.
    """
    speed = 1e9 * kind.gflops if kind.gflops is not None else None
    memory = _amount("memory", kind.memory, parse_size)
    host = _amount("host memory", kind.host_memory, parse_size)
    up = _amount("up", kind.up, parse_rate)
    down = _amount("down", kind.down, parse_rate)
    if speed is None or not memory or not up or not down:
        own = here()
        host = host or (0.0 if memory else own.host_bytes)
        speed, memory = speed or own.flop_per_s, memory or own.memory_bytes
        down = down or max(up, own.download_bytes_per_s)
        up = up or own.upload_bytes_per_s
    return Machine(speed, memory, up, down, kind.rtt_ms / 1000, host)


def _amount(what: str, text: str | None, parse: Callable[[str], int]) -> float:
    """Return an amount, 0 if none is given."""
    if text is None:
        return 0.0
    try:
        amount = parse(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}", EXAMPLE) from error
    if amount <= 0:
        raise UsageError(f"{what} is 0, so the machine cannot take part", "leave the machine out")
    return float(amount)
