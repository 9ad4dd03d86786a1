"""Company: the members that may have newer copies than ours after a restart.

A restarted swarm waits for members that may bring newer versions. A member that left before our
version was made cannot have a newer one, because at most one side of a swarm closes a step
(``rounds/quorum.py``). So for each member it is enough to remember the swarm's version when the
member was last present, and whether it left in order: then it had announced all that it had.

State: one entry per member met, bounded. It must survive the process, so the driver saves every
change. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.ids import PeerId
from protocol.wire.fields import StepIndex

MAX_COMPANIONS: Final = 512
"""Members remembered; the ones dropped beyond count as one without a name, never met again."""


class Companion(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member that was there with us."""

    peer: Annotated[str, Meta(max_length=128)]
    version: StepIndex | None = None
    """Newest version of any stage that was served when it went; None: we did not see it go."""
    left: bool = False
    """It left in order, so it has nothing newer; a member that fell silent may have trained on."""

    def may_be_ahead(self, of: int) -> bool:
        """Whether it may have copies of a version newer than ``of``, which we have."""
        if self.version is None:
            return True
        return self.version > of or (self.version == of and not self.left)


class Company:
    """See the module's docstring.

    Args:
        known: what was written down in earlier sessions.
    """

    def __init__(self, known: Iterable[Companion] = ()) -> None:
        self._known = {PeerId(one.peer): one for one in known}
        self._live: frozenset[PeerId] = frozenset()

    def companions(self) -> tuple[Companion, ...]:
        """Return what has to be saved, at most ``MAX_COMPANIONS``."""
        return tuple(self._known.values())

    def update(
        self, live: Collection[PeerId], newest: int | None, left: Callable[[PeerId], bool]
    ) -> bool:
        """Take the present members; return whether the state changed and must be saved.

        Args:
            live: the other live members.
            newest: newest version that any stage serves; None while it is unknown: a member that
                leaves then may have trained on before, and counts as unseen.
            left: whether a member that left did so in order.
        """
        now = frozenset(live)
        came, went = now - self._live, list[PeerId]()
        self._known |= {peer: Companion(peer) for peer in sorted(came)}
        if newest is not None:
            unseen = (peer for peer, one in self._known.items() if one.version is None)
            went = [peer for peer in unseen if peer and peer not in now]
            self._known |= {peer: Companion(peer, newest, left(peer)) for peer in went}
        self._live = now
        if len(self._known) > MAX_COMPANIONS:
            self._drop()
        return bool(came or went)

    def _drop(self) -> None:
        latest = sorted(self._known.values(), key=_weight, reverse=True)
        kept = latest[: MAX_COMPANIONS // 2]
        nameless = Companion("", latest[len(kept)].version)
        self._known = {PeerId(one.peer): one for one in (*kept, nameless)}

    @property
    def newest(self) -> int:
        """The newest version that was served when somebody went; 0: none that we know."""
        return max((one.version or 0 for one in self._known.values()), default=0)

    def ahead(self, of: int) -> frozenset[PeerId]:
        """Return the members that may have copies of a version newer than ``of``, which we have; ""
        stands for those whose names were dropped."""
        return frozenset(peer for peer, one in self._known.items() if one.may_be_ahead(of))


def _weight(one: Companion) -> tuple[bool, int, bool]:
    return one.version is None, one.version or 0, not one.left
