"""Two members behind routers who meet through a public relay, and how they are linked then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from tests.support.reaching_members import ReachingMember, ReachingSwarm

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The members of the homes ``a`` and ``b``, and that of ``relay``."""

    a: ReachingMember
    b: ReachingMember
    relay: ReachingMember
    began: float
    """When one of them began to dial the other, by ``time.monotonic``."""
    relayed_s: float
    """Until both were linked."""

    def until_direct_s(self, patience_s: float = DEADLINE_S) -> float | None:
        """Wait until both have a direct link; return the seconds, None if they stay relayed."""
        both = ((self.a, self.b), (self.b, self.a))
        direct = lambda: all(is_direct(one, other) for one, other in both)  # noqa: E731
        return time.monotonic() - self.began if waited(direct, patience_s) else None


def is_direct(one: ReachingMember, other: ReachingMember) -> bool:
    """Whether a member's frames to another one go through no relay."""
    return one.network.direct(other.network.peer_id) is not None


def waited(condition: Callable[[], object], patience_s: float = DEADLINE_S) -> bool:
    """Wait for a condition; return whether it has come true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def meet(swarm: ReachingSwarm, kind: str = "ip4") -> Pair:
    """Start the three, let ``b`` reserve at the relay and ``a`` dial it there.

    Args:
        swarm: with the hosts ``relay``, ``a`` and ``b``.
        kind: of the relay's address.
    """
    relay = swarm.start("relay")
    at = [text for text in relay.addresses if f"/{kind}/" in text]
    a, b = swarm.start("a", *at), swarm.start("b", *at)
    offer = lambda: relay.network.passing.offer(relays=True)  # noqa: E731
    trio.from_thread.run_sync(offer, trio_token=relay.token)
    relays = {relay.network.peer_id: at}
    reserve = lambda: b.network.reaching.update(relays, needed=True)  # noqa: E731
    trio.from_thread.run_sync(reserve, trio_token=b.token)
    assert waited(lambda: b.network.reaching.addresses)
    began = time.monotonic()
    trio.from_thread.run(a.network.connect, b.network.reaching.addresses[0], trio_token=a.token)
    assert waited(lambda: a.network.peer_id in b.network.statistics().peers)
    return Pair(a, b, relay, began, time.monotonic() - began)
