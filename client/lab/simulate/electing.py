"""Electors and quorum of a world without partitions, in which nobody forges a vote.

Whoever is not in a view has ended there, and counts for neither side of a vote: two replicas go on
when one of them is killed, where a real swarm would roll back.
"""

from collections.abc import Callable, Collection
from itertools import count
from typing import Any

from protocol.answer import YES, Answer
from protocol.decree.decree import is_majority
from protocol.decree.elector import Elector, Sight
from protocol.ids import PeerId
from protocol.membership.contacts import Contacts
from protocol.pace import FORGET_S
from protocol.rounds.quorum import Quorum
from protocol.view import SwarmView


def sight(**known: Callable[..., Any]) -> Sight:
    """Return what an elector goes by that sees nobody, trusts all who speak to it, and looks at the
    clock now and then."""
    sees: dict[str, Callable[..., Any]] = {
        "may_be": lambda _stage, _era, _step: True,
        "proves": lambda _peer: True,
        "first": lambda _era, _step: (),
        "serving": lambda _stage: {},
        "lost": tuple,
        "is_near": lambda _stage: True,
        "now": count(0, FORGET_S).__next__,
    }
    return Sight(**(sees | known))


class UnsplitElector(Elector):
    """Signs nothing, and takes every signature for good.

    Args:
        sees: what it goes by.
        is_gone: whether a peer is not in the view.
    """

    def __init__(
        self, sees: Sight | None = None, is_gone: Callable[[PeerId], bool] = lambda _peer: False
    ) -> None:
        super().__init__(lambda _kind, _body: bytes(64), lambda *_: True, sees or sight())
        self._is_gone = is_gone

    def _is_majority(self, some: Collection[PeerId], electors: frozenset[PeerId]) -> bool:
        return is_majority(some, electors, self._is_gone)


class UnsplitQuorum(Quorum):
    """The electors of a step; nobody is out of touch with anybody."""

    def __init__(self, me: PeerId, stage: int, electors: Collection[PeerId] = ()) -> None:
        super().__init__(me, stage, Contacts(), electors=electors)

    def is_gone(self, peer: PeerId) -> bool:
        """See ``Quorum``."""
        return peer != self.me and self._here is not None and peer not in self._here

    def suffice(self, peers: Collection[PeerId]) -> bool:
        """See ``Quorum``."""
        return is_majority(peers, self.electors, self.is_gone)

    def holds(self, now: float) -> Answer:
        """See ``Quorum``."""
        return YES

    def needs(self, peer: PeerId, aside: Collection[PeerId], now: float) -> bool:
        """See ``Quorum``."""
        return False

    def keeps(
        self, members: Collection[PeerId], named: Collection[PeerId], view: SwarmView, now: float
    ) -> Answer:
        """See ``Quorum``."""
        return YES

    def absent(self, missing: Collection[PeerId], now: float) -> list[PeerId]:
        """See ``Quorum``."""
        return []
