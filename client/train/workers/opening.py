"""The manifest in the worker's terms: which stage to open, with what, and whether it fits."""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import psutil

from client.compute.memory import LOGIT_BYTES, USED_SHARE, Fit, graphs_that_fit, memory_need
from client.compute.requests import Probed
from client.config import Settings
from client.errors import ExitCode, UserError
from model_zoo.specs.model import LOGITS_AT_ONCE, MOST_LOGITS
from protocol.manifest import Manifest

MOST_GRAPHS = 16
"""More forward graphs than this are never in flight at one replica."""

MEMORY_SHARE = 0.85
"""Of what is there, or free."""
PINNED = 2
"""Pinned memory may be rounded up to so many times what is asked for."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one worker.

    Fields:
        memory_bytes: what stages may take of each.
        count: their number.
        host_bytes: memory beside theirs, for vectors that are offloaded; 0: there is no other.
        offload: whether vectors lie there: always, never, or where a stage does not fit otherwise.
    """

    memory_bytes: int = 0
    count: int = 1
    host_bytes: int = 0
    offload: Literal["auto", "on", "off"] = "off"

    def can_offload(self, size_bytes: int) -> bool:
        """Whether vectors of so many bytes may lie with the host; not those of several devices."""
        allowed = self.offload != "off" and self.count == 1 and self.host_bytes > 0
        return allowed and self.can_hold(size_bytes)

    def can_hold(self, size_bytes: int) -> bool:
        """Whether the host has room for vectors of so many bytes."""
        return PINNED * size_bytes <= self.host_bytes


ONE = Devices()


def devices_now(settings: Settings, found: Probed) -> Devices:
    """Return what the owner's devices have for stages now."""
    free_bytes = int(MEMORY_SHARE * psutil.virtual_memory().available) if found.has_host else 0
    usable_bytes = usable_memory_bytes(found, settings)
    return Devices(usable_bytes, len(settings.devices), free_bytes, settings.offload)


def usable_memory_bytes(found: Probed, settings: Settings) -> int:
    """Return the memory of each device that stages may take: a GPU's within the owner's share of
    it, and of what other programs have left free."""
    limit_bytes = settings.memory_limit_bytes // len(settings.devices)
    total_bytes = found.memory_total_bytes
    if not found.on_gpu:
        return limit_bytes or int(MEMORY_SHARE * total_bytes)
    lent_bytes = int(min(MEMORY_SHARE, settings.vram_share / 100) * total_bytes)
    free_bytes = found.memory_available_bytes or total_bytes
    lent_bytes = min(lent_bytes, int(MEMORY_SHARE * free_bytes))
    return min(limit_bytes or lent_bytes, lent_bytes)


def fit_stage(
    manifest: Manifest,
    stage: int,
    available_bytes: int,
    spare_bytes: int = 0,
    devices: Devices = ONE,
) -> Fit:
    """Return how a stage fits into memory: with whole graphs, else with its blocks run again, else
    with its vectors offloaded.

    Args:
        available_bytes: memory for it, of each device.
        spare_bytes: part of these left to another stage, if one graph can be kept without it.
        devices: what else they have.

    Raises:
        UserError: it does not fit.
    """
    host = devices.host_bytes > 0
    away_bytes = memory_need(manifest, stage, offload=True).offloaded_bytes
    ways = [] if devices.offload == "on" and devices.can_offload(0) else [False]
    if devices.can_offload(away_bytes):
        ways.append(True)
    for offload, reruns_blocks in product(ways, (False, True)):
        how = {"reruns_blocks": reruns_blocks, "offload": offload, "host": host}
        need = memory_need(manifest, stage, **how)
        graphs = min(graphs_that_fit(need, available_bytes), MOST_GRAPHS)
        if graphs < 0 or not devices.can_hold(need.offloaded_bytes):
            continue
        frugal = graphs_that_fit(need, available_bytes - spare_bytes)
        if 1 <= frugal < graphs:
            graphs = frugal
        size_bytes = memory_need(manifest, stage, graphs, **how).total_bytes
        logits = LOGITS_AT_ONCE
        if host and stage == manifest.stage_count - 1:
            left_bytes = int(USED_SHARE * (available_bytes - spare_bytes)) - size_bytes
            most = min(MOST_LOGITS, manifest.tokens_per_microbatch * manifest.model.vocab)
            logits = max(logits, min(most, logits + left_bytes // LOGIT_BYTES))
        return Fit(
            graphs,
            size_bytes + LOGIT_BYTES * (logits - LOGITS_AT_ONCE),
            reruns_blocks,
            logits,
            offloaded_bytes=need.offloaded_bytes if offload else 0,
        )
    least = memory_need(manifest, stage, reruns_blocks=True, offload=devices.can_offload(0))
    each = " of each device" if devices.count > 1 else ""
    away_bytes = least.offloaded_bytes
    elsewhere = f" and {_mib(away_bytes)} of the host's memory" if away_bytes else ""
    raise UserError(
        f"stage {stage} needs {_mib(least.total_bytes)} of memory{each}{elsewhere}, "
        f"{_mib(available_bytes)} may be used",
        "raise --memory-limit, close other programs or volunteers, or join a swarm with more "
        "stages",
        ExitCode.CONFIG,
    )


def bytes_to_advertise(manifest: Manifest, devices: Devices) -> int:
    """Return the memory to advertise: with offloading a stage fits into less than it is said to
    need, and the matching compares what it needs with what is advertised.

    Raises:
        UserError: no stage fits; says what the last one needs. Or there are several devices in a
            local round.
    """
    if manifest.local_rounds is not None and devices.count > 1:
        raise UserError(
            f"this swarm's rounds are local, and {devices.count} devices cannot share one",
            "start a volunteer for each device: with its own VOLUNTEER_HOME and --devices N",
            ExitCode.CONFIG,
        )
    needs, problem = list[float](), UserError("")
    for stage, cost in enumerate(manifest.stages):
        try:
            fit_stage(manifest, stage, devices.memory_bytes, devices=devices)
        except UserError as error:
            problem = error
        else:
            needs.append(cost.memory_bytes)
    if not needs:
        raise problem
    return max(devices.memory_bytes, int(max(needs)))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
