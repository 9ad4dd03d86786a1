"""Keeps a port of this network's router mapped to ours, and gives it back at the end.

A mapping is leased for an hour and renewed after half of what the router grants. A port that is
somebody else's is replaced by another one. While nothing maps, the router is asked again, after a
minute at first and then more rarely; and at once when the network has changed. A router that has
restarted may have forgotten what we hold, so that is renewed when our links were interrupted.

Every few seconds it looks whether a mapping is wanted, and whether the router is another one.
State: the mapping that we hold, and for which port of ours.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from client.net import gateway
from client.net.gateway import Mapped, MappingRefused, Way
from protocol.pace import ASIDE_S

LOOK_S: Final = 5.0
END_S: Final = 8.0
"""Longest wait at the end for a router that maps, or takes a mapping back: UPnP's library looks for
others for 2.5 s once one has answered, which that may do after 2 s."""
LEASE_S: Final = 3600
"""Routers grant so much, and one that has restarted meanwhile is asked again soon enough."""
LEAST_LEASE_S: Final = 2 * ASIDE_S
"""A lease that is granted for less is renewed as if it were this long: a router is asked as rarely
as one that refuses."""
MOST_RETRY_S: Final = LEASE_S / 2
"""Where nothing maps it is tried as often as a mapping is renewed."""


class PortMapper:
    """See the module's docstring.

    Args:
        way: how the router is asked.
        wanted: returns the port to be reached now; None: none.
        others: outer ports to wish for where that one is somebody else's.
        tell: called with the mapping whenever it has changed; None: there is none.
    """

    def __init__(
        self,
        way: Way,
        wanted: Callable[[], int | None],
        others: Sequence[int],
        tell: Callable[[Mapped | None], None],
    ) -> None:
        self._way: Way = way
        self._wanted, self._others, self._tell = wanted, tuple(others), tell
        self._held: Mapped | None = None
        self._own_port, self._ends_at = 0, 0.0
        self._renewing = trio.Event()
        self._request = trio.CancelScope()
        """Of the request under way. One that is cut short may map what nobody gives back."""

    async def run(self) -> None:
        """Keep the mapping until cancelled; then give it back."""
        try:
            while True:
                self._renewing = trio.Event()
                await self._while_wanted()
        finally:
            with trio.CancelScope(shield=True):
                await self._give_back()

    def renew(self) -> None:
        """Ask the router again at once for what it may have forgotten."""
        self._renewing.set()

    async def _while_wanted(self) -> None:
        """Keep a mapping until another one is wanted, the router is another one, or `renew`."""
        wanted, router = self._wanted(), gateway.routers()
        async with trio.open_nursery() as nursery:
            if wanted is not None:
                nursery.start_soon(self._keep, wanted)
            try:
                while self._wanted() == wanted and gateway.routers() == router:
                    with trio.move_on_after(LOOK_S):
                        await self._renewing.wait()
                    if self._renewing.is_set():
                        break
            finally:
                asked_again = self._renewing.is_set() or gateway.routers() != router
                wait_s = 0.0 if asked_again else END_S
                self._request.deadline = trio.current_time() + wait_s
            nursery.cancel_scope.cancel()
        if gateway.routers() != router:
            self._hold(None)  # what the old one holds ends by itself
        elif self._wanted() != wanted:
            await self._give_back()
            self._hold(None)

    async def _keep(self, own_port: int) -> None:
        """Ask for a mapping and renew it, until cancelled."""
        wishes, retry_s = [own_port, *self._others], ASIDE_S
        while True:
            if self._held is not None:
                wishes[0] = self._held.port
            mapped = None
            await trio.lowlevel.checkpoint_if_cancelled()  # the request is not, and takes long
            with trio.CancelScope(shield=True) as self._request:
                mapped = await self._ask(own_port, wishes)
            now = trio.current_time()
            if mapped is not None:
                lease_s = max(mapped.lease_s, LEAST_LEASE_S)
                self._own_port, self._ends_at, retry_s = own_port, now + lease_s, ASIDE_S
                self._hold(mapped)
                await trio.sleep(lease_s / 2)
            elif self._held is not None and now < self._ends_at:
                await trio.sleep(min(ASIDE_S, self._ends_at - now))
            else:
                self._hold(None)
                wishes[0] = own_port
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, MOST_RETRY_S)

    async def _ask(self, own_port: int, wishes: Sequence[int]) -> Mapped | None:
        """Ask for the first port that is nobody else's; None: the router does not map."""
        for outer_port in wishes:
            try:
                return await gateway.ask(self._way, own_port, outer_port, LEASE_S)
            except MappingRefused as error:
                if not error.conflict:
                    return None
        return None

    async def _give_back(self) -> None:
        if self._held is not None:
            with trio.move_on_after(END_S):
                await gateway.end(self._way, self._own_port, self._held.port)

    def _hold(self, mapped: Mapped | None) -> None:
        if mapped != self._held:
            self._held = mapped
            self._tell(mapped)
