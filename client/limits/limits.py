"""The limits a volunteer sets, typed: what may be used, how much of it, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from client.config import Settings
from client.schedule import Schedule, parse_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """0 means: no limit. Defaults lend everything, always."""

    threads: int = 0
    """CPU threads of the compute worker; 0: its share of the cores."""
    compute_share: int = 100
    """Percentage of the time."""
    memory_bytes: int = 0
    """Of the stages, besides what the program itself takes."""
    vram_share: int = 100
    """Percentage of the GPU's memory."""
    upload_bytes_per_s: int = 0
    download_bytes_per_s: int = 0
    daily_bytes: int = 0
    """Sent and received together, in a day of the local clock."""
    power_w: int = 0
    """Of the GPU."""
    only_when_idle: bool = False
    idle_after_s: int = 300
    """Nobody uses this machine when nothing was touched for so long."""
    not_on_battery: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    """By the local clock."""

    @property
    def when(self) -> list[str]:
        """Say when it may compute; empty: always."""
        words = []
        if self.only_when_idle:
            words.append("idle only")
        if self.not_on_battery:
            words.append("not on battery")
        if self.schedule.windows:
            words.append(str(self.schedule))
        return words


def limits_of(settings: Settings) -> Limits:
    """Return the limits among the settings."""
    return Limits(
        threads=settings.threads,
        compute_share=settings.compute_share,
        memory_bytes=settings.memory_limit_bytes,
        vram_share=settings.vram_share,
        upload_bytes_per_s=settings.upload_limit_bytes_per_s,
        download_bytes_per_s=settings.download_limit_bytes_per_s,
        daily_bytes=settings.daily_quota_bytes,
        power_w=settings.power_limit_w,
        only_when_idle=settings.only_when_idle,
        idle_after_s=60 * settings.idle_after_minutes,
        not_on_battery=settings.not_on_battery,
        schedule=parse_schedule(settings.schedule),
    )
