"""Who charges whom, in our stage and those beside it: told, counted, and a verdict in the end.

A charge is one word of a stage, and a majority of it expels (``audit/charges.py``). Every member
tells its own charges, a few times while they expel nobody, for messages that are lost; of a member
that is expelled it tells all: others may not have got all of them.

State: whom we have told what; in ``AuditTerms`` the charges.
"""

from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Final

from protocol import limits
from protocol.audit.charges import CHARGE, KIND, Charge, JudgesOf
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PeerId, short
from protocol.pace import HEARD_S
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.view import SwarmView
from protocol.wire.fields import Envelope
from protocol.wire.messages import Charged

TELL_TIMES: Final = 4

_Near = frozenset[tuple[int, PeerId]]
"""Holders of our stage and those beside it, each with its stage."""


class Charging:
    """See the module's docstring; ``judges`` returns whose charges count, in the stage of one."""

    def __init__(self, place: Place, terms: AuditTerms, judges: JudgesOf) -> None:
        self._place, self._terms, self._judges = place, terms, judges
        self._near: _Near = frozenset()
        self._told = Counter[tuple[int, PeerId, bytes]]()
        """How often a peer was told a charge, by its signature; until it leaves the swarm: who is
        on probation for a while is told afterwards what was said meanwhile, and nothing twice."""
        self._again_at: float | None = None

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
        if terms.charges.take(terms.sign(KIND, CHARGE.encode(charge)), now) is None:
            return effects
        return [*effects, *self.verdicts(now)]

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
        """Return the members that majorities of their stages have charged by now, once each; tell
        what has not been told."""
        terms = self._terms
        found = terms.charges.verdicts(self._members, now)
        return [*filter(terms.verdicts.add, found), *self._tell(now)]

    def _members(self, charge: Charge) -> Collection[PeerId]:
        """Return the members of a stage at the step of a charge; of a far one nobody."""
        return self._judges(charge) if self._is_near(charge.stage) else ()

    # --- telling ----------------------------------------------------------------------------------

    def update_view(self, seen: SwarmView, whole: SwarmView, now: float) -> list[SeatEffect]:
        """Tell newcomers who is charged.

        Args:
            seen: without those on probation.
            whole: with them: one that counts again is no newcomer.
            now: monotonic seconds.
        """
        self._near, there = self._others(seen), self._others(whole)
        self._told = Counter({of: times for of, times in self._told.items() if of[:2] in there})
        return self.verdicts(now)

    def _others(self, view: SwarmView) -> _Near:
        me = self._place.me
        near = filter(self._is_near, range(self._place.stages))
        return frozenset((s, r.peer) for s in near for r in view.stages[s] if r.peer != me)

    def _is_near(self, stage: int) -> bool:
        return abs(stage - self._place.stage) <= 1

    def tick(self, now: float) -> list[SeatEffect]:
        """Tell our open charges again."""
        if self._again_at is None or now < self._again_at:
            return []
        self._again_at = None
        return self._tell(now, again=True)

    def _tell(self, now: float, *, again: bool = False) -> list[SeatEffect]:
        effects, rest = list[SeatEffect](), False
        for charge in self._to_tell(now):
            for stage, peer in sorted(self._near):
                told = self._told[stage, peer, charge.signature]
                if peer == charge.signer or told >= TELL_TIMES:
                    continue
                if again or not told:
                    effects.append(Send(peer, Charged(stage, charge)))
                    self._told[stage, peer, charge.signature] = told = told + 1
                rest |= told < TELL_TIMES
        if rest and self._again_at is None:
            self._again_at = now + HEARD_S
        return effects

    def _to_tell(self, now: float) -> list[Envelope]:
        """Return our open charges, and those by which members near us are out."""
        me, out, kept = self._place.me, self._terms.verdicts, self._terms.charges.all(now)
        ours = (k.envelope for k in kept if k.envelope.signer == me and k.charge.member not in out)
        voted = (one.charges for one in out.votes if self._is_near(one.stage))
        return [*ours, *chain.from_iterable(voted)]
