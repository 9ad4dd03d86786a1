"""Newcomers to a stage: who asks to be let in, and who was and observes the rounds since.

Every replica notes both, for any may lead next. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from protocol import limits
from protocol.effects import Effect, Explain, Send
from protocol.ids import PeerId, rank, short
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Admit

JOIN_TTL_S: Final = 15.0
"""A newcomer asks again when it has heard nothing; once admitted, its heartbeats soon say so."""
DONORS: Final = 3


class Newcomers:
    """See the module's docstring."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._asking: dict[PeerId, float] = {}
        self._observing: dict[PeerId, float] = {}

    def ask(self, joiner: PeerId, now: float) -> None:
        """A newcomer wants in."""
        self._asking[joiner] = now + JOIN_TTL_S

    def admitted(self, joiner: PeerId, now: float) -> None:
        """A leader has let a newcomer in."""
        self._asking.pop(joiner, None)
        self._observing[joiner] = now + JOIN_TTL_S

    def observing(self, now: float) -> list[PeerId]:
        """Return who was let in lately, in order of peer id."""
        self._observing = {p: until for p, until in self._observing.items() if until > now}
        return sorted(self._observing)

    def observers(
        self, arriving: Collection[PeerId], members: Collection[PeerId], now: float
    ) -> list[PeerId]:
        """Return who observes a round with these members: of more than a plan has room for, who was
        let in and says so itself (``arriving``) goes before who only says so."""
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
        quorum: Quorum,
        now: float,
    ) -> list[Effect]:
        """Let in whoever asks, with ``serving`` (who are at ``step``) as donors, as long as all who
        hold the stage (``held``, fetching ones included) could take part in one round.

        Args:
            state: digest of the version at ``step``, empty if not known.
        """
        self._asking = {p: until for p, until in self._asking.items() if until > now}
        effects: list[Effect] = []
        for joiner in [p for p in self._asking if p not in serving and serving]:
            others = {*held, *self.observing(now)} - {joiner}
            if len(others) >= limits.MAX_REPLICAS_IN_ROUND:
                continue
            self.admitted(joiner, now)
            donors = sorted(serving, key=lambda peer: rank("donor", joiner, peer))[:DONORS]
            admit = Admit(
                self._place.stage,
                step,
                joiner,
                list[str](donors),
                roll=list[str](sorted(quorum.roll)[: limits.MAX_REPLICAS_IN_ROUND]),
                electors=list[str](sorted(quorum.electors)[: limits.MAX_REPLICAS_IN_ROUND]),
                state=state,
            )
            effects += [Send(peer, admit) for peer in [*serving, joiner]]
            words = f"{short(joiner)} joins stage {self._place.stage} at version {step}"
            effects.append(Explain("transfer", words))
        return effects
