"""Our own advert: its only holder, and the rules for publishing changes.

Changes that others plan by (stages we cannot serve, addresses) are published at once. Gradual
changes (measured bandwidth) wait for the advert's next renewal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from client.train.ports import Ports
from protocol.ids import Stage
from protocol.limits import MAX_ADDRESSES
from protocol.membership.advert import Advert
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect


class OwnAdvert:
    """See the module's docstring; publishes nothing before ``enter``."""

    def __init__(
        self,
        membership: Membership,
        clock: Ports,
        perform: Callable[[list[MembershipEffect]], None],
    ) -> None:
        self._membership, self._clock, self._perform = membership, clock, perform
        self._advert: Advert | None = None

    @property
    def entered(self) -> bool:
        """Whether we are a member."""
        return self._advert is not None

    def enter(self, advert: Advert, unable: Mapping[Stage, str]) -> None:
        """Enter the swarm."""
        self._advert = advert
        self.set_unable(unable)

    def set_unable(self, unable: Mapping[Stage, str]) -> None:
        """Set the stages that we cannot serve."""
        if self._advert is not None:
            self._tell(msgspec.structs.replace(self._advert, unable=tuple(sorted(unable))))

    def offer_no_seats(self) -> None:
        """Advertise that we offer no seat for now."""
        if self._advert is not None:
            self._tell(msgspec.structs.replace(self._advert, seats=0, unable=()))

    def amend(self, *, upload: float, download: float) -> None:
        """Change gradual values, to be published with the next renewal.

        Args:
            upload: bandwidth, bytes/s.
            download: bandwidth, bytes/s.
        """
        if self._advert is not None:
            self._advert = msgspec.structs.replace(
                self._advert,
                upload_bytes_per_s=upload,
                download_bytes_per_s=download,
            )
            self._membership.amend(self._advert)

    @property
    def upload_bytes_per_s(self) -> float:
        """The upload that we advertise; 0 before we are a member."""
        return 0.0 if self._advert is None else self._advert.upload_bytes_per_s

    def lend(self, relay_bytes_per_s: float) -> None:
        """Publish that we relay, or no longer; another rate with the advert's next renewal."""
        if self._advert is None or self._advert.relay_bytes_per_s == relay_bytes_per_s:
            return
        changed = msgspec.structs.replace(self._advert, relay_bytes_per_s=relay_bytes_per_s)
        if bool(self._advert.relay_bytes_per_s) != bool(relay_bytes_per_s):
            self._tell(changed)
        else:
            self._advert = changed
            self._membership.amend(changed)

    def move(self, addresses: Sequence[str]) -> None:
        """Publish our addresses if they have changed."""
        here = tuple(addresses)[:MAX_ADDRESSES]
        if self._advert is not None and set(here) != set(self._advert.addresses):
            self._tell(msgspec.structs.replace(self._advert, addresses=here))

    def _tell(self, advert: Advert) -> None:
        self._advert = advert
        now, wall = self._clock.now(), self._clock.wall()
        self._perform(self._membership.describe(advert, now, wall))
