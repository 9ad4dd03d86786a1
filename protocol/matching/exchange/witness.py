"""The witness: the part of a stage's other candidates in a full epoch.

They recompute the published plan or decision from the same records and their own view, and sign its
digest; two of three must agree. State: the attempts seen to begin. An attempt that began earlier is
not attested, because we may have signed something else before a restart.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.effects import Effect, Explain, Publish
from protocol.ids import PeerId, Stage
from protocol.matching.bodies import encode_body
from protocol.matching.context import Context
from protocol.matching.exchange import bodies, load, tally
from protocol.matching.exchange.bodies import (
    ATTEST_KIND,
    COLLECT,
    COMMIT,
    FREEZE,
    Attest,
    Ballot,
    Epoch,
    EpochId,
    Round,
)
from protocol.matching.exchange.pledges import Pledges
from protocol.matching.exchange.registry import CHAIR_STAGE, Call, Registry
from protocol.matching.exchange.timing import ATTEST_S
from protocol.matching.exchange.wishes import Terms

TOLERANCE_PERCENT = 10
"""Tolerance for differing views: counts and rates may deviate by this and by one volunteer."""


class Witness:
    """Attestations of one peer.

    Args:
        context: population, board and wall clock of this peer's matching.
        registry: records of the exchange.
        pledges: digests that this peer has signed.
        has_majority: whether this peer sees a majority of the last members.
    """

    def __init__(
        self,
        context: Context,
        registry: Registry,
        pledges: Pledges,
        has_majority: Callable[[], bool],
    ) -> None:
        self._context = context
        self._has_majority = has_majority
        self._registry = registry
        self._pledges = pledges
        self._seen: Round | None = None
        self._begun: Round | None = None
        self._duties_in: EpochId | None = None
        self._duties: frozenset[Stage] = frozenset()

    def look(self, call: Call, now: float) -> list[Effect]:
        """Look at the records of an epoch."""
        epoch, round_ = call.epoch, call.epoch.round
        if epoch.phase == COLLECT or (self._seen is not None and self._seen < round_):
            self._begun = round_
        self._seen = max(self._seen or round_, round_)
        if self._begun != round_ or epoch.phase not in (FREEZE, COMMIT):
            return []
        if not self._duties_of(round_.epoch):
            return []
        found = self._attest_ballots(epoch, now) if epoch.phase == FREEZE else []
        if epoch.phase == COMMIT and now < call.received_at + ATTEST_S:
            found = self._attest_decision(call, now)
        return found

    def _duties_of(self, epoch: EpochId) -> frozenset[Stage]:
        """Return the stages for which we are a candidate in an epoch."""
        if self._duties_in != epoch:
            me, stages = self._context.me, map(Stage, self._context.population.stages)
            found = (s for s in stages if me in self._registry.witnesses(s, epoch))
            self._duties_in, self._duties = epoch, frozenset(found)
        return self._duties

    # --- frozen ballots ---------------------------------------------------------------------

    def _attest_ballots(self, epoch: Epoch, now: float) -> list[Effect]:
        """Sign the frozen ballots of an adopted plan for which we are a candidate."""
        ballots = self._registry.ballots(epoch.round, now)
        if not tally.is_quiet(ballots) or tally.fingerprint(ballots) != epoch.digest:
            return []
        verdict = self._registry.verdict(epoch, ballots)
        if verdict is None or not verdict.adopted:
            return []
        found: list[Effect] = []
        for stage, (author, ballot) in sorted(ballots.items()):
            if self._is_witness(stage, author, epoch, decision=False):
                why = self._implausible(ballot, epoch)
                if why:
                    found += self._refuse(stage, why)
                else:
                    digest = tally.plan_of(ballot)
                    found += self._sign(epoch, stage, digest, decision=False, now=now)
        return found

    def _implausible(self, ballot: Ballot, epoch: Epoch) -> str | None:
        """Return what in a ballot contradicts our view, or None."""
        terms = Terms(epoch.quota_percent, epoch.fair, epoch.r)
        if ballot.quota != terms.limits.quota:
            return "another quota than the chair's"
        if ballot.electorate > ballot.basis.replicas:
            return "more electors than replicas"
        view, stage = self._context.population, Stage(ballot.stage)
        homes = [peer for peer in view.holders(stage) if view.members[peer].home_stage == stage]
        known = load.total(load.of_member(view, peer, stage) for peer in homes).level
        replicas = len(homes) + len(view.seconds(stage))
        if _differ(ballot.basis.replicas, replicas, 1):
            return f"{ballot.basis.replicas} replicas, we know of {replicas}"
        best = max((view.rate(peer, stage) for peer in homes), default=0)
        if _differ(ballot.basis.load.level, known, best):
            return "a level that its members do not have"
        return None

    # --- decisions --------------------------------------------------------------------------

    def _attest_decision(self, call: Call, now: float) -> list[Effect]:
        """Sign the chair's decision if it follows from the attested ballots."""
        epoch, chair = call.epoch, call.chair
        if not self._is_witness(CHAIR_STAGE, chair, epoch, decision=True):
            return []
        ballots = self._registry.plan(epoch.round)
        verdict = self._registry.verdict(epoch, ballots)
        if verdict is None:
            return []
        if not verdict.adopted or tally.whole_plan(epoch.round, ballots) != epoch.digest:
            return self._refuse(CHAIR_STAGE, "the ballots do not say so")
        return self._sign(epoch, CHAIR_STAGE, epoch.digest, decision=True, now=now)

    # --- signing ----------------------------------------------------------------------------

    def _is_witness(self, stage: Stage, author: PeerId, epoch: Epoch, *, decision: bool) -> bool:
        """Tell whether we are another candidate that has not signed yet."""
        if author == self._context.me or stage not in self._duties_of(epoch.round.epoch):
            return False
        return not self._pledges.has_signed(epoch.round, stage, decision=decision)

    def _sign(
        self, epoch: Epoch, stage: Stage, digest: bytes, *, decision: bool, now: float
    ) -> list[Effect]:
        if not self._has_majority():
            return self._refuse(stage, "we see no majority of the swarm")
        if not self._pledges.sign(epoch.round, stage, digest, decision=decision):
            return self._refuse(stage, "we have signed something else")
        number = self._context.number(now)
        body = Attest(
            stage=stage,
            mandate=epoch.mandate,
            issued_ms=number,
            round=epoch.round,
            decision=decision,
            digest=digest,
        )
        what = "the chair's decision" if decision else f"the plan of stage {stage}"
        said = Explain("matching", f"attested {what}", "debug")
        return [Publish(ATTEST_KIND, bodies.key_of(body), number, encode_body(body)), said]

    def _refuse(self, stage: Stage, why: str) -> list[Effect]:
        self._context.counters["matching-not-attested"] += 1
        return [Explain("matching", f"not attested for stage {stage}: {why}", "debug")]


def _differ(claimed: int, known: int, slack: int) -> bool:
    return abs(claimed - known) * 100 > known * TOLERANCE_PERCENT + slack * 100
