"""The ballot box of one stage in one attempt of an epoch.

    OPEN     calls its electors, keeps the prefix cover of its voters, and notes where its own
             electors have their places
    FROZEN   publishes the result of the vote and does not change any more

State: the view and the places when it opened. It changes neither the stage's pool nor any seat, so
an attempt without a decision leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from protocol.effects import Effect, Explain, Publish, SendSigned
from protocol.ids import PeerId, Stage, short
from protocol.matching.bodies import Mandate, encode_body
from protocol.matching.choice import Proposer, prefix_cover
from protocol.matching.context import Context
from protocol.matching.exchange import bodies, load, tally, wishes
from protocol.matching.exchange.bodies import BALLOT_KIND, SUM_BITS, Ballot, Round
from protocol.matching.exchange.load import Basis
from protocol.matching.exchange.pledges import Pledges
from protocol.matching.exchange.projection import Projection, project
from protocol.matching.exchange.timing import BALLOT_GAP_S, CALL_S
from protocol.matching.exchange.wishes import Terms
from protocol.matching.pool import HeldPlace
from protocol.matching.population import Population
from protocol.matching.preferences import words

INFINITY = float("inf")


def may_vote(population: Population, peer: PeerId, home: Stage) -> bool:
    """Tell whether ``peer`` is at home in ``home`` by ``population`` and fetches nothing."""
    member = population.members.get(peer)
    return member is not None and member.home_stage == home and not member.fetching


class Box:
    """Machine of one stage's vote.

    Args:
        context: population, board and wall clock of this peer's matching.
        stage: the stage whose vote it counts.
        mandate: the steward's mandate.
        round_: epoch and attempt.
        terms: the terms of the attempt, equal for all stages.
        places: the stage's places, by peer.
        pledges: digests that this peer has signed.
        excused: electors that do not take part in this attempt.
    """

    def __init__(
        self,
        context: Context,
        stage: Stage,
        mandate: Mandate,
        round_: Round,
        terms: Terms,
        places: Mapping[PeerId, HeldPlace],
        pledges: Pledges,
        excused: frozenset[PeerId] = frozenset(),
    ) -> None:
        self.stage = stage
        self.round = round_
        self.excused = excused
        """Electors that did not vote in time, or declined to; they stay at home."""
        self._context = context
        self._pledges = pledges
        self._view = view = context.population
        self._mandate = mandate
        self._terms = terms
        at_home = [peer for peer in places if peer in view]
        settled = {peer for peer in at_home if places[peer].locked}
        self.electors = {p for p in settled if may_vote(view, p, stage)} - excused
        staff = load.total(load.of_member(view, peer, stage) for peer in at_home)
        self._basis = Basis(staff, len(at_home) + len(view.seconds(stage)))
        self._kept = {p: self._offer(p, locked=True) for p in at_home if p not in self.electors}
        self._locked = frozenset(self._kept)
        self._refused: set[PeerId] = set()
        self._heard: set[PeerId] = set()
        self._elsewhere: dict[PeerId, Stage | None] = {}
        self._steps: dict[PeerId, int] = {}
        self._cutoff = self._changes = 0
        self._is_late = False
        self._projection: Projection | None = None
        self._call_at = 0.0
        self._posted: Ballot | None = None
        self._posted_at = -INFINITY

    # --- read by the exchange ---------------------------------------------------------------

    @property
    def arriving(self) -> frozenset[PeerId]:
        """Voters of other stages that have a place here."""
        return frozenset(self._kept) - self._locked - self.electors

    @property
    def leaving(self) -> dict[PeerId, Stage]:
        """Own electors that have a place at another stage, with that stage."""
        return {
            peer: to
            for peer, to in self._elsewhere.items()
            if to is not None and to != self.stage and peer not in self._kept
        }

    @property
    def is_frozen(self) -> bool:
        """True once the plan has been published."""
        return self._projection is not None

    @property
    def ballot(self) -> Ballot:
        """The box's present ballot, without an issue time."""
        voters = [peer for peer in self._kept if peer not in self._locked]
        own = (tally.mark(p, self.stage) for p in voters if p in self.electors)
        gone = (tally.mark(peer, to) for peer, to in self.leaving.items())
        return Ballot(
            stage=self.stage,
            mandate=self._mandate,
            issued_ms=0,
            round=self.round,
            basis=self._basis,
            electorate=len(self.electors),
            held=len(voters),
            staying=sum(self._stays(peer) for peer in self.electors),
            held_sum=sum(tally.mark(p, self.stage) for p in voters) % 2**SUM_BITS,
            known_sum=(sum(own) + sum(gone)) % 2**SUM_BITS,
            changes=self._changes,
            cutoff=self._cutoff,
            quota=self._terms.limits.quota,
            projection=self._projection,
        )

    # --- inputs -----------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: bodies.ToBox, now: float) -> list[Effect]:
        """Take a voter's letter; one for another box or attempt is only counted.

        Args:
            sender: the letter's verified signer.
            body: vote or intent.
            now: monotonic seconds.
        """
        if body.steward != self._context.me or body.round != self.round:
            return self._count("matching-other-round")
        if self.is_frozen:
            return self._count("matching-vote-after-freeze")
        if isinstance(body, bodies.Intent):
            return self._note(sender, body, now)
        return self._consider(sender, body, now)

    def update(self, now: float) -> list[Effect]:
        """Remove electors and voters that left the swarm."""
        present = self._context.population
        gone = {p for p in self.electors | self._kept.keys() if p not in present} - self._locked
        if self.is_frozen or not gone:
            return []
        self.electors -= gone
        for peer in gone:
            self._kept.pop(peer, None)
            self._elsewhere.pop(peer, None)
        self._changes += 1
        return self._publish(now)

    def excuse_missing(self, now: float) -> list[Effect]:
        """After the deadline, once: keep electors whose place is unknown at home."""
        missing = frozenset(p for p in self.electors if not self._is_settled(p))
        late, self._is_late = self._is_late, True
        if late or self.is_frozen or not missing:
            return []
        names = ", ".join(sorted(short(peer) for peer in missing))
        said = f"stage {self.stage} goes on without {names}: no word from them"
        return [Explain("matching", said), *self._lock(missing, now), *self._publish(now)]

    def freeze(self, now: float) -> list[Effect]:
        """Accept no more votes, and publish the stage's projection under the plan."""
        if self.is_frozen:
            return []
        self._projection = project(self._view, self.stage, self._basis, self.leaving, self.arriving)
        digest = tally.plan_of(self.ballot)
        if not self._pledges.sign(self.round, self.stage, digest, decision=False):
            return self._count("matching-plan-not-signed-twice")
        return self._publish(now, at_once=True)

    def tick(self, now: float) -> list[Effect]:
        """Call electors that have not answered, and publish changes."""
        calls: list[Effect] = []
        if now >= self._call_at and not self.is_frozen:
            missing = sorted(self.electors - self._heard)
            self._call_at = now + CALL_S if missing else INFINITY
            calls = [self._send(bodies.Call, peer, now) for peer in missing]
        return [*calls, *self._publish(now)]

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        call_at = INFINITY if self.is_frozen else self._call_at
        return min(call_at, self._publish_at())

    # --- votes ------------------------------------------------------------------------------

    def _consider(self, sender: PeerId, vote: bodies.Vote, now: float) -> list[Effect]:
        if sender in self._kept and sender not in self._locked:
            return [self._keep(sender, now)]
        if not self._is_voter(sender, Stage(vote.home)):
            return self._count("matching-not-elector")
        self._hear(sender)
        self._steps[sender] = max(self._steps.get(sender, -1), vote.step)
        offer = self._offer(sender)
        if sender in self._refused or offer.score <= self._cutoff or not offer.rate:
            return [self._drop(sender, now)]
        return self._add(offer, now)

    def _is_voter(self, sender: PeerId, home: Stage) -> bool:
        if sender not in self._context.population or sender in self._locked:
            return False
        if home == self.stage:
            return sender in self.electors
        return sender in self._view and may_vote(self._view, sender, home)

    def _add(self, offer: Proposer, now: float) -> list[Effect]:
        self._kept[offer.peer] = offer
        effects = self._choose(now)
        if offer.peer in self._kept:
            self._elsewhere.pop(offer.peer, None)
            effects += [self._keep(offer.peer, now), self._say("keeps", offer)]
        return [*effects, *self._publish(now)]

    def _lock(self, peers: frozenset[PeerId], now: float) -> list[Effect]:
        """Keep electors at home as if they had not been called."""
        self.electors -= peers
        self.excused |= peers
        self._locked |= peers
        for peer in peers:
            self._elsewhere.pop(peer, None)
            self._kept[peer] = self._offer(peer, locked=True)
        return self._choose(now)

    def _choose(self, now: float) -> list[Effect]:
        """Keep the prefix cover and drop the others for this attempt."""
        limits = self._terms.limits
        choice = prefix_cover(self._kept.values(), limits.quota, limits.floor)
        self._kept = {proposer.peer: proposer for proposer in choice.kept}
        self._changes += 1
        effects: list[Effect] = []
        for proposer in choice.let_go:
            self._cutoff = max(self._cutoff, proposer.score)
            self._refused.add(proposer.peer)
            effects += [self._drop(proposer.peer, now), self._say("drops", proposer)]
        return effects

    def _note(self, sender: PeerId, body: bodies.Intent, now: float) -> list[Effect]:
        """Note where an own elector has its place."""
        if sender not in self.electors:
            return self._count("matching-not-elector")
        self._hear(sender)
        noted = self._send(bodies.Noted, sender, now, step=body.step)
        if body.step <= self._steps.get(sender, -1):
            return [noted]
        self._steps[sender] = body.step
        if body.to is None and not body.step:
            return [noted, *self._lock(frozenset({sender}), now), *self._publish(now)]
        self._elsewhere[sender] = None if body.to is None else Stage(body.to)
        self._changes += 1
        return [noted, *self._publish(now)]

    def _hear(self, peer: PeerId) -> None:
        if peer in self.electors:
            self._heard.add(peer)

    def _is_settled(self, peer: PeerId) -> bool:
        return peer in self._kept or peer in self._elsewhere

    def _stays(self, peer: PeerId) -> bool:
        nowhere = self._elsewhere.get(peer, self.stage) is None
        return nowhere and peer not in self._kept

    def _offer(self, peer: PeerId, *, locked: bool = False) -> Proposer:
        found = wishes.offer(self._view, peer, self.stage, self._terms.fair)
        return replace(found, locked=locked)

    # --- outputs ----------------------------------------------------------------------------

    def _keep(self, peer: PeerId, now: float) -> Effect:
        return self._send(bodies.Keep, peer, now, score=self._kept[peer].score)

    def _drop(self, peer: PeerId, now: float) -> Effect:
        return self._send(bodies.Drop, peer, now, cutoff=self._cutoff)

    def _send(
        self, kind: type[bodies.ToVoter], peer: PeerId, now: float, **fields: int
    ) -> SendSigned:
        body = kind(
            stage=self.stage,
            mandate=self._mandate,
            issued_ms=self._context.number(now),
            volunteer=peer,
            round=self.round,
            **fields,
        )
        return SendSigned(peer, bodies.KINDS[kind], encode_body(body))

    def _say(self, verb: str, proposer: Proposer) -> Explain:
        level = sum(kept.rate for kept in self._kept.values())
        limits = self._terms.limits
        return Explain(
            "matching",
            f"stage {self.stage} {verb} {short(proposer.peer)} ({words(proposer.rate)}) in the "
            f"vote: {len(self._kept)} of {limits.floor} replicas, "
            f"{words(level, limits.quota)}",
            "debug",
        )

    def _count(self, reason: str) -> list[Effect]:
        self._context.counters[reason] += 1
        return []

    def _publish_at(self) -> float:
        posted = self._posted
        if posted and (posted.changes, posted.projection) == (self._changes, self._projection):
            return INFINITY
        return self._posted_at + BALLOT_GAP_S

    def _publish(self, now: float, *, at_once: bool = False) -> list[Effect]:
        if not at_once and now < self._publish_at():
            return []
        number = self._context.number(now)
        self._posted, self._posted_at = self.ballot, now
        dated = msgspec.structs.replace(self._posted, issued_ms=number)
        return [Publish(BALLOT_KIND, str(self.stage), number, encode_body(dated))]
