"""The steward of one stage: answers proposals, settles with the other stages, posts.

Any arrival leads back to OPEN; incumbents are never displaced. State: the pool and the phase. Reads
the context; sends nothing by itself.
"""

import msgspec

from protocol import limits
from protocol.effects import Effect, Explain, Publish, Send
from protocol.ids import PeerId, Stage, short
from protocol.matching import bodies
from protocol.matching.board import describe
from protocol.matching.bodies import COMMITTED, OPEN, QUIET, Posting
from protocol.matching.context import Context
from protocol.matching.pool import HeldPlace, Pool
from protocol.matching.timing import (
    HANDOVER_S,
    LEASE_S,
    LOOK_S,
    PASSED_OVER_S,
    PATIENCE_S,
    SETTLE_S,
)
from protocol.matching.wanted import Wanted
from protocol.pace import ANSWER_S, RENEWALS
from protocol.wire import letters
from protocol.wire.letters import Mandate
from protocol.wire.messages import Letter

INFINITY = float("inf")


class Steward:
    """Machine of one stewardship."""

    def __init__(self, context: Context, stage: Stage, mandate: Mandate, epoch: int) -> None:
        self.stage = stage
        self.mandate = mandate
        self.epoch = epoch
        self.phase = OPEN
        self.pool = Pool(stage)
        self._wanted = Wanted(context, stage)
        self._context = context
        self._posted: Posting | None = None
        self._posted_at = -INFINITY
        self._publish_at = -INFINITY
        """When the present posting is due."""
        self._lapse_at = INFINITY
        """When the next lease lapses."""
        self._heard: dict[PeerId, int] = {}
        """By volunteer: the issue time of its last letter; older ones and copies have no effect."""
        self._fair = 0
        """Lambda when the epoch began."""
        self._opened_at = self._quiet_at = 0.0
        self._unsettled_since = 0.0
        self._act_at = INFINITY

    # --- inputs ---------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Open the stage with those that the view shows there; a successor waits for the holders of
        its predecessor."""
        self.pool.adopt(self._context.population)
        self._reopen(now)
        if self.mandate.term > 1:
            self._quiet_at = now + HANDOVER_S
        return self._publish(now)

    def continue_as(self, mandate: Mandate, now: float) -> list[Effect]:
        """Continue under a new mandate: the beacon changed and chose the same peer again."""
        self.mandate = mandate
        return self._publish(now)

    def receive(self, sender: PeerId, body: letters.ToSteward, now: float) -> list[Effect]:
        """Take a volunteer's letter; one for another mandate, or an old one, has no effect."""
        if not self._heeds(sender, body):
            return []
        self._heard[sender] = body.issued_ms
        if isinstance(body, letters.Withdraw):
            return self._release(sender, now, body.reason)
        return [*self._consider(sender, body, now), *self._publish(now)]

    def update(self, now: float) -> list[Effect]:
        """Look at the changed population: members left, or claims changed."""
        population = self._context.population
        for gone in [peer for peer in self._heard if peer not in population]:
            del self._heard[gone]
        moved = abs(population.fair_level - self._fair) * 100 > self._fair
        if self.pool.refresh(population) or moved:
            self._reopen(now)
        return self._publish(now)

    def look(self, now: float) -> None:
        """Look at the changed board; act one settle window after all stages became quiet."""
        self._wanted.look(now)
        if self.phase != QUIET:
            return
        if self._all_quiet(now):
            self._act_at = min(self._act_at, now + SETTLE_S)
        else:
            self._act_at = max(self._patient_until(now), now + SETTLE_S)

    def tick(self, now: float) -> list[Effect]:
        """Act on every deadline that has passed."""
        effects: list[Effect] = []
        for peer in self.pool.lapsed(now):
            effects += self._release(peer, now, "its lease lapsed")
        if self.phase == OPEN and now >= self._quiet_at:
            self._enter(QUIET, now)
        if now >= self._act_at:
            self._act_at = INFINITY
            effects += self._act(now)
        if self._may_call:
            self._wanted.tick(self.pool.places, now)
        return effects + self._publish(now)

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        quiet = self._quiet_at if self.phase == OPEN else INFINITY
        call = self._wanted.next_deadline() if self._may_call else INFINITY
        return min(self._lapse_at, quiet, call, self._act_at, self._publish_at)

    @property
    def _may_call(self) -> bool:
        """Whether nobody is being placed here, so that only a call can help."""
        return self.phase == COMMITTED or not self.pool.places

    # --- proposals ------------------------------------------------------------------------

    def _heeds(self, sender: PeerId, body: letters.ToSteward) -> bool:
        """Tell whether a letter is new and for us, by a member that does not contradict its
        advert."""
        if body.mandate != self.mandate:
            return False
        member = self._context.population.members.get(sender)
        if member is None or body.issued_ms <= self._heard.get(sender, -1):
            return False
        if isinstance(body, letters.Withdraw) or not body.bound:
            return True
        agrees = not member.held or self.stage in member.held
        return agrees or sender in self.pool.places or sender == self._wanted.peer

    def _consider(self, sender: PeerId, body: letters.Propose, now: float) -> list[Effect]:
        place = self._place(sender, body, now)
        if not place.rate:
            gone = self._release(sender, now, "it cannot serve the stage")
            return [*gone, self._no(place, now)]
        if sender in self.pool.places:
            return [self._yes(self.pool.put(place), now)]
        if place.second:
            return self._add(place, now)
        if not place.locked and place.score <= self.pool.cutoff:
            return [self._no(place, now)]
        return self._add(place, now)

    def _add(self, place: HeldPlace, now: float) -> list[Effect]:
        self.pool.put(place)
        answers: list[Effect] = [self._no(let_go, now) for let_go in self.pool.choose()]
        if not (place.locked and self.phase == COMMITTED):
            self._stir(now)
        kept = place.peer in self.pool.places
        return [self._yes(place, now), *answers] if kept else answers

    def _place(self, sender: PeerId, body: letters.Propose, now: float) -> HeldPlace:
        population = self._context.population
        member, second = population.members[sender], body.seat == 1
        shown = body.bound and self.stage in member.held
        invited = body.bound and sender == self._wanted.peer
        has_home = second and member.home_stage is not None
        lease_s = LEASE_S if body.bound else PASSED_OVER_S
        return HeldPlace(
            peer=sender,
            rate=population.rate(sender, self.stage),
            score=population.score(sender, self.stage, population.fair_level),
            expires_at=INFINITY if shown else now + lease_s,
            locked=has_home or shown or invited,
            second=second,
        )

    def _release(self, peer: PeerId, now: float, why: str) -> list[Effect]:
        """Remove a place whose holder left, lapsed or cannot serve any more."""
        if self.pool.places.pop(peer, None) is None:
            return []
        self._reopen(now)
        lost = f"stage {self.stage} lost {short(peer)} ({why}): now {describe(self.posting)}"
        return [Explain("matching", lost, members=(peer,)), *self._publish(now)]

    # --- settling -------------------------------------------------------------------------

    def _act(self, now: float) -> list[Effect]:
        """Help a stage that lacks replicas, or commit."""
        if now < self._patient_until(now) and not self._all_quiet(now):
            return []
        if self._may_help(now) and (last := self.pool.last_newcomer):
            self.pool.give(last)
            self._stir(now)
            return [self._no(last, now)]
        return self._commit(now) if self._all_covered(now) else []

    def _may_help(self, now: float) -> bool:
        """Tell whether the stage gives its least preferred newcomer up because others lack
        replicas: as many stages with more than r as replicas are missing, those with most first."""
        population, pool, last = self._context.population, self.pool, self.pool.last_newcomer
        r, others = population.redundancy, self._others(now) or ()
        lacking = [posting for posting in others if posting.copies < r]
        if last is None or not any(population.rate(last.peer, p.stage) for p in lacking):
            return False
        mine = (len(pool.places), pool.level, -self.stage)
        ahead = sum((p.copies, p.level, -p.stage) > mine for p in others)
        return len(pool.places) > r and ahead < sum(r - posting.copies for posting in lacking)

    def _all_quiet(self, now: float) -> bool:
        """Tell whether nobody has arrived for a while at any other stage."""
        others = self._others(now)
        return others is not None and all(posting.phase >= QUIET for posting in others)

    def _all_covered(self, now: float) -> bool:
        """Tell whether every stage has a replica."""
        others = self._others(now)
        return bool(self.pool.places) and others is not None and all(p.copies for p in others)

    def _commit(self, now: float) -> list[Effect]:
        """Make all places final and end the epoch, whose scores do not apply to later ones."""
        newcomers = self.pool.lock_all()
        self._enter(COMMITTED, now)
        if not newcomers:
            return []
        self._reopen(now)
        words = f"stage {self.stage} is settled: {describe(self.posting)}"
        said = Explain("matching", words, decision="settled")
        return [*(self._yes(place, now) for place in newcomers), said]

    def _reopen(self, now: float) -> None:
        """Begin an epoch; a stage with incumbents only stays committed."""
        population = self._context.population
        self.epoch += 1
        self._fair = population.fair_level
        self.pool.reopen(population)
        places = self.pool.places.values()
        if self.phase == COMMITTED and places and all(place.locked for place in places):
            return
        if self.phase == COMMITTED or not self._opened_at:
            self._unsettled_since = now
        self._opened_at = now
        latest = max(self._patient_until(now), now)
        self._quiet_at = min(max(self._quiet_at, now + ANSWER_S), latest)
        self._enter(OPEN, now)

    def _stir(self, now: float) -> None:
        """Wait for quiet again after an arrival or a departure, up to the patience limit."""
        if self.phase == COMMITTED:
            self._unsettled_since = self._opened_at = now
        self._enter(OPEN, now)
        latest = max(self._patient_until(now), self._quiet_at)
        self._quiet_at = min(max(self._quiet_at, now + SETTLE_S), latest)

    def _patient_until(self, now: float) -> float:
        """Return when the stage decides without waiting for the others, monotonic seconds.

        While peers keep arriving the stage is never quiet. Once every stage is covered, placed
        volunteers must not wait for further arrivals.
        """
        usual = self._opened_at + PATIENCE_S
        if usual <= self._unsettled_since + LOOK_S:
            return usual
        return self._unsettled_since + LOOK_S if self._all_covered(now) else usual

    def _enter(self, phase: int, now: float) -> None:
        self.phase = phase
        self._act_at = INFINITY
        self.look(now)

    def _others(self, now: float) -> list[Posting] | None:
        """Return the postings of the other stages; None while one of them has no steward."""
        notices = self._context.board.notices(now)
        others = [notice.posting for stage, notice in notices.items() if stage != self.stage]
        return others if len(others) == len(self._context.population.costs) - 1 else None

    # --- outputs --------------------------------------------------------------------------

    def _yes(self, place: HeldPlace, now: float) -> Send:
        body = letters.Hold(
            stage=self.stage,
            mandate=self.mandate,
            issued_ms=self._context.number(now),
            asked_ms=self._heard[place.peer],
            locked=place.locked,
        )
        return Send(place.peer, Letter(body))

    def _no(self, place: HeldPlace, now: float) -> Send:
        reason = describe(self.posting) if place.rate else "it is too small for this stage"
        body = letters.Reject(
            stage=self.stage,
            mandate=self.mandate,
            issued_ms=self._context.number(now),
            epoch=self.epoch,
            asked_ms=self._heard[place.peer],
            reason=reason[: limits.MAX_REASON_CHARS],
        )
        return Send(place.peer, Letter(body))

    def _publish(self, now: float) -> list[Effect]:
        """Publish the posting if it changed (``issued_ms`` aside) or a repetition is due.

        A short gap lets a burst of arrivals make one record. Every input that changes a place ends
        here.
        """
        leases = (place.expires_at for place in self.pool.places.values())
        self._lapse_at = min(leases, default=INFINITY)
        posting, repeats_s = self.posting, LEASE_S / RENEWALS
        gap_s = repeats_s if posting == self._posted else SETTLE_S / 2
        self._publish_at = self._posted_at + gap_s
        if now < self._publish_at:
            return []
        self._posted, self._posted_at, self._publish_at = posting, now, now + repeats_s
        stamped = msgspec.structs.replace(posting, issued_ms=self._context.number(now))
        return [Publish(bodies.KIND, stamped)]

    @property
    def posting(self) -> bodies.Posting:
        """The stage's present posting, without an issue time."""
        pool, population = self.pool, self._context.population
        homes = pool.homes
        locked = [place for place in homes if place.locked]
        return bodies.Posting(
            stage=self.stage,
            mandate=self.mandate,
            issued_ms=0,
            epoch=self.epoch,
            phase=self.phase,
            level=sum(place.rate for place in homes),
            replicas=len(homes),
            locked_level=sum(place.rate for place in locked),
            locked_replicas=len(locked),
            quota=pool.quota,
            fair=population.fair_level,
            r=population.redundancy,
            cutoff=pool.cutoff,
            seconds=len(pool.places) - len(homes),
            wanted=self._wanted.peer or "",
        )
