"""Standing: which replicas of our stage and of those beside it count for us.

Three views of the swarm follow one from the other. ``whole`` is what membership sees. ``seen``
lacks the replicas *on probation* that do not count yet, and ``view`` also those that are *set
aside*: these lead nothing, get no work, are in no plan, and are lost to our quorum. The rules for
both are in SPEC.md, section 11. What a seat decides holds in that seat: where we hold another
stage, too, that one judges for itself.

A claim is one word against another: of the two siblings one goes, whichever lies. The replicas of
the neighbouring stages judge, and all follow more than half of them. Followed decisions are not
named in heartbeats: otherwise two replicas would follow each other forever.

No stage is left without a replica. Nor does anybody set a peer aside without which too few
electors would be left to close a step, unless it has seen that peer's fault.

State: one bounded record per peer, who is aside, our decisions, the open disputes, and by stage how
it goes on and until when nobody else is tried. Times are monotonic seconds.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from protocol import limits
from protocol.effects import Explain
from protocol.ids import PeerId, rank, short
from protocol.pace import ANSWER_S, ASIDE_S, HEARD_S, LOST_S
from protocol.pipeline.newcomers import NOBODY, Bound, Newcomers
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.view import Replica, SwarmView

FORGIVEN_AFTER: Final = 10.0
"""Times as long as it would be set aside next. Who obstructs its stage whenever it is forgiven does
so every 21 minutes; without this rule it would every 16."""
MOST_DOUBLINGS: Final = 4
NEW_AT_ONCE: Final = 4
"""Let in of those that nobody has worked with, where the stage has few replicas."""
TRIED_AT_LEAST: Final = 2
"""On probation in a stage beside ours, at a time."""
MAX_PEERS: Final = 256
Pair = frozenset[PeerId]
Proves = Callable[[PeerId], bool]


@dataclass(slots=True)
class _Record:
    """What we remember of one peer."""

    worked_at: float = -math.inf
    """When it last gave us something of use, from a stage beside ours."""
    times: int = 0
    """How often it was set aside by us since it last started over."""
    back_at: float = -math.inf
    """When it last came back."""
    failures: int = 0
    """How often it was set aside while on probation."""
    new_until: float = -math.inf
    """It was let in though nobody had worked with it, and keeps its place until then."""
    admitted: bool = False
    """A leader or a plan has named it since it last failed."""


@dataclass(slots=True)
class _Stage:
    """How one stage goes on."""

    newcomers: Newcomers
    risen_at: float = -math.inf
    """When its version last rose."""
    step_s: float = 0.0
    """How long its last step took."""
    closed_until: float = -math.inf
    """Until then none on probation begins to count there."""
    closed: int = 0
    """How often that was so in a row."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """Our own decision against a peer."""

    stage: int
    why: str
    until: float
    other: PeerId
    """The other peer of the dispute."""
    version: int
    """Of its stage at that moment."""
    look_at: float


@dataclass(frozen=True, slots=True)
class _Aside:
    stage: int
    why: str
    back: str
    """Why it comes back once nobody wants it aside."""


class Standing:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        quorum: whose roll and electors are proven; it ignores whom we set aside.
        proves: whether a step that this volunteer closed contains a peer's work; None: everybody is
            proven, as in worlds without invented members.
        spoilers: peers whose fault we have seen ourselves.
        audited: whether the run has audits.
    """

    def __init__(
        self,
        place: Place,
        quorum: Quorum,
        proves: Proves | None = None,
        spoilers: Callable[[], Collection[PeerId]] = tuple,
        *,
        audited: bool = False,
    ) -> None:
        self._place, self._quorum, self._proves = place, quorum, proves
        self._spoilers = spoilers
        self.whole = self.seen = self.view = SwarmView(((),) * place.stages)
        self._records: dict[PeerId, _Record] = {}
        self._aside: dict[PeerId, _Aside] = {}
        """The first to be set aside first."""
        self._decisions: dict[PeerId, _Decision] = {}
        self._disputes: dict[Pair, tuple[int, float]] = {}
        """Siblings that cannot work together, as one of them says: their stage, and when that was
        first said, or the one that had to go was needed."""
        self._claims: Collection[PeerId] = ()
        """Whom our stage waits for in this step, as we say."""
        self._claimed = frozenset[Pair]()
        """The disputes of which somebody speaks now."""
        self._few_since: float | None = None
        """Since when too few electors have been left without one that is aside."""
        self._last, self._looked_at = limits.MAX_STEP, 0.0
        near = range(max(0, place.stage - 1), min(place.stages, place.stage + 2))
        self._near = {stage: _Stage(Newcomers(active=audited)) for stage in near}

    # --- queries ---------------------------------------------------------------------------

    def is_proven(self, peer: PeerId) -> bool:
        """Whether a peer is more to us than its own word."""
        known = peer == self._place.me or self._quorum.names(peer)
        return self._proves is None or known or self._proves(peer)

    def waits(self, peer: PeerId) -> bool:
        """Whether a replica is on probation and does not count yet."""
        return any(
            any(r.peer == peer for r in self.whole.stages[stage])
            and all(r.peer != peer for r in self.seen.stages[stage])
            for stage in self._near
        )

    def is_aside(self, peer: PeerId) -> bool:
        """Whether a peer is set aside."""
        return peer in self._aside

    def aside(self) -> frozenset[PeerId]:
        """Return the peers that are set aside."""
        return frozenset(self._aside)

    def beside(self) -> list[PeerId]:
        """Return the peers in the stages beside ours that we have decided to set aside."""
        ours = self._place.stage
        return sorted(p for p, d in self._decisions.items() if d.stage != ours and p in self._aside)

    def missing(self, step: int) -> tuple[PeerId, ...]:
        """Return whom our heartbeats name: those without which our stage cannot continue ``step``,
        of the roll and obstructing ones, and whom we have set aside in the stages beside."""
        here = self.view.serving(self._place.stage)
        there = {r.peer for r in here if step - 1 <= r.version <= step}
        # whoever has come back since the quorum looked is missing no more
        missing = (peer for peer in self._quorum.missing if peer not in there)
        named = (*self._claims, *missing, *self.beside())
        return tuple(dict.fromkeys(named))[: limits.MAX_MISSING]

    def bound(self, stage: int) -> Bound:
        """Return what newcomers of a stage may have of a step."""
        return self._near[stage].newcomers.bound if stage in self._near else NOBODY

    def closed_until(self) -> list[float]:
        """Return when somebody on probation may be tried again."""
        ends = (stage.closed_until for stage in self._near.values())
        return [until for until in ends if until > self._looked_at]

    # --- inputs ----------------------------------------------------------------------------

    def update(self, whole: SwarmView, now: float) -> None:
        """Take what membership sees: the live replicas."""
        self.whole = whole
        self._derive(now)

    def observe(
        self, claims: Collection[PeerId], now: float, last: int = limits.MAX_STEP
    ) -> list[Explain]:
        """Take who is missing, as others say and as we do.

        Args:
            claims: peers that our stage waits for, as we say.
            last: the run's last version: who serves it waits for nobody.
        """
        me, claimed = self._place.me, dict[Pair, int]()
        self._claims, self._last = claims, last
        for stage in self._near:
            there = {r.peer for r in self.seen.serving(stage)}
            said = [
                (r.peer, p) for r in self.seen.serving(stage) if r.version < last for p in r.missing
            ]
            said += [(me, peer) for peer in claims] if stage == self._place.stage else []
            for peer, missing in said:
                if peer != missing and missing in there:
                    claimed.setdefault(frozenset((peer, missing)), stage)
        for pair, stage in claimed.items():
            self._disputes.setdefault(pair, (stage, now))
        self._claimed = frozenset(claimed)
        return self.tick(now)

    def worked(self, peer: PeerId, now: float) -> None:
        """A peer of a stage beside ours gave us something of use."""
        self._record(peer).worked_at = now

    def set_aside(self, peer: PeerId, stage: int, why: str, now: float) -> list[Explain]:
        """Set a replica aside whose fault we have seen ourselves, for a while."""
        if peer not in self._decisions:
            self._decide(peer, self._place.me, stage, why, now)
        return self.tick(now)

    def closed_with(self, peers: Collection[PeerId]) -> None:
        """A step was closed with the work of these: if one was on probation, others are tried; and
        who comes from now on is a newcomer."""
        new = {peer for peer in peers if not self.is_proven(peer)}
        self._claims = ()
        for number, stage in self._near.items():
            stage.newcomers.settle()
            if any(r.peer in new for r in self.seen.serving(number)):
                stage.closed_until, stage.closed = -math.inf, 0

    def admit(self, peers: Iterable[PeerId], now: float) -> None:
        """A leader has admitted these, or a plan that we follow names them: they count from now on,
        unless they are set aside."""
        named = [peer for peer in peers if peer not in self._aside]
        for peer in named:
            self._record(peer).admitted = True
        if any(map(self.waits, named)):
            self._derive(now)

    def lets_in(self, peer: PeerId, now: float) -> bool:
        """Whether a newcomer may be admitted, by us or by the leader that has done so: only a few
        at a time of those that nobody has worked with. Each keeps its place for a while, even if
        it is set aside before, so that the next leader does not admit others in its stead."""
        if self.is_proven(peer):
            return True
        here, stage = self.view.stages[self._place.stage], self._place.stage
        holders = {r.peer for r in here} | {
            other for other, record in self._records.items() if record.new_until > now
        }
        new = {other for other in holders - {peer} if not self.is_proven(other)}
        proven = sum(self.is_proven(r.peer) for r in self.view.serving(stage))
        if len(new) >= max(NEW_AT_ONCE, 2 * proven):
            return False
        if (record := self._record(peer)).new_until <= now:
            record.new_until = now + ASIDE_S
        return True

    def tick(self, now: float) -> list[Explain]:
        """Decide what is due, and let back whose time is over."""
        for peer, decision in list(self._decisions.items()):
            if now >= decision.until:
                self._let_back(peer)
            elif decision.look_at <= now:
                self._look_again(peer, decision, now)
        for pair in [p for p in self._disputes if p not in self._claimed]:
            if self._judged(pair) is None:
                del self._disputes[pair]
        self._follow_judges()
        said = self._settle(now)
        if due := [pair for pair in self._open() if now >= self._due_at(pair)]:
            known = self._spoilers()  # of these we need not ask who names whom
            for pair in sorted(due, key=lambda pair: (pair.isdisjoint(known), sorted(pair))):
                self._judge(pair, now)
            said += self._settle(now)
        if any(until <= now for until in self.closed_until()):
            self._derive(now)
        return said

    # --- who counts ------------------------------------------------------------------------

    def _derive(self, now: float) -> None:
        """Make the views of those that count."""
        before, stages, self._looked_at = self.seen, list(self.whole.stages), now
        for number in self._near if self._proves is not None else ():
            stages[number] = self._counted(number, now)
        self.seen = replace(self.whole, stages=tuple(stages))
        self.view = self._without_aside()
        for number, stage in self._near.items():
            if self.seen.committed(number) > before.committed(number):
                since = now if stage.risen_at == -math.inf else stage.risen_at
                stage.risen_at, stage.step_s = now, now - since
            stage.newcomers.update(self.view.serving(number))

    def _counted(self, stage: int, now: float) -> tuple[Replica, ...]:
        """Return the replicas of a stage without those on probation that do not count yet."""
        here, own = self.whole.stages[stage], stage == self._place.stage
        proven = {r.peer for r in here if self.is_proven(r.peer)}
        if not (self._quorum.settled if own else proven):
            return here
        new = [r for r in here if r.peer not in proven]
        if now < self._near[stage].closed_until:
            tried = {r.peer for r in self.seen.serving(stage)} - self._aside.keys()
            new = [r for r in new if r.peer in tried or not r.serving]
        peers = [r.peer for r in new if not own or self._of(r.peer).admitted]
        if not own:
            peers.sort(key=lambda p: (self._of(p).failures, rank("probation", stage, p)))
            peers = peers[: max(TRIED_AT_LEAST, len(proven))]
        counts = proven.union(peers)
        return tuple(r if r.peer in proven else self._quiet(r) for r in here if r.peer in counts)

    def _quiet(self, replica: Replica) -> Replica:
        """Return a replica without what it says of proven ones, in whatever stage."""
        others = (peer for peer in replica.missing if not self.is_proven(peer))
        return structs.replace(replica, missing=tuple(others))

    def _without_aside(self) -> SwarmView:
        """Return who is seen without those set aside, in all their stages: only one that would be
        left empty keeps who is set aside because of another stage."""
        if not self._aside:
            return self.seen
        stages = list(self.seen.stages)
        for stage, replicas in enumerate(stages):
            others = self._count(stage, self._aside) > 0
            stages[stage] = tuple(
                r
                for r in replicas
                if (found := self._aside.get(r.peer)) is None
                or not (others or found.stage == stage)
            )
        return replace(self.seen, stages=tuple(stages))

    def _failed(self, peers: Iterable[PeerId], now: float) -> None:
        """These were set aside: one on probation has to be admitted again, and nobody else is tried
        for a while."""
        new = {peer for peer in peers if not self.is_proven(peer)}
        for peer in new:
            record = self._record(peer)
            record.admitted, record.failures = False, record.failures + 1
        for number, stage in self._near.items():
            if any(r.peer in new for r in self.seen.serving(number)):
                stage.closed_until = now + _doubled(stage.closed)
                stage.closed += 1

    # --- our decisions ---------------------------------------------------------------------

    def _decide(self, peer: PeerId, other: PeerId, stage: int, why: str, now: float) -> None:
        record = self._record(peer)
        if now >= record.back_at + FORGIVEN_AFTER * _doubled(record.times):
            record.times = 0
        until, version = now + _doubled(record.times), self.seen.committed(stage)
        look_at = now + self._unmended_s(stage)
        self._decisions[peer] = _Decision(stage, why, until, other, version, look_at)

    def _let_back(self, peer: PeerId) -> None:
        del self._decisions[peer]
        self._record(peer).times += 1

    def _look_again(self, peer: PeerId, decision: _Decision, now: float) -> None:
        """Without one of two siblings their stage should have gone on; else the other one goes, or
        if as many judges want that already, the one by rank."""
        other, version = decision.other, self.seen.committed(decision.stage)
        look_at = now + self._unmended_s(decision.stage)
        self._decisions[peer] = replace(decision, version=version, look_at=look_at)
        if other == self._place.me or other in self._aside:
            return
        if decision.version < version or version >= self._last:
            return  # it has gone on, or there is nothing to go on with
        versions = {r.peer: r.version for r in self.seen.serving(decision.stage)}
        if peer in self._spoilers() or versions.get(peer, version) < max(
            versions.values(), default=0
        ):
            return
        votes = list(self._votes(frozenset((peer, other))).values())
        if 0 < votes.count({other}) == votes.count({peer}) and _rank(peer) > _rank(other):
            return
        del self._decisions[peer]
        self._decide(other, peer, decision.stage, "its stage does not go on with it", now)

    # --- disputes --------------------------------------------------------------------------

    def _open(self) -> list[Pair]:
        """Return the disputes that neither we nor most judges have decided."""
        return [
            pair
            for pair in self._claimed
            if not any(map(self.is_aside, pair)) and self._judged(pair) is None
        ]

    def _due_at(self, pair: Pair) -> float:
        """Return when we decide a dispute: those beside the stage have seen both work, so others
        wait for them first."""
        judges = self._votes(pair)
        heard = max(self._of(peer).back_at for peer in pair) + HEARD_S
        waits = judges and self._place.me not in judges
        return max(self._disputes[pair][1], heard) + (HEARD_S if waits else ANSWER_S)

    def _judge(self, pair: Pair, now: float) -> None:
        stage, _ = self._disputes[pair]
        there = {r.peer for r in self.seen.serving(stage)}
        if not pair <= there or any(peer in self._decisions for peer in pair):
            return  # one of them has gone meanwhile, or goes
        loser = self._loser(pair)
        if self._is_elector_needed(loser, now):
            self._disputes[pair] = stage, now
            return
        (other,) = pair - {loser}
        why = f"it and {short(other)} hold each other up"
        self._decide(loser, other, stage, why, now)

    def _loser(self, pair: Pair) -> PeerId:
        """Return the loser of a dispute; of ourselves and another, the other."""
        if self._place.me in pair:
            return next(iter(pair - {self._place.me}))
        latest = max(self._of(peer).worked_at for peer in pair)
        disputes = Counter(peer for pair in self._open() for peer in pair)
        spoilers = self._spoilers()

        def blame(peer: PeerId) -> tuple[bool, int, bool, bytes]:
            idle = self._of(peer).worked_at < latest - ANSWER_S
            return peer in spoilers, disputes[peer], idle, _rank(peer)

        return max(pair, key=blame)

    def _votes(self, pair: Pair) -> dict[PeerId, set[PeerId]]:
        """Return whom of two siblings each judge has set aside: who serves beside their stage; the
        two may do so themselves, and judge nothing."""
        if pair not in self._disputes:
            return {}
        (stage, _), me = self._disputes[pair], self._place.me
        beside = (*self.seen.serving(stage - 1), *self.seen.serving(stage + 1))
        proven = [r for r in beside if self.is_proven(r.peer)] or beside
        return {
            r.peer: set(pair).intersection(self._decisions if r.peer == me else r.missing)
            for r in proven
            if r.peer not in pair and r.peer not in self._aside
        }

    def _judged(self, pair: Pair) -> PeerId | None:
        """Return which of two siblings more than half of the judges have set aside."""
        votes = list(self._votes(pair).values())
        return next((peer for peer in pair if 2 * votes.count({peer}) > len(votes)), None)

    def _follow_judges(self) -> None:
        """Most judges may have decided later than we did, or changed their minds."""
        for peer, decision in list(self._decisions.items()):
            if self._judged(frozenset((peer, decision.other))) == decision.other:
                del self._decisions[peer]

    # --- who is aside ----------------------------------------------------------------------

    def _settle(self, now: float) -> list[Explain]:
        """Set aside whom we or others have decided to, as far as that leaves enough."""
        before, wanted = self._aside, dict[PeerId, _Aside]()
        for peer, found in self._wanted():
            if peer != self._place.me:
                wanted.setdefault(peer, found)
        after = {p: wanted[p] for p in (*before, *wanted) if p in wanted}
        said = [*self._let_enough_back(after, now)]
        self._aside, new, back = after, after.keys() - before.keys(), before.keys() - after.keys()
        said += [_back(p, before[p].back) for p in back - {e.members[0] for e in said}]
        for peer in back:
            self._record(peer).back_at = now
        for peer in sorted(new):
            stage, why = after[peer].stage, after[peer].why
            words = f"{short(peer)} of stage {stage} is set aside{self._long(peer)}: {why}"
            said.append(Explain("membership", words, "warning", (peer,)))
        if new or back:
            self._failed(new, now)
            self._quorum.aside = self.aside()
            self._derive(now)
        return said

    def _wanted(self) -> Iterator[tuple[PeerId, _Aside]]:
        """Return who is to be aside, by whose decision, the weightiest first."""
        for peer, own in self._decisions.items():
            yield peer, _Aside(own.stage, own.why, "its time is over")
        for pair, (stage, _) in self._disputes.items():
            if (loser := self._judged(pair)) is not None:
                yield loser, _Aside(stage, "others decided so", "others have let it back")

    def _let_enough_back(self, after: dict[PeerId, _Aside], now: float) -> Iterator[Explain]:
        """Take those out that are needed, the first to be set aside first: for a stage without
        replicas at once; an elector, one at a time, only once it has been needed for a while, for
        by then a peer that was just let back is heard again."""
        for stage in self._near:
            if self._count(stage, after):
                continue
            if back := self._may_return(after, stage):
                yield from self._release(back[0], after, f"stage {stage} has no others")
        waiting = (peer for stage in self._near for peer in self._may_return(after, stage))
        known = (peer for peer in waiting if peer in self._aside)
        needed = next((p for p in known if self._is_elector_needed(p, now)), None)
        if needed is None:
            self._few_since = None
        elif self._few_since is None:
            self._few_since = now
        elif now >= self._few_since + HEARD_S:
            self._few_since = None
            yield from self._release(needed, after, "too few electors are left without it")

    def _release(self, peer: PeerId, after: dict[PeerId, _Aside], why: str) -> list[Explain]:
        del after[peer]
        if peer in self._decisions:
            self._let_back(peer)
        return [_back(peer, why)] if peer in self._aside else []

    def _may_return(self, after: Mapping[PeerId, _Aside], stage: int) -> list[PeerId]:
        """Return whom a stage may have back before the time, the first to be set aside first."""
        there = {r.peer for r in self.seen.serving(stage)}
        return [peer for peer, of in after.items() if of.stage == stage and peer in there]

    def _is_elector_needed(self, peer: PeerId, now: float) -> bool:
        return self._quorum.needs(peer, self._aside, now) and peer not in self._spoilers()

    def _count(self, stage: int, aside: Collection[PeerId]) -> int:
        """Return how many replicas of a stage are not set aside."""
        return sum(r.peer not in aside for r in self.seen.serving(stage))

    def _long(self, peer: PeerId) -> str:
        return f" for {_doubled(self._of(peer).times):.0f} s" if peer in self._decisions else ""

    # --- records --------------------------------------------------------------------------

    def _unmended_s(self, stage: int) -> float:
        """Return how long a stage may take to go on without one of two siblings; then it may do
        better without the other. Some of it passes before the electors have followed."""
        return max(LOST_S, 2 * self._near[stage].step_s)

    def _of(self, peer: PeerId) -> _Record:
        return self._records.get(peer) or _Record()

    def _record(self, peer: PeerId) -> _Record:
        """Return what we remember of a peer, from now on; who was admitted is forgotten last."""
        if peer not in self._records and len(self._records) >= MAX_PEERS:
            idle = [
                (r.admitted, r.new_until, r.worked_at, p)
                for p, r in self._records.items()
                if not self.is_aside(p)
            ]
            del self._records[min(idle)[-1]]
        return self._records.setdefault(peer, _Record())


def _back(peer: PeerId, why: str) -> Explain:
    words = f"{short(peer)} is not set aside any more: {why}"
    return Explain("membership", words, members=(peer,))


def _rank(peer: PeerId) -> bytes:
    """Return an order of peers; of two that are alike in all else the greater one goes."""
    return rank("standing", peer)


def _doubled(times: int) -> float:
    """Return how long a peer is set aside after so many times."""
    return ASIDE_S * (1 << min(times, MOST_DOUBLINGS))
