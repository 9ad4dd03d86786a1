"""Our own advert: its only holder, and the rules for publishing changes.

A change is published at once; bandwidth is rounded, so that it seldom changes. Once a minute it is
saved beside the identity, and both it and our addresses are looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from client.config import Settings
from client.train.machine.capacity import Line, kept_line, line_rates, save_line
from client.train.machine.line_meter import LineMeter
from client.train.ports import Ports
from client.train.swarm.measuring import Measuring
from protocol.ids import Stage
from protocol.limits import MAX_ADDRESSES
from protocol.membership.advert import Advert
from protocol.membership.membership import Membership

UPDATE_S = 60.0
AT_LIMIT = 0.7
"""Share of the owner's limit from which a rate counts as set by the limit."""


class OwnAdvert:
    """See the module's docstring; publishes nothing before ``enter``."""

    def __init__(self, membership: Membership, measuring: Measuring, ports: Ports) -> None:
        self._membership, self._measuring, self._ports = membership, measuring, ports
        self._advert: Advert | None = None
        self.addresses: Callable[[], Sequence[str]] = tuple
        """Returns the addresses at which others reach us."""

    @property
    def entered(self) -> bool:
        return self._advert is not None

    def enter(self, advert: Advert, unable: Mapping[Stage, str]) -> None:
        self._advert = msgspec.structs.replace(advert, unable=tuple(sorted(unable)))
        self._tell(self._advert)

    async def keep_current(self, settings: Callable[[], Settings], folder: Path) -> None:
        """Update the advert periodically until cancelled; the data folder keeps the bandwidth."""
        while True:
            self.update(settings(), folder)
            await trio.sleep(UPDATE_S)

    def update(self, settings: Settings, folder: Path) -> None:
        """Save the present values and put them into the advert."""
        line = _newer(kept_line(folder), self._measuring, settings)
        save_line(folder, line)
        upload, download = line_rates(line, settings)
        self.change(upload_bytes_per_s=upload, download_bytes_per_s=download)

    @property
    def upload_bytes_per_s(self) -> float:
        """The upload that we advertise; 0 before we are a member."""
        return 0.0 if self._advert is None else self._advert.upload_bytes_per_s

    def change(self, **changes: Any) -> None:
        """Publish changes of the advert's fields, and our addresses if they are others; the order
        of addresses is no change."""
        if (before := self._advert) is None:
            return
        here = tuple(self.addresses())[:MAX_ADDRESSES]
        if set(here) != set(before.addresses):
            changes["addresses"] = here
        changed = msgspec.structs.replace(before, **changes)
        if changed != before:
            self._advert = changed
            self._tell(changed)

    def _tell(self, advert: Advert) -> None:
        self._ports.perform(*self._membership.describe(advert, self._ports.now()))


def _newer(line: Line, measuring: Measuring, settings: Settings) -> Line:
    """Return the known bandwidth; this session's measurements replace saved ones.

    A rate that only reached the owner's limit is no measurement of the line.
    """
    up, down = measuring.outgoing, measuring.incoming
    sent = _told(up, settings.upload_limit_bytes_per_s)
    came = _told(down, settings.download_limit_bytes_per_s)
    return Line(
        up.own_bytes_per_s if sent else line.upload_bytes_per_s,
        up.own_s if sent else line.upload_s,
        down.own_bytes_per_s if came else line.download_bytes_per_s,
        down.own_s if came else line.download_s,
    )


def _told(meter: LineMeter, limit_bytes_per_s: int) -> bool:
    """Whether a meter has measured the line, and not its owner's limit."""
    reached = meter.own_bytes_per_s
    return reached > 0 and not (limit_bytes_per_s and reached >= AT_LIMIT * limit_bytes_per_s)
