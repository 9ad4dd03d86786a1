"""The settings of a node as flags: one for each field of ``client.config.Settings``.

None means that the flag was not given, so that the environment or a file may speak.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

SETTINGS = Group(
    "Settings (also in the configuration file and as VOLUNTEER_* variables)", sort_key=9
)


@Parameter(name="*", group=SETTINGS)
@dataclass(frozen=True, kw_only=True)
class SettingFlags:
    """Flags that override settings; names and units are those of the settings."""

    listen_host: str | None = None
    """IPv4 address to listen on."""
    listen_port: int | None = None
    """Port to listen on; 0: any free port."""
    announce: tuple[str, ...] | None = None
    """Address to tell others instead of those found; may be repeated."""
    dial_timeout_s: float | None = None
    """Longest wait for a first member of the swarm, in seconds."""
    max_links: int | None = None
    """Connections to other volunteers at which no more are accepted."""
    upload_limit_bytes_per_s: Annotated[str | None, Parameter(alias="--upload-limit")] = None
    """Upload at most so much, such as 2MB/s or 20Mbit/s."""
    download_limit_bytes_per_s: Annotated[str | None, Parameter(alias="--download-limit")] = None
    """Download at most so much, such as 2MB/s or 20Mbit/s."""
    daily_quota_bytes: Annotated[str | None, Parameter(alias="--daily-quota")] = None
    """Send and receive at most so much a day, such as 50GB; then pause till midnight."""
    control_group: str | None = None
    """Group whose members may look at the volunteer, too; for a system service."""
    data_dir: str | None = None
    """Folder for identity, swarms and checkpoints."""
    device: str | None = None
    """Where to compute: auto, cpu, cuda or cuda:N."""
    threads: int | None = None
    """CPU threads to compute with; 0: this machine's cores, shared with its other volunteers."""
    compute_share: str | None = None
    """Compute at most so many percent of the time, such as 50%."""
    seats: int | None = None
    """Stages to hold at most; 0: two where memory allows; 1: never a second."""
    memory_limit_bytes: Annotated[str | None, Parameter(alias="--memory-limit")] = None
    """Memory to compute with, such as 4GiB; 0: most of what is free."""
    vram_share: str | None = None
    """Use at most so many percent of the GPU's memory, such as 50%."""
    power_limit_w: Annotated[str | None, Parameter(alias="--power-limit")] = None
    """Let the GPU draw at most so many watts; takes the driver's permission."""
    only_when_idle: bool | None = None
    """Compute only while nobody uses this machine."""
    idle_after_minutes: str | None = None
    """Nobody uses it when nothing was touched for so many minutes."""
    not_on_battery: bool | None = None
    """Compute only on mains power."""
    schedule: str | None = None
    """Compute only then, such as "22:00-07:00 mon-fri; 00:00-24:00 sat,sun"."""
    boundary_memory_bytes: str | None = None
    """Memory for tensors on their way, such as 512MiB; more go to disk."""
    boundary_disk_bytes: str | None = None
    """Disk for tensors on their way."""
    checkpoint_keep: int | None = None
    """Checkpoints to keep per stage."""
    checkpoint_milestone_every: int | None = None
    """Keep every checkpoint whose version is a multiple of this for good; 0: none."""
    metrics_port: int | None = None
    """Port of Prometheus metrics on loopback; 0: none."""
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Least important messages to show."""
    log_format: Literal["text", "json"] | None = None
    """How messages are written on stderr."""


Config = Annotated[
    Path | None,
    Parameter(name="--config", group=SETTINGS, help="Configuration file, besides the user's own."),
]


def given(flags: SettingFlags) -> dict[str, object]:
    """Return the flags by setting; those not given are None."""
    return dict(vars(flags))


def as_arguments(
    flags: SettingFlags, config: Path | None, data: Path | None, *, exit_when_done: bool
) -> list[str]:
    """Return the command line that says the same to another process; paths are absolute."""
    words = []
    for name, value in given(flags).items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
        elif value is not None:
            for one in value if isinstance(value, tuple) else (value,):
                words += [option, str(one)]
    for option, path in (("--config", config), ("--data", data)):
        words += [option, str(path.absolute())] if path is not None else []
    return words + (["--exit-when-done"] if exit_when_done else [])
