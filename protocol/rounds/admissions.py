"""Admissions to a stage: the peers that ask for admission, and the admitted ones that observe.

Every replica notes both, for any may lead next. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from protocol import limits
from protocol.agreed import AgreedList
from protocol.effects import Effect, Explain, Send
from protocol.ids import PeerId, rank, short
from protocol.pace import FORGET_S
from protocol.pipeline.place import Place
from protocol.wire.messages import Admit, Commit

DONORS: Final = 3
LetsIn = Callable[[PeerId, float], bool]


class Admissions:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        lets_in: whether a newcomer may be admitted now (``seat/roster.py``).
    """

    def __init__(self, place: Place, lets_in: LetsIn) -> None:
        self._place, self._lets_in = place, lets_in
        self._asking: dict[PeerId, float] = {}
        self._observing: dict[PeerId, float] = {}

    def ask(self, joiner: PeerId, now: float) -> None:
        """Note that a newcomer asks for admission; it asks again when it has heard nothing."""
        self._asking[joiner] = now + FORGET_S

    def admitted(self, joiner: PeerId, now: float) -> None:
        """Note that a leader has admitted a newcomer; its heartbeats soon say so."""
        self._asking.pop(joiner, None)
        self._observing[joiner] = now + FORGET_S

    def observing(self, now: float) -> list[PeerId]:
        """Return the recently admitted peers, in order of peer id."""
        self._observing = {p: until for p, until in self._observing.items() if until > now}
        return sorted(self._observing)

    def observers(
        self, arriving: Collection[PeerId], members: Collection[PeerId], now: float
    ) -> list[PeerId]:
        """Return the observers of a round.

        If there are more than a plan can hold, peers that were admitted and report it come first.

        Args:
            arriving: peers that report themselves as arriving.
            members: the round's members, left out.
            now: monotonic seconds.
        """
        let_in = self.observing(now)
        found = sorted({*let_in, *arriving}.difference(members))
        found.sort(key=lambda peer: (peer not in arriving, peer not in let_in))
        return sorted(found[: limits.MAX_REPLICAS_IN_ROUND])

    def admit(
        self,
        serving: Sequence[PeerId],
        held: Collection[PeerId],
        step: int,
        state: bytes,
        commit: Commit | None,
        now: float,
        amended: AgreedList = (),
    ) -> list[Effect]:
        """Admit peers that ask, as long as all holders of the stage fit into one round, and few of
        them are new.

        Args:
            serving: replicas at ``step``; they are the donors.
            held: all holders of the stage, including fetching ones.
            step: the present version.
            state: digest of that version, empty if not known.
            commit: that made this version; None where a lineage begins.
            now: monotonic seconds.
            amended: the amendments on which the stage had agreed at that version.
        """
        self._asking = {p: until for p, until in self._asking.items() if until > now}
        effects: list[Effect] = []
        for joiner in [p for p in self._asking if p not in serving and serving]:
            others = {*held, *self.observing(now)} - {joiner}
            if len(others) >= limits.MAX_REPLICAS_IN_ROUND or not self._lets_in(joiner, now):
                continue
            self.admitted(joiner, now)
            donors = sorted(serving, key=lambda peer: rank("donor", joiner, peer))[:DONORS]
            admit = Admit(
                self._place.stage,
                step,
                joiner,
                list[str](donors),
                commit=commit,
                state=state,
                amended=amended,
            )
            told = dict.fromkeys([*serving, *self.observing(now), joiner])
            effects += [Send(peer, admit) for peer in told]
            words = f"{short(joiner)} joins stage {self._place.stage} at version {step}"
            effects.append(Explain("transfer", words, members=(joiner,)))
        return effects
