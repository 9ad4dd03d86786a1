"""What replicas beside us gave us is what they have committed to.

An audit shows that a member has computed what it committed to, and not what it has sent to the
stages beside its own. So of the tensors that we counted in a step we compare those of one giver,
drawn with our secret, with its list of that step, by their digests (SPEC.md, section 15). One is
compared at a time. What we find is proof to us alone, so each replica decides for itself. A stage
of one commits to nothing.

State: the comparison under way, and the newest results by giver. ``now`` is monotonic seconds.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S
from protocol.audit.commitment import Contents, listed, tensors_of
from protocol.audit.draw import uniform
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.evidence.statement import envelope_of
from protocol.ids import PeerId, rank
from protocol.pipeline.effects import PayloadName
from protocol.pipeline.place import Place
from protocol.seat.standing import Standing
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.messages import AuditReply, AuditRequest, Commitment, Statements

NEWEST: Final = 8
MOST_UNLISTED: Final = 4
MAX_GIVERS: Final = 256

Giver = tuple[int, PeerId]
"""A replica of a stage."""
Given = Mapping[Giver, Mapping[int, bytes]]
"""Digests of what was given, by giver and microbatch: of the tokens and the boundary by the stage
before, of the gradient by the stage after."""


@dataclass(slots=True)
class _Comparison:
    """What one giver gave us of a step, and when it is asked again; None: it has not closed the
    step yet."""

    giver: Giver
    step: int
    given: Mapping[int, bytes]
    until: float | None = None
    ask_at: float = 0.0


class Givers:
    """See the module's docstring."""

    def __init__(self, place: Place, standing: Standing, terms: AuditTerms) -> None:
        self._place, self._standing, self._terms = place, standing, terms
        self._open: _Comparison | None = None
        self._results: dict[Giver, deque[bool]] = {}
        """Of the newest comparisons of each, in which it listed less than half."""

    def closed(self, step: int, given: Given) -> None:
        """A step is closed with what these gave: draw one of those that have siblings."""
        if self._open is not None:
            return
        secret = self._terms.secret
        drawn = [giver for giver in given if giver[1] != self._place.me and self._siblings(giver)]
        if drawn:
            giver = min(drawn, key=lambda of: uniform(secret, b"giver", of[0], step, of[1]))
            self._open = _Comparison(giver, step, given[giver])

    def look(self, now: float) -> list[Send]:
        """The view is another one: ask as soon as the giver has closed the step; forget it if it
        has gone."""
        of = self._open
        if of is None or of.until is not None:
            return []
        stage, peer = of.giver
        there = next((r for r in self._standing.view.stages[stage] if r.peer == peer), None)
        if there is None or not self._siblings(of.giver):
            self._open = None
        elif there.version > of.step:
            of.until = now + PATIENCE_S
            return self._ask(of, now)
        return []

    def on_list(
        self, sender: PeerId, message: AuditReply, encoded: bytes, now: float
    ) -> list[Send | Explain]:
        """Take the list of a giver, with its signed commitment."""
        of, said = self._open, message.said
        if of is None or said is None or (of.giver[1], of.step) != (sender, message.step):
            return []
        signed = self._signed(of, said)
        if signed is None:
            return []
        shown = listed(encoded, said.root)
        found = self._judge(of, {} if shown is None else self._rows(of.giver[0], shown), now)
        siblings = sorted(self._siblings(of.giver), key=lambda p: rank(sender, message.step, p))
        return [*found, *(Send(peer, Statements("decision", (signed,))) for peer in siblings[:1])]

    def tick(self, now: float) -> list[Send | Explain]:
        """Ask again, and lose patience in the end."""
        of = self._open
        if of is None or of.until is None or now < of.ask_at:
            return []
        return [*self._ask(of, now)] if now < of.until else self._judge(of, {}, now)

    # --- within ---------------------------------------------------------------------------------

    def _ask(self, of: _Comparison, now: float) -> list[Send]:
        of.ask_at = now + ASK_AGAIN_S
        stage, peer = of.giver
        return [Send(peer, AuditRequest(stage, of.step, 0, "list", 0, beside=self._place.stage))]

    def _siblings(self, giver: Giver) -> list[PeerId]:
        """Return who serves a giver's stage beside it, ourselves left out."""
        others = (r.peer for r in self._standing.view.serving(giver[0]))
        return [peer for peer in others if peer not in (giver[1], self._place.me)]

    def _signed(self, of: _Comparison, said: Commitment) -> Envelope | None:
        """Return what a giver has signed of its commitment in the step; None: it has not."""
        stage, peer = of.giver
        signed = envelope_of(peer, said)
        if signed is None or (said.stage, said.step, said.era) != (stage, of.step, self._place.era):
            return None
        try:
            verify(signed, self._terms.charges.swarm)
        except RemoteProtocolError:
            return None
        return signed

    def _rows(self, stage: int, shown: Contents) -> dict[int, bytes]:
        """Return what a list says was given to us, as ``Given`` has it."""
        names = tensors_of(first=stage == 0, last=stage == self._place.stages - 1)
        wanted: Sequence[PayloadName] = ("tokens", "output")
        if stage > self._place.stage:
            wanted = ("grad_out",)
        at = [names.index(name) for name in wanted]
        whole = [row for row in shown.microbatches if len(row.digests) == len(names)]
        return {row.microbatch: b"".join(row.digests[i] for i in at) for row in whole}

    def _judge(
        self, of: _Comparison, rows: Mapping[int, bytes], now: float
    ) -> list[Send | Explain]:
        """The comparison is over: set the giver aside if it has not committed to what it gave."""
        self._open = None
        known = [m for m in of.given if m in rows]
        wrong = [m for m in known if rows[m] != of.given[m]]
        newest = self._results.pop(of.giver, None) or deque(maxlen=NEWEST)
        newest.append(2 * len(known) < len(of.given))
        if wrong or sum(newest) > MOST_UNLISTED:
            words = "it counts little of what it gave us"
            if wrong:
                words = f"it gave us another tensor of microbatch {wrong[0]} than it committed to"
            stage, peer = of.giver
            return [*self._standing.set_aside(peer, stage, words, now)]
        self._results[of.giver] = newest
        while len(self._results) > MAX_GIVERS:
            del self._results[next(iter(self._results))]
        return []
