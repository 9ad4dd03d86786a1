"""Who charges whom, in our stage and those beside it: told, counted, and a verdict in the end.

A charge is one word of a stage, and a majority of it expels (``audit/charges.py``). Every member
tells its own charges, and of a member that is expelled all, since others may not have got all of
them: to all that are near when there is a new one, and to whoever comes near later.

State: who is near; in ``AuditTerms`` the charges.
"""

from collections.abc import Collection, Iterable
from itertools import chain

from protocol import limits
from protocol.audit.charges import CHARGE, KIND, Charge, JudgesOf
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PeerId, short
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.verdicts import Certificate
from protocol.view import SwarmView
from protocol.wire.fields import Envelope
from protocol.wire.messages import Charged
from protocol.wire.parts import VotedOut

_Near = frozenset[tuple[int, PeerId]]
"""Replicas that serve our stage and those beside it, each with its stage."""


class Charging:
    """See the module's docstring; ``judges`` returns whose charges count, in the stage of one."""

    def __init__(self, place: Place, terms: AuditTerms, judges: JudgesOf) -> None:
        self._place, self._terms, self._judges = place, terms, judges
        self._near: _Near = frozenset()

    def found_out(self) -> set[PeerId]:
        """Return whom we have found out ourselves and charge, of any stage."""
        return self._terms.charges.found_out_by(self._place.me)

    def charge(self, charge: Charge, now: float) -> list[SeatEffect]:
        """Charge a member, unless we have: what is doubtful is charged once more if it is sure.
        Everybody whom it concerns is told."""
        me, member, terms = self._place.me, PeerId(charge.member), self._terms
        known = terms.charges.of(charge.stage, member, me)
        if member == me or (known is not None and known.reason != "fails"):
            return []
        effects = list[SeatEffect]()
        if len({*self._members(charge), member}) < limits.LEAST_TO_CONVICT:
            words = f"{short(member)} and we are alone in stage {charge.stage}: nobody can decide"
            effects.append(Explain("round", words, "warning"))
        signed = terms.sign(KIND, CHARGE.encode(charge))
        if terms.charges.take(signed, now) is None:
            return effects
        return [*effects, *self._tell([signed], self._near), *self.verdicts(now)]

    def on_charged(self, sender: PeerId, message: Charged, now: float) -> list[SeatEffect]:
        """Take a charge of a member of our stage, or of one beside it."""
        author, charges = PeerId(message.charge.signer), self._terms.charges
        if not self._terms.budget:
            return []
        body = CHARGE.parse(message.charge.body)
        if author not in self._members(body):
            return []
        if charges.take(message.charge, now) is None:
            return []
        if body.stage == self._place.stage:
            self._terms.record(body.stage, PeerId(body.member)).suspect(author)
        return self.verdicts(now)

    def verdicts(self, now: float) -> list[SeatEffect]:
        """Return the members that majorities of their stages have charged by now, once each."""
        terms = self._terms
        found = list(filter(terms.verdicts.add, terms.charges.verdicts(self._members, now)))
        return [*found, *self._tell(_charges_of(one.certificate for one in found), self._near)]

    def _members(self, charge: Charge) -> Collection[PeerId]:
        """Return the members of a stage at the step of a charge; of a far one nobody."""
        return self._judges(charge) if self._is_near(charge.stage) else ()

    # --- telling ----------------------------------------------------------------------------------

    def update_view(self, view: SwarmView, now: float) -> list[SeatEffect]:
        """Tell who serves near us now, and did not before, who is charged. ``view`` is with those
        on probation: one that counts again is no newcomer."""
        me, out = self._place.me, self._terms.verdicts
        stages, before = filter(self._is_near, range(self._place.stages)), self._near
        self._near = frozenset((s, r.peer) for s in stages for r in view.serving(s) if r.peer != me)
        kept = [k for k in self._terms.charges.all(now) if k.envelope.signer == me]
        ours = [k.envelope for k in kept if k.charge.member not in out]
        voted = _charges_of(one for one in out.votes if self._is_near(one.stage))
        return [*self._tell([*ours, *voted], self._near - before), *self.verdicts(now)]

    def _is_near(self, stage: int) -> bool:
        return abs(stage - self._place.stage) <= 1

    def _tell(self, charges: Iterable[Envelope], near: _Near) -> list[SeatEffect]:
        pairs = ((one, to) for one in charges for to in sorted(near) if to[1] != one.signer)
        return [Send(peer, Charged(stage, one)) for one, (stage, peer) in pairs]


def _charges_of(certificates: Iterable[Certificate | None]) -> Iterable[Envelope]:
    votes = (one.charges for one in certificates if isinstance(one, VotedOut))
    return chain.from_iterable(votes)
