"""The machines of a plan: equal ones from flags, or different ones from a table in TOML or JSON.

Missing values are taken from this machine: its speed is measured; memory and bandwidth are those it
would offer to a swarm. Imports torch only to measure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from client.cli.reach.home import Home
from client.errors import ExitCode, UserError
from client.plan.machines import Machine
from client.quantities import parse_rate, parse_size

if TYPE_CHECKING:
    from client.train.machine.capacity import Capacity  # which imports trio

MAX_MACHINES = 2000
MAX_TABLE_BYTES = 1 << 20
EXAMPLE = (
    "give each kind of machine a [[machine]] with name, count, gflops or tokens_per_s, "
    'memory = "16GB", up = "20Mbit/s", down, rtt_ms; see volunteer plan --help'
)
Rate = Annotated[float, Meta(gt=0, le=1e12)]


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    """Equal machines; None values are this machine's."""

    name: Annotated[str, Meta(max_length=40)] = ""
    count: Annotated[int, Meta(ge=1, le=MAX_MACHINES)] = 1
    gflops: Rate | None = None
    """As ``volunteer bench`` measures it, in 1e9 FLOP/s."""
    tokens_per_s: Rate | None = None
    """Its tokens/s when it trains the whole model alone."""
    memory: Annotated[str, Meta(max_length=40)] | None = None
    up: Annotated[str, Meta(max_length=40)] | None = None
    down: Annotated[str, Meta(max_length=40)] | None = None
    rtt_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of machines."""

    machine: Annotated[tuple[Kind, ...], Meta(min_length=1, max_length=MAX_MACHINES)]


def read_table(path: Path) -> tuple[Kind, ...]:
    """Return the kinds of machines that a file lists; JSON by its ending, else TOML.

    Raises:
        UserError: it cannot be read or parsed.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"--table: cannot read {path}: {error.strerror}", EXAMPLE, ExitCode.USAGE
        ) from error
    if len(content) > MAX_TABLE_BYTES:
        raise _wrong(path, "it is larger than 1 MiB")
    try:
        if path.suffix.lower() == ".json":
            return msgspec.json.decode(content, type=Table).machine
        return msgspec.convert(_parse_toml(content), Table).machine
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wrong(path, str(error)) from error


def _parse_toml(content: bytes) -> dict[str, Any]:
    return tomllib.loads(content.decode())


def _wrong(path: Path, reason: str) -> UserError:
    return UserError(f"--table: {path}: {reason}", EXAMPLE, ExitCode.USAGE)


class ThisMachine:
    """The resources that this machine would offer to a swarm, measured at first use."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def flop_per_s(self) -> float:
        """As volunteers measure it, within the owner's share of the time."""
        return self._capacity.fp32_flops * self._home.settings.compute_share / 100

    @property
    def memory_bytes(self) -> float:
        """Bytes that stages may use."""
        from client.train.machine.capacity import usable_memory_bytes

        return usable_memory_bytes(self._capacity, self._home.settings)

    @cached_property
    def line(self) -> tuple[float, float]:
        """Upload and download in bytes per second: measured so far, else a household's."""
        from client.train.machine.capacity import kept_line, line_rates

        return line_rates(kept_line(self._home.folders.data), self._home.settings)

    @cached_property
    def _capacity(self) -> Capacity:
        from client.compute.device import probe
        from client.compute.group import together
        from client.compute.requests import Probe
        from client.devices import torch_name
        from client.limits.cores import find_cores
        from client.train.machine.capacity import PROBE_SIZES, Capacity

        settings = self._home.settings
        own = settings.threads or find_cores().usable
        devices, threads = settings.devices, max(1, own // len(settings.devices))
        probes = [Probe(sizes=PROBE_SIZES, device=torch_name(d), threads=threads) for d in devices]
        found = together(list(map(probe, probes)))
        best = max(rate.flop_per_s for rate in found.rates if rate.dtype == "float32")
        return Capacity(
            settings.device,
            own,
            best,
            0.0,
            found.memory_total_bytes,
            found.copy_bytes_per_s,
            on_gpu=not found.device.startswith("cpu"),
        )


def machines_of(
    kinds: tuple[Kind, ...], here: ThisMachine, flops_per_token: Callable[[], float]
) -> list[Machine]:
    """Return the machines one by one.

    Args:
        kinds: the machines, by kind.
        here: this machine, for values that ``kinds`` leave out.
        flops_per_token: FLOP per token of the whole model, to convert tokens/s into FLOP/s.

    Raises:
        UserError: too many, or an amount that cannot be parsed.
    """
    if sum(kind.count for kind in kinds) > MAX_MACHINES:
        raise UserError(
            f"more than {MAX_MACHINES} machines", "plan for a part of them", ExitCode.USAGE
        )
    found = []
    for number, kind in enumerate(kinds, start=1):
        name = kind.name or (f"kind {number}" if len(kinds) > 1 else "machine")
        found += [_machine(name, kind, here, flops_per_token)] * kind.count
    return found


def _machine(
    name: str, kind: Kind, here: ThisMachine, flops_per_token: Callable[[], float]
) -> Machine:
    if kind.gflops is not None and kind.tokens_per_s is not None:
        problem = f"{name}: both gflops and tokens_per_s are given"
        raise UserError(problem, "give one of them", ExitCode.USAGE)
    if kind.gflops is not None:
        speed = kind.gflops * 1e9
    elif kind.tokens_per_s is not None:
        speed = kind.tokens_per_s * flops_per_token()
    else:
        speed = here.flop_per_s
    up = _amount(name, "up", kind.up, parse_rate)
    down = _amount(name, "down", kind.down, parse_rate)
    if speed <= 0:
        problem = f"{name}: tokens_per_s cannot be used for a model without a cost"
        raise UserError(problem, "give gflops instead", ExitCode.USAGE)
    return Machine(
        name=name,
        flop_per_s=speed,
        memory_bytes=_amount(name, "memory", kind.memory, parse_size) or here.memory_bytes,
        upload_bytes_per_s=up or here.line[0],
        download_bytes_per_s=down or (max(up, here.line[1]) if up else here.line[1]),
        rtt_s=kind.rtt_ms / 1000,
    )


def _amount(name: str, what: str, text: str | None, parse: Callable[[str], int]) -> float:
    """Return an amount, 0 if none is given."""
    if text is None:
        return 0.0
    try:
        amount = parse(text)
    except ValueError as error:
        raise UserError(f"{name}: {what}: {error}", EXAMPLE, ExitCode.USAGE) from error
    if amount <= 0:
        problem = f"{name}: {what} is 0, so the machine cannot take part"
        raise UserError(problem, "leave the machine out", ExitCode.USAGE)
    return float(amount)
