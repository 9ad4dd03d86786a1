"""Keeps a port of this network's router mapped to ours, and gives it back at the end.

Drives ``protocol.port_mapping.machine``. Every few seconds it looks whether a mapping is wanted,
and whether the router is another one. State: the machine, and the requests under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from client.net import gateway
from protocol.port_mapping.machine import AskMapping, EndMapping, MappingEffect, PortMapping
from protocol.port_mapping.mapped import WAYS, Mapped, MappingRefused, Way

LOOK_S: Final = 5.0
END_S: Final = 3.0
"""Longest wait at the end for a router that takes a mapping back."""


class PortMapper:
    """See the module's docstring.

    Args:
        wanted: returns the port to be reached now; None: none.
        others: outer ports to wish for where that one is somebody else's.
        nonce: 12 random bytes.
        ways: all that may be asked.
        tell: called with the mapping whenever it has changed; None: there is none.
    """

    def __init__(
        self,
        wanted: Callable[[], int | None],
        others: Sequence[int],
        nonce: bytes,
        tell: Callable[[Mapped | None], None],
        ways: Sequence[Way] = WAYS,
    ) -> None:
        self._wanted, self._nonce, self._tell = wanted, nonce, tell
        self.machine = PortMapping(others, ways)
        self._told: Mapped | None = None
        self._router: gateway.Routers | None = None
        self._asking: dict[Way, trio.CancelScope] = {}
        self._renewing = trio.Event()

    async def run(self) -> None:
        """Keep the mapping until cancelled; then give it back."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for effect in self._look():
                        self._perform(effect, nursery)
                    with trio.move_on_after(LOOK_S):
                        await self._renewing.wait()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_S):
                for effect in self.machine.close():
                    if isinstance(effect, EndMapping):
                        await gateway.end(effect, self._nonce)

    def renew(self) -> None:
        """Look at once, and ask the router again for what it may have forgotten."""
        self._renewing.set()

    def _look(self) -> list[MappingEffect]:
        now = trio.current_time()
        if self._renewing.is_set():
            self._renewing = trio.Event()
            self.machine.renew(now)
        router, before = gateway.routers(), self._router
        self._router = router
        effects = self.machine.want(self._wanted(), now)
        if before is not None and router != before:
            effects = self.machine.moved(now)
        effects += self.machine.tick(now)
        self._say()
        return effects

    def _say(self) -> None:
        if self.machine.held != self._told:
            self._told = self.machine.held
            self._tell(self._told)

    def _perform(self, effect: MappingEffect, nursery: trio.Nursery) -> None:
        if isinstance(effect, EndMapping):
            nursery.start_soon(gateway.end, effect, self._nonce)
            return
        if (before := self._asking.pop(effect.way, None)) is not None:
            before.cancel()
        scope = self._asking[effect.way] = trio.CancelScope()
        nursery.start_soon(self._ask, effect, scope, nursery)

    async def _ask(
        self, effect: AskMapping, scope: trio.CancelScope, nursery: trio.Nursery
    ) -> None:
        effects: list[MappingEffect] = []
        with scope:
            try:
                mapped = await gateway.ask(effect, self._nonce)
                effects = self.machine.mapped(effect.way, mapped, trio.current_time())
            except MappingRefused as error:
                now = trio.current_time()
                effects = self.machine.refused(effect.way, str(error), now, conflict=error.conflict)
        with suppress(KeyError):
            if self._asking[effect.way] is scope:
                del self._asking[effect.way]
        for further in effects:
            self._perform(further, nursery)
        self._say()
