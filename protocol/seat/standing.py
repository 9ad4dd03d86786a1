"""Standing: members of our stage and its neighbours that obstruct the run are set aside.

A member that is set aside is treated as if it had fallen silent. The seat's view leaves it out, in
all its stages that have others: it leads nothing, gets no work and is in no plan. The quorum
ignores it, so it is lost to us after the usual seconds (``Contacts.shun``), and to our seats in
other stages, which set it aside with us. Whether a step can be closed without it is therefore still
decided only by the majority of the electors.

Our own observations need no judge (``accuse``). A replica's claim against a sibling, made by naming
it as missing in its heartbeats, is one word against another: one of the two must go, whichever
lies. The neighbouring stages are the judges. Each replica there decides for itself and names the
peer that it sets aside in its heartbeats. Then all follow the first judge that has decided, in an
order that the pair fixes, so that no two sides of a run wait for opposite peers. A judge decides
against the one with more such disputes, else the one that has done much less for us recently, else
the one that was spared more often, else the one that we have seen serving for a much shorter time,
else by rank, which is the same for all. Before all this comes what the judge has seen itself: one
that it has found out by an audit or refused something of in this step goes. If the stage makes no
progress without it, the other one goes instead.

Only our own decisions are named: a followed decision lasts as long as its authors repeat it.
Otherwise two replicas would follow each other forever. Each time lasts twice as long as the one
before. A peer that is then back for ten times as long as the next time would last starts over at
the first, because honest machines sleep, too.

No stage is left with fewer replicas than a step of it needs: one, or three whose sums are secret.
Where others fall silent meanwhile, the first to come back anyway comes back at once. Nor does
anybody set a peer aside without which too few electors would be left to close a step, unless it has
seen that peer's fault: three siblings that wait for each other would each be left with one. A peer
that turns out to be needed while it is aside comes back after a few seconds.

Two siblings that have set each other aside come back together: where the electors are few, neither
can close the step while it does without the other one. So who lets a sibling back gives it time to
hear of it, and who hears that it is let back does the same: after the first time at the earliest,
and twice as late each time, for a liar would be back often otherwise.

Who serves the run's last version waits for nobody: what it claims starts no dispute.

A member that a majority of its stage has charged (``audit/charges.py``) is set aside for good.
State: a bounded account per peer; times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from protocol import limits
from protocol.effects import Explain
from protocol.ids import PeerId, rank, short
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Touch
from protocol.verdicts import Verdicts
from protocol.view import SwarmView

ASIDE_S: Final = 60.0
"""The first time; it doubles with each later one."""
FORGIVEN_AFTER: Final = 10.0
"""Times as long as it would be set aside next. Who obstructs its stage whenever it is forgiven does
so every 21 minutes; without this rule it would every 16."""
MOST_DOUBLINGS: Final = 4
DISPUTE_S: Final = 1.0
"""A claim has to stand so long: most are over when the next heartbeat comes."""
FOLLOW_S: Final = 4.0
"""How long a sibling waits for what the stages beside ours decide."""
UNMENDED_S: Final = 10.0
"""A stage that has not gone on for so long without one of two siblings may do better without the
other: five of these seconds pass before the electors list anybody as lost."""
TRUCE_S: Final = 4.0
"""By then a sibling that we let back has heard of it and has let us back."""
HALF_LIFE_S: Final = 30.0
MUCH_LESS: Final = 4.0
"""A peer that did this many times less for us than a sibling has not been working; a peer that made
this many times fewer versions is new."""
FEW_VERSIONS: Final = 2
"""Two judges that watch the same replica may count so many more or less."""
OWED_S: Final = 1.0
"""So much longer than a sibling without bringing anything is idle, too."""
MAX_PEERS: Final = 256
Pair = frozenset[PeerId]
Follows = Literal["", "siblings", "seat"]
"""Whose decision we repeat: nobody's, most of our stage's, or that of a seat of ours elsewhere."""


@dataclass(slots=True)
class _Account:
    """Our record of one peer."""

    work: float = 0.0
    worked_at: float = 0.0
    versions: int = 0
    """Of its stage, while it served it before our eyes."""
    spared: int = 0
    """Disputes in which the other one went."""
    times: int = 0
    """How often it was set aside since it last started over."""
    back_at: float = -math.inf
    """When it last came back."""
    made_up: int = 0
    """How often it came back after a dispute with us."""


@dataclass(frozen=True, slots=True)
class _Aside:
    until: float
    stage: int
    other: PeerId | None = None
    """The other peer of the dispute, if a dispute was the reason."""
    version: int = 0
    """Of its stage at that moment."""
    look_at: float = float("inf")
    follows: Follows = ""
    since: float = 0.0


@dataclass(slots=True)
class _Pace:
    """How a stage goes on."""

    version: int
    at: float
    step_s: float = 0.0
    """Of the last one."""


class Standing:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        touch: our contacts; None in worlds in which all peers are in touch.
        verdicts: who is out.
        owed_for: by peer, for how many seconds it has had our work and brought nothing.
        overdue: peers that bring us nothing for so long that one more witness is enough.
        spoilers: peers whose fault we have seen ourselves.
        least: how many replicas a step of a stage needs.
        needs: whether we have a majority of the electors only with a peer (``Quorum.needs``).
    """

    def __init__(
        self,
        place: Place,
        touch: Touch | None,
        verdicts: Verdicts,
        owed_for: Callable[[float], Mapping[PeerId, float]] = lambda _now: {},
        overdue: Callable[[float], Collection[PeerId]] = lambda _now: (),
        spoilers: Callable[[], Collection[PeerId]] = lambda: (),
        least: int = 1,
        needs: Callable[[PeerId, Collection[PeerId], float], bool] = lambda *_: False,
    ) -> None:
        self._least, self._needs = least, needs
        self._owed_for, self._overdue, self._spoilers = owed_for, overdue, spoilers
        self._place, self._touch, self._verdicts = place, touch, verdicts
        self._accounts: dict[PeerId, _Account] = {}
        self._aside: dict[PeerId, _Aside] = {}
        self._disputes: dict[Pair, float] = {}
        """Since when two siblings cannot work together, as at least one of them says."""
        self._where: dict[Pair, int] = {}
        """For each dispute, the first stage in which it was reported."""
        self._put_off: dict[Pair, float] = {}
        """Disputes whose loser was needed, and when to look again."""
        self._few_since: float | None = None
        """Since when too few electors have been left without one that is aside."""
        self._truces: dict[PeerId, float] = {}
        """Until when what a sibling says of us is from before it knew that we let it back."""
        self._view, self._last = SwarmView(((),) * place.stages), limits.MAX_STEP
        self._paces = dict[int, _Pace]()
        self._near = [s for s in (place.stage - 1, place.stage, place.stage + 1) if s >= 0]
        if touch is not None:
            touch.seated(place.stage, self._wants)
        self._shun()

    # --- queries ---------------------------------------------------------------------------

    def is_aside(self, peer: PeerId) -> bool:
        """Whether a peer counts for nothing now."""
        return peer in self._aside

    def aside(self) -> frozenset[PeerId]:
        """Return the peers that count for nothing now."""
        return frozenset(self._aside)

    def is_out(self, peer: PeerId) -> bool:
        """Whether a majority of our stage has expelled a peer."""
        verdict = self._verdicts.of(peer)
        return verdict is not None and verdict.stage == self._place.stage

    def without(self, view: SwarmView) -> SwarmView:
        """Return the view without those set aside, in all their stages: only one that would be left
        with too few keeps who is set aside because of another stage."""
        if not self._aside:
            return view
        stages = list(view.stages)
        for stage, replicas in enumerate(stages):
            enough = sum(r.peer not in self._aside for r in view.serving(stage)) >= self._least
            stages[stage] = tuple(
                r
                for r in replicas
                if (found := self._aside.get(r.peer)) is None
                or not (enough or found.stage == stage)
            )
        return replace(view, stages=tuple(stages))

    def beside(self) -> list[PeerId]:
        """Return the peers that we have set aside in the stages beside ours: heartbeats say so."""
        ours = self._place.stage
        judged = (p for p, a in self._aside.items() if a.stage != ours and not a.follows)
        return sorted(judged)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        ends = [min(aside.until, aside.look_at) for aside in self._aside.values()]
        due = [self._due_at(pair) for pair in self._disputes]
        few = [] if self._few_since is None else [self._few_since + TRUCE_S]
        return min((*ends, *due, *few), default=None)

    def _due_at(self, pair: Pair) -> float:
        return max(self._disputes[pair] + DISPUTE_S, self._put_off.get(pair, -math.inf))

    # --- inputs ----------------------------------------------------------------------------

    def worked(self, peer: PeerId, now: float) -> None:
        """A peer of a stage beside ours gave us something of use."""
        account = self._account(peer)
        account.work, account.worked_at = self._work(peer, now) + 1, now

    def observe(
        self, view: SwarmView, claims: Iterable[PeerId], now: float, last: int = limits.MAX_STEP
    ) -> list[Explain]:
        """Take the whole ``view`` and our own ``claims``: peers that our stage waits for.

        Args:
            view: the live replicas, also those set aside.
            claims: peers that our stage waits for.
            now: monotonic seconds.
            last: the run's last version.
        """
        self._count_versions(view, now)
        self._view, self._last = view, last
        me = self._place.me
        said = [(self._place.stage, frozenset((me, peer))) for peer in claims]
        said += [
            (stage, frozenset((r.peer, missing)))
            for stage in self._near
            for r in view.serving(stage)
            for missing in (r.missing if r.version < last else ())
            if missing != r.peer and any(other.peer == missing for other in view.serving(stage))
            if missing != me or now >= self._truces.get(r.peer, now)
        ]
        self._where = {pair: stage for stage, pair in sorted(said, key=lambda one: -one[0])}
        open_ = {pair for pair in self._where if not any(map(self.is_aside, pair))}
        self._disputes = {pair: self._disputes.get(pair, now) for pair in open_}
        self._put_off = {pair: at for pair, at in self._put_off.items() if pair in open_}
        judged = [*self._follow_judges(now), *self._follow_our_stage(now)]
        judged += self._follow_our_seats(now)
        return [*self._make_up(now), *judged, *self._let_enough_back(now), *self.tick(now)]

    def accuse(self, peer: PeerId, why: str, now: float) -> list[Explain]:
        """Set ``peer`` aside at ``now`` for our own observation ``why``."""
        stages = self._stages_of({peer})
        if peer == self._place.me or self.is_aside(peer) or not stages:
            return []
        if self._is_elector_needed(peer, now):
            return []
        return self._put(peer, stages[-1], why, now)

    def keep_out(self, now: float) -> list[Explain]:
        """Set those aside for good that stages near ours have voted out, where their stage has
        anybody else."""
        said: list[Explain] = []
        for verdict in self._verdicts.voted:
            peer, stage = verdict.culprit, verdict.stage
            if stage is None or not any(r.peer == peer for r in self._view.serving(stage)):
                continue
            known = self._aside.get(peer)
            if known is not None and known.until == math.inf:
                continue
            if known is not None:
                said += self._back(peer, now, "it is out for good now")
            said += self._put(peer, stage, verdict.words, now, for_good=True)
        return said

    def tick(self, now: float) -> list[Explain]:
        """Settle what is due, and let back whose time is over."""
        said = self.keep_out(now)
        for peer in [p for p, aside in self._aside.items() if aside.until <= now]:
            if self._left_behind(peer):
                self._aside[peer] = replace(self._aside[peer], until=now + UNMENDED_S)
            else:
                self._call_truce(peer, now)
                said += self._back(peer, now, "its time is over")
        for peer, aside in list(self._aside.items()):
            # looking at another one may have brought this one back
            if aside.look_at <= now and peer in self._aside:
                said += self._look_again(peer, aside, now)
        due = {pair for pair in self._disputes if now >= self._due_at(pair)}
        if due:
            in_how_many = Counter(peer for pair in self._disputes for peer in pair)
            known = self._spoilers()  # of these we need not ask who names whom
            for pair in sorted(due, key=lambda pair: (pair.isdisjoint(known), sorted(pair))):
                said += self._settle(pair, in_how_many, now)
        return said

    def _make_up(self, now: float) -> list[Explain]:
        """Let siblings back that have let us back."""
        me, said = self._place.me, list[Explain]()
        for replica in self._view.serving(self._place.stage):
            aside = self._aside.get(replica.peer)
            if aside is None or aside.other != me or me in replica.missing:
                continue
            if replica.peer in self._spoilers() or self._left_behind(replica.peer):
                continue
            if now >= aside.since + _doubled(self._account(replica.peer).made_up):
                self._call_truce(replica.peer, now)
                said += self._back(replica.peer, now, "it has let us back")
        return said

    def _call_truce(self, peer: PeerId, now: float) -> None:
        """One that was set aside in a dispute with us comes back."""
        if self._aside[peer].other == self._place.me:
            self._account(peer).made_up += 1
            self._truces = {p: until for p, until in self._truces.items() if until > now}
            self._truces[peer] = now + TRUCE_S

    # --- disputes --------------------------------------------------------------------------

    def _settle(self, pair: Pair, disputes: Counter[PeerId], now: float) -> list[Explain]:
        since = self._disputes.get(pair)
        stage = self._where.get(pair)
        if stage is None or since is None or stage not in self._stages_of(pair):
            return []  # one of them has gone meanwhile
        verdict = self._verdict(pair, stage)
        if verdict is None and self._is_for_others(pair, stage) and now < since + FOLLOW_S:
            return []
        loser = verdict or self._loser(pair, disputes, now)
        if self._is_elector_needed(loser, now):
            self._put_off[pair] = now + DISPUTE_S
            return []
        del self._disputes[pair]
        (other,) = pair - {loser}
        self._account(other).spared += 1
        return self._put(loser, stage, f"it and {short(other)} hold each other up", now, other)

    def _is_for_others(self, pair: Pair, stage: int) -> bool:
        """Whether others are to decide: those beside the stage have seen both work."""
        ours = stage == self._place.stage and self._place.me not in pair
        return ours and bool(self._judges(pair, stage))

    def _verdict(self, pair: Pair, stage: int) -> PeerId | None:
        """Return which of two siblings the first judge that has decided has set aside. The two
        themselves follow no judge."""
        if self._place.me in pair:
            return None
        judge = self._judge(pair, stage)
        return None if judge is None else next(iter(self._names(judge) & pair))

    def _judge(self, pair: Pair, stage: int) -> PeerId | None:
        """Return the judge between two siblings: the first replica beside them that has decided, in
        an order that is the same for all."""
        judges = [judge for judge in self._judges(pair, stage) if not self.is_aside(judge)]
        decided = (judge for judge in judges if len(self._names(judge) & pair) == 1)
        return min(decided, key=lambda judge: rank("judge", *sorted(pair), judge), default=None)

    def _judges(self, pair: Pair, stage: int) -> list[PeerId]:
        """Return who serves beside a stage; the two may do so themselves, and judge nothing."""
        beside = (*self._view.serving(stage - 1), *self._view.serving(stage + 1))
        return [r.peer for r in beside if r.peer not in pair]

    def _names(self, judge: PeerId) -> frozenset[PeerId]:
        """Return the peers that a replica of a stage beside a dispute says it has set aside."""
        if judge == self._place.me:
            return frozenset(self.beside())
        found = (
            r.missing
            for s in range(self._place.stages)
            for r in self._view.serving(s)
            if r.peer == judge
        )
        return frozenset(next(found, ()))

    def _follow_judges(self, now: float) -> list[Explain]:
        """The first judge may have decided later than we did, or changed its mind."""
        said: list[Explain] = []
        for peer, aside in list(self._aside.items()):
            if aside.other is None or peer not in self._aside or self.is_aside(aside.other):
                continue
            if self._verdict(frozenset((peer, aside.other)), aside.stage) == aside.other:
                words = f"it is {short(aside.other)} that has to go, as others decided"
                said += self._back(peer, now, words, wrongly=True)
                said += self._put(aside.other, aside.stage, "others decided so", now, peer)
        return said

    def _follow_our_stage(self, now: float) -> list[Explain]:
        """Set aside a peer of a neighbouring stage that most of our stage have set aside, or one of
        them if we wait for the peer without result ourselves, for as long as they report it:
        otherwise it would obstruct our stage through us alone."""
        ours, said = self._view.serving(self._place.stage), list[Explain]()
        if not self._aside and not any(r.missing for r in ours):
            return said
        named = Counter(peer for r in ours if r.peer != self._place.me for peer in set(r.missing))
        after = [p for p, aside in self._aside.items() if aside.follows == "siblings"]
        for peer in [p for p in after if p not in named]:
            if not self._left_behind(peer):
                said += self._back(peer, now, "those whom we followed let it back")
        overdue = self._overdue(now) if named else ()
        for peer in sorted(p for p, n in named.items() if 2 * n > len(ours) or p in overdue):
            stages = [s for s in self._stages_of({peer}) if s != self._place.stage]
            if not stages or self._is_needed(peer, stages[0]):
                continue
            if (
                not self._is_elector_needed(peer, now)
                and peer != self._place.me
                and not self.is_aside(peer)
            ):
                words, seen = "others of our stage have set it aside", peer in overdue
                said += self._put(peer, stages[0], words, now, follows="" if seen else "siblings")
        return said

    def _follow_our_seats(self, now: float) -> list[Explain]:
        """Who is set aside by a seat that we hold in another stage hears nothing from us any more:
        it has fallen silent here, too."""
        said = list[Explain]()
        elsewhere = self._touch.set_aside_elsewhere(self._place.stage) if self._touch else ()
        after = [p for p, aside in self._aside.items() if aside.follows == "seat"]
        for peer in [p for p in after if p not in elsewhere]:
            if self._left_behind(peer):  # from now on this is our own decision
                self._aside[peer] = replace(self._aside[peer], until=now + UNMENDED_S, follows="")
                self._shun()
            else:
                said += self._back(peer, now, "our other seat has let it back")
        for peer in sorted(p for p in elsewhere if not self.is_aside(p)):
            stage = next(iter(self._stages_of({peer})), None)
            if stage is not None and not self._is_needed(peer, stage):
                words = "our seat in another stage has set it aside"
                said += self._put(peer, stage, words, now, follows="seat")
        return said

    def _loser(self, pair: Pair, disputes: Counter[PeerId], now: float) -> PeerId:
        """Return the loser of a dispute; of ourselves and another, the other."""
        if self._place.me in pair:
            return next(iter(pair - {self._place.me}))
        works, owed = {peer: self._work(peer, now) for peer in pair}, self._owed_for(now)
        most, least = max(works.values()), min(owed.get(peer, 0.0) for peer in pair)
        latest = max(self._account(peer).worked_at for peer in pair)
        oldest = max(self._account(peer).versions for peer in pair)
        spoilers = self._spoilers()

        def blame(peer: PeerId) -> tuple[bool, int, bool, int, bool, bytes]:
            account = self._account(peer)
            idle = works[peer] * MUCH_LESS < most or owed.get(peer, 0.0) > least + OWED_S
            idle = idle or account.worked_at < latest - OWED_S
            new = MUCH_LESS * (account.versions + FEW_VERSIONS) < oldest
            rest = idle, account.spared, new, rank("standing", peer)
            return peer in spoilers, disputes[peer], *rest

        return max(pair, key=blame)

    def _look_again(self, peer: PeerId, aside: _Aside, now: float) -> list[Explain]:
        """Without one of two siblings their stage should have gone on; else the other one goes."""
        other, version = aside.other, self._view.committed(aside.stage)
        after, look_at = self._aside[peer], now + self._unmended_s(aside.stage)
        self._aside[peer] = replace(after, version=version, look_at=look_at)
        if version > aside.version or other is None or self.is_aside(other):
            return []
        if version >= self._last:
            return []  # there is nothing to go on with
        if self._left_behind(peer) or peer in self._spoilers():
            return []
        pair = frozenset((peer, other))
        if self._place.me == other or self._is_for_others(pair, aside.stage):
            return []
        if self._judge(pair, aside.stage) not in (None, self._place.me):
            return []
        said = self._back(peer, now, f"stage {aside.stage} did not go on without it", wrongly=True)
        return [*said, *self._put(other, aside.stage, "its stage does not go on with it", now)]

    def _left_behind(self, peer: PeerId) -> bool:
        """Whether it still serves a version that others have gone on from without it, by our leave.
        Heard again, it might close that step a second time (I5): it has to fetch the state first.
        """
        for stage in {self._place.stage, self._aside[peer].stage}:
            versions = {r.peer: r.version for r in self._view.serving(stage)}
            if peer in versions and versions[peer] < max(versions.values()):
                return True
        return False

    # --- setting aside ---------------------------------------------------------------------

    def _put(
        self,
        peer: PeerId,
        stage: int,
        why: str,
        now: float,
        other: PeerId | None = None,
        *,
        follows: Follows = "",
        for_good: bool = False,
    ) -> list[Explain]:
        account, said = self._account(peer), list[Explain]()
        if self._is_needed(peer, stage, least=1 if for_good else self._least):
            waiting = self._come_back_to(stage)
            if not waiting:
                return []
            self._call_truce(waiting[0], now)
            said += self._back(waiting[0], now, _too_few(stage))
        if now >= account.back_at + FORGIVEN_AFTER * _doubled(account.times):
            account.times = account.made_up = 0
        seconds = math.inf if for_good or follows == "seat" else _doubled(account.times)
        account.times += not follows
        look_at = math.inf if other is None else now + self._unmended_s(stage)
        version = self._view.committed(stage)
        self._aside[peer] = _Aside(now + seconds, stage, other, version, look_at, follows, now)
        self._disputes = {pair: t for pair, t in self._disputes.items() if peer not in pair}
        self._shun()
        long = " for good" if for_good else f" for {seconds:.0f} s" if seconds < math.inf else ""
        words = f"{short(peer)} of stage {stage} is set aside{long}: {why}"
        return [*said, Explain("membership", words, "warning", (peer,))]

    def _back(self, peer: PeerId, now: float, why: str, *, wrongly: bool = False) -> list[Explain]:
        aside, account = self._aside.pop(peer), self._account(peer)
        if not aside.follows:
            account.back_at = now
        if wrongly:
            account.times = max(0, account.times - 1)
        self._shun()
        words = f"{short(peer)} is not set aside any more: {why}"
        return [Explain("membership", words, members=(peer,))]

    def _let_enough_back(self, now: float) -> list[Explain]:
        """Let back peers that are needed because others have fallen silent.

        A stage with secret sums gets them at once. An elector comes back, one at a time, only once
        it has been needed for a while: by then a peer that was just let back is heard again.
        """
        said: list[Explain] = []
        if not self._aside:
            self._few_since = None
            return said
        for stage in self._near if self._least > 1 else []:
            for peer in self._come_back_to(stage):
                if self._count(stage) < self._least:
                    self._call_truce(peer, now)
                    said += self._back(peer, now, _too_few(stage))
        waiting = (peer for stage in self._near for peer in self._come_back_to(stage))
        needed = next((peer for peer in waiting if self._is_elector_needed(peer, now)), None)
        if needed is None or said:
            self._few_since = None
        elif self._few_since is None:
            self._few_since = now
        elif now >= self._few_since + TRUCE_S:
            self._few_since = None
            self._call_truce(needed, now)
            said += self._back(needed, now, "too few electors are left without it")
        return said

    def _is_needed(self, peer: PeerId, stage: int, least: int | None = None) -> bool:
        """Whether a stage has no more than ``least`` (what a step of it needs) that are not set
        aside, this one among them."""
        count = self._count(stage)
        counts = any(r.peer == peer for r in self._view.serving(stage)) and not self.is_aside(peer)
        return counts and count <= (self._least if least is None else least)

    def _wants(self, peer: PeerId, aside: Collection[PeerId], now: float) -> bool:
        """Whether our other seats must not set a peer aside on top of all these: our stage would
        have too few electors, or too few replicas for a step."""
        there = {r.peer for r in self._view.serving(self._place.stage)}
        left = there.difference(aside) - {peer}
        return self._needs(peer, aside, now) or (peer in there and len(left) < self._least)

    def _is_elector_needed(self, peer: PeerId, now: float) -> bool:
        touch, ours = self._touch, self._place.stage
        needed = self._needs(peer, self._aside, now)
        needed = needed or (touch is not None and touch.needed_elsewhere(ours, peer, now))
        return needed and peer not in self._spoilers()

    def _count(self, stage: int) -> int:
        """Return how many replicas of a stage are not set aside."""
        return sum(not self.is_aside(r.peer) for r in self._view.serving(stage))

    def _shun(self) -> None:
        if self._touch is not None:
            chosen = [peer for peer, aside in self._aside.items() if aside.follows != "seat"]
            self._touch.shun(self._place.stage, chosen)

    def _come_back_to(self, stage: int) -> list[PeerId]:
        """Return whom a stage may have back before the time, the first to come back first."""
        there = {r.peer for r in self._view.serving(stage)}
        until = {
            peer: aside.until
            for peer, aside in self._aside.items()
            if aside.stage == stage and peer in there and aside.until < math.inf
            if not self._left_behind(peer)
        }
        return sorted(until, key=until.__getitem__)

    # --- accounts --------------------------------------------------------------------------

    def _unmended_s(self, stage: int) -> float:
        pace = self._paces.get(stage)
        return max(UNMENDED_S, 2 * pace.step_s if pace else 0.0)

    def _count_versions(self, view: SwarmView, now: float) -> None:
        for stage in self._near:
            made = view.committed(stage) - self._view.committed(stage)
            if made <= 0:
                continue
            pace = self._paces.get(stage) or _Pace(0, now)
            self._paces[stage] = _Pace(view.committed(stage), now, now - pace.at)
            before = {r.peer: r.version for r in self._view.serving(stage)}
            for replica in view.serving(stage):
                if replica.version > before.get(replica.peer, replica.version):
                    self._account(replica.peer).versions += 1

    def _stages_of(self, peers: Collection[PeerId]) -> list[int]:
        """Return which of our stage, the one before and the one after all of these peers serve."""
        near = (self._place.stage, self._place.stage - 1, self._place.stage + 1)
        serving = {s: {r.peer for r in self._view.serving(s)} for s in near if s >= 0}
        return [stage for stage, there in serving.items() if there.issuperset(peers)]

    def _work(self, peer: PeerId, now: float) -> float:
        known = self._accounts.get(peer)
        if known is None:
            return 0.0
        return known.work * math.exp2((known.worked_at - now) / HALF_LIFE_S)

    def _account(self, peer: PeerId) -> _Account:
        if peer not in self._accounts and len(self._accounts) >= MAX_PEERS:
            idle = [p for p in self._accounts if not self.is_aside(p)]
            del self._accounts[min(idle, key=lambda p: self._accounts[p].worked_at)]
        return self._accounts.setdefault(peer, _Account())


def _too_few(stage: int) -> str:
    return f"stage {stage} has too few others"


def _doubled(times: int) -> float:
    """Return how long a peer is set aside after so many times."""
    return ASIDE_S * (1 << min(times, MOST_DOUBLINGS))
