"""Limits the cost of connected strangers: bytes per connection, messages in all.

A stranger is a peer that is not a member yet: before its Hello is accepted, or after it until an
advert of its own has been heard. It may introduce itself, join, and make the requests of newcomers
and observers. Reading from each connection is paced separately, so that one peer's flood does not
slow another. Messages of all strangers together are processed at a bounded rate, in turn, so that a
crowd of them does not slow down training.

State: the token buckets. Members pass without waiting.
"""

from collections.abc import Awaitable, Callable

import trio

from protocol.ids import PeerId
from protocol.token_bucket import TokenBucket

INTAKE_BYTES_PER_S, INTAKE_BURST_BYTES = 32 * 1024, 512 * 1024
"""Limits of each stranger: the records of a large swarm that a peer sends before its own advert
come to some 300 KB."""
FRAME_COST_BYTES = 64
"""Bytes charged for a frame beyond its size, because an empty frame also costs time."""
MESSAGES_PER_S, MESSAGES_BURST = 200.0, 400.0
"""Messages of all strangers together; a newcomer needs some ten to become a member."""
RECHECK_S = 0.5
"""The longest wait of a peer that has become a member meanwhile."""


class Strangers:
    """The budget of one network's strangers.

    Args:
        is_member: whether a peer is a member.
    """

    def __init__(self, is_member: Callable[[PeerId], bool]) -> None:
        self._is_member = is_member
        self._messages = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, trio.current_time())

    async def turn(self, peer: PeerId) -> None:
        """Wait until a message of this peer may be processed."""
        if not self._is_member(peer):
            await self._wait(peer, self._messages.reserve(1, trio.current_time()))

    def intake(self, peer: PeerId) -> Callable[[int, int], Awaitable[None]]:
        """Return what notes the bytes and frames read from one connection, and waits until more may
        be read."""
        budget = TokenBucket(INTAKE_BYTES_PER_S, INTAKE_BURST_BYTES, trio.current_time())

        async def took(size_bytes: int, frames: int) -> None:
            if not self._is_member(peer):
                cost = size_bytes + FRAME_COST_BYTES * frames
                await self._wait(peer, budget.reserve(cost, trio.current_time()))

        return took

    async def _wait(self, peer: PeerId, wait_s: float) -> None:
        """Wait, unless the peer becomes a member."""
        until = trio.current_time() + wait_s
        while (left_s := until - trio.current_time()) > 0 and not self._is_member(peer):
            await trio.sleep(min(left_s, RECHECK_S))
