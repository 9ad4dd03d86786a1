"""Keeps our advert current: addresses and bandwidth.

Once a minute it saves the measured bandwidth beside the identity and amends the advert. Membership
publishes it with the next renewal, new addresses at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from client.config import Settings
from client.train.machine.capacity import Line, kept_line, line_rates, save_line
from client.train.machine.line_meter import LineMeter
from client.train.swarm.measuring import Measuring
from client.train.swarm.own_advert import OwnAdvert

UPDATE_S = 60.0
AT_LIMIT = 0.7
"""Share of the owner's limit from which a rate counts as set by the limit."""


class AdvertUpdater:
    """Runs beside the node from the moment it enters the swarm.

    Args:
        measuring: of our partners, which shows our line.
        own_advert: is amended.
        settings: the owner's limits.
        folder: data folder, which keeps the bandwidth.
        addresses: returns our addresses for others.
    """

    def __init__(
        self,
        measuring: Measuring,
        own_advert: OwnAdvert,
        settings: Settings,
        folder: Path,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        self._measuring, self._own_advert, self._folder = measuring, own_advert, folder
        self.settings = settings
        """The owner's, which may change."""
        self._addresses = addresses
        self._line = kept_line(folder)

    async def run(self) -> None:
        """Update the advert periodically until cancelled."""
        while True:
            self.update()
            await trio.sleep(UPDATE_S)

    def update(self) -> None:
        """Save the present values and put them into the advert."""
        self._line = _newer(self._line, self._measuring, self.settings)
        save_line(self._folder, self._line)
        upload, download = line_rates(self._line, self.settings)
        self._own_advert.amend(upload=upload, download=download)
        self._own_advert.move(self._addresses())


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
