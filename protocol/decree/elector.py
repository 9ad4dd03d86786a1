"""The elector of a volunteer: it votes for decrees, of its own stage and of those beside it.

For each stage and lineage it keeps one *term*: the step that it votes in, the last attempt that it
takes part in, and what it has voted for. A term is written down before what it says is sent, so
that the next process of this home does not contradict it. Steps go forward, and only a commit moves
a term on: nobody else can make an elector silent in the step that it votes in. To whom it answers
what is in SPEC.md, section 12.

State: the terms, and the newest commits of each stage, for those that lack one; all bounded.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from protocol import limits
from protocol.decree.decree import (
    PROMISE,
    VOTE,
    Sign,
    Verify,
    are_ready,
    bound_by,
    designated,
    digest_of,
    encode_ballot,
    is_made_by,
    is_majority,
    promises_of,
    voters,
)
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.wire.fields import Attempt, Era, PeerText, StageIndex, StepIndex
from protocol.wire.messages import Commit, Propose, Vote
from protocol.wire.parts import Ballot, Decree

MAX_TERMS: Final = 64
"""Eight lineages of eight stages; the oldest is forgotten."""
MAX_COMMITS: Final = 64
"""Kept of one stage: a replica that is further behind fetches the state."""


class Term(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an elector has said of one step of a stage in a lineage."""

    stage: StageIndex
    era: Era
    step: StepIndex
    promised: Attempt = 0
    leader: PeerText | None = None
    """Who leads the promised attempt."""
    voted: Attempt = 0
    decree: Decree | None = None
    """For which it has voted."""
    members: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)] = ()
    """Of the decree before."""
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ELECTORS)] = ()
    """Whom it names."""


INSISTS: Final = 5
"""Proposals, one a second, without a member that we hear: whoever is dead would be lost by then. Of
what members are not Ready for one is enough."""
WITNESSES: Final = 2
"""Of two electors that name a vote, or show a commit, one is honest."""


Named = tuple[tuple[PeerId, ...], frozenset[PeerId]]
"""Members of a decree, and the electors that it names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """What a volunteer sees of the run, as its elector asks for it."""

    may_be: Callable[[int, int, int], bool]
    """Whether a stage of a lineage may be at a step."""
    proves: Callable[[PeerId], bool]
    """Whether work has proven a peer."""
    first: Callable[[int, int], Collection[PeerId]]
    """Who elects the first step of a lineage, if a step is that."""
    serving: Callable[[int], Mapping[PeerId, int]]
    """Who serves a stage at which version."""
    lost: Callable[[], Collection[PeerId]]
    """The peers that we have lost."""
    is_near: Callable[[int], bool]
    """Whether we hold a stage or one beside it, and so set aside who obstructs it."""
    now: Callable[[], float]
    """Monotonic seconds."""


class Elector:
    """See the module's docstring.

    Args:
        sign: signs a ballot or a Ready as ourselves.
        verify: checks another's signature of one.
        sees: what we see.
        keep: writes the terms down.
    """

    def __init__(
        self, sign: Sign, verify: Verify, sees: Sight, keep: Callable[[], None] = lambda: None
    ) -> None:
        self.sign, self.verify, self.sees, self._keep = sign, verify, sees, keep
        self._terms = OrderedDict[tuple[int, int], Term]()
        self._barred, self._moved = -1, set[tuple[int, int]]()
        """The lineage in which we may have said more than we know, and the terms that a commit has
        moved on since then."""
        self._commits: dict[tuple[int, int], OrderedDict[int, Commit]] = {}
        self._since: dict[tuple[int, int], float] = {}
        """By term: when it began, or this process was first asked."""
        self._liars: dict[tuple[int, int], Counter[PeerId]] = {}
        """By term: how often a leader has proposed in its step what we do not vote for."""

    def load(self, terms: Iterable[Term]) -> None:
        """Take the terms of the process before."""
        self._terms = OrderedDict(((term.stage, term.era), term) for term in terms)

    def bar(self, era: int) -> None:
        """The terms of a lineage may lack what was said last."""
        self._barred = era

    @property
    def terms(self) -> tuple[Term, ...]:
        """Everything that the next process has to know."""
        return tuple(self._terms.values())

    # --- commits ---------------------------------------------------------------------------

    def commit(self, stage: int, era: int, step: int) -> Commit | None:
        """Return the commit of a step, if we have it."""
        kept = self._commits.get((stage, era))
        return None if kept is None else kept.get(step)

    def take(self, commit: Commit, *, checked: bool = False) -> None:
        """Take a commit that our own replica has ``checked``, or that is borne out by what we
        know."""
        key = commit.stage, commit.era
        if self.commit(*key, commit.step) is not None:
            return
        if not checked and not self._is_borne_out(commit):
            return
        kept = self._commits.setdefault(key, OrderedDict())
        kept[commit.step] = commit
        while len(kept) > MAX_COMMITS:
            kept.popitem(last=False)
        while len(self._commits) > MAX_TERMS:
            del self._commits[next(iter(self._commits))]
        term = self._terms.get(key)
        if term is None or term.step <= commit.step:
            self._moved.add(key)
            self._begin(*key, commit.step + 1)

    def _is_borne_out(self, commit: Commit) -> bool:
        """Whether the votes of a commit prove it to us."""
        key = commit.stage, commit.era
        if (named := self._named_before(*key, commit.step)) is not None:
            return self._elect(commit, named[1])
        if not self.sees.may_be(*key, commit.step):
            return False
        term = self._terms.get(key)
        if term and term.step < commit.step and self._elect(commit, frozenset(term.electors)):
            return True
        proven = set(filter(self.sees.proves, voters(commit, None, self.verify)))
        there = set(filter(self.sees.proves, self.sees.serving(commit.stage)))
        if len(proven) < min(WITNESSES, max(len(there), 1)):
            return False
        return is_made_by(commit, there, self.verify)

    def _elect(self, commit: Commit, electors: frozenset[PeerId]) -> bool:
        signed = voters(commit, electors, self.verify)
        return self._is_majority(signed, electors)

    def _is_majority(self, some: Collection[PeerId], electors: frozenset[PeerId]) -> bool:
        return is_majority(some, electors)

    def liars(self, least: int = 1) -> frozenset[PeerId]:
        """Return the leaders that have proposed in a present step what we do not vote for, at
        ``least`` so often. Where such a one and another name each other, it goes."""
        found = (peer for of in self._liars.values() for peer in of if of[peer] >= least)
        return frozenset(found)

    # --- voting ----------------------------------------------------------------------------

    def answer(self, sender: PeerId, message: Propose) -> Vote | Commit | Propose | Penalise | None:
        """Answer a leader with a vote or a refusal, and anyone with the commit of a step that is
        closed. We ask for the commit before, if only that says whose the first attempt is. Blame a
        leader that proposes what its members are not Ready for."""
        key, before = (message.stage, message.era), message.before
        if before is not None and (before.stage, before.era) == key:
            self.take(before)
        if (closed := self.commit(*key, message.step)) is not None:
            return closed
        if message.attempt == 0:
            return self._newest_after(*key, message.step)
        known = self._named_before(*key, message.step)
        if known is None:
            if not message.step or not self.sees.may_be(*key, message.step):
                return None
            return Propose(message.stage, message.step - 1, 0, era=message.era)
        term = self._terms.get(key)
        if term is None:
            term = self._begin(*key, message.step)
        if message.step != term.step or (message.era == self._barred and key not in self._moved):
            return None
        if message.decree is None:
            return self._promise(term, sender, message) if self._leads(sender, term) else None
        return self._vote(term, sender, message, message.decree, known[0])

    def _newest_after(self, stage: int, era: int, step: int) -> Commit | None:
        """Return the newest commit of a stage, if it is of a later step: it proves to whoever is
        left far behind that it is."""
        kept = self._commits.get((stage, era))
        newest = next(reversed(kept.values())) if kept else None
        return newest if newest is not None and newest.step > step else None

    def _begin(self, stage: int, era: int, step: int) -> Term:
        members, electors = self._named_before(stage, era, step) or ((), frozenset())
        leader = designated(members, stage, step)
        named = tuple(sorted(members)), tuple(sorted(electors))
        term = Term(stage, era, step, 1 if leader else 0, leader or None, 0, None, *named)
        self._since[stage, era] = self.sees.now()
        self._liars.pop((stage, era), None)
        self._put(term)
        return term

    def _promise(self, term: Term, sender: PeerId, message: Propose) -> Vote | None:
        since = self._since.setdefault((term.stage, term.era), self.sees.now())
        if message.attempt > limits.MAX_ATTEMPTS_PER_S * (1 + self.sees.now() - since):
            return None
        again = (term.promised, term.leader) == (message.attempt, sender)
        if message.attempt <= (1 if again else max(term.promised, 1)):
            return self._refusal(term, message)
        promised = replace(term, promised=message.attempt, leader=sender)
        value = b"" if term.decree is None else digest_of(term.decree)
        return self._say(PROMISE, promised, message, value)

    def _vote(
        self,
        term: Term,
        sender: PeerId,
        message: Propose,
        decree: Decree,
        members: Collection[PeerId],
    ) -> Vote | Penalise | None:
        """The first attempt is that of the leader who is designated; for a later one the leader has
        to show that it may propose this decree. What we have voted for before may be in force:
        we vote for it again, whoever is there now; ``members`` of the decree before."""
        attempt, value = message.attempt, digest_of(decree)
        if (term.promised, term.leader) == (attempt, sender):
            if term.voted == attempt and term.decree != decree:
                return self._refusal(term, message)
        elif attempt <= max(term.promised, 1):
            return self._refusal(term, message)
        named = self._named_by(term, sender, message) if attempt > 1 else 0
        if named is None:
            return self._refusal(term, message)
        if decree != term.decree:
            if not are_ready(decree, term.stage, term.era, term.step, self.verify):
                self._liars.setdefault((term.stage, term.era), Counter())[sender] += INSISTS
                return Penalise(sender, "not-all-are-ready", 50)
            if named < WITNESSES and self._leaves_out(term, decree, members):
                self._liars.setdefault((term.stage, term.era), Counter())[sender] += 1
                return None
        voted = replace(term, promised=attempt, leader=sender, voted=attempt, decree=decree)
        return self._say(VOTE, voted, message, value)

    def _leaves_out(self, term: Term, decree: Decree, members: Collection[PeerId]) -> bool:
        """Whether a decree leaves out a member that is at the step, as far as we see. A leader
        leaves out whom most electors have lost, and we may be the last to lose it: it asks again.
        """
        there = self.sees.serving(term.stage)
        left_out = {p for p in members if there.get(p) == term.step}.difference(decree.members)
        return not left_out.issubset(self.sees.lost())

    def _named_by(self, term: Term, leader: PeerId, message: Propose) -> int | None:
        """Return how many promises name the decree that a leader proposes; None: they do not allow
        it to propose that one."""
        value = b"" if message.decree is None else digest_of(message.decree)
        where = Ballot(term.stage, term.era, term.step, message.attempt, leader, 0, b"")
        electors = frozenset(term.electors)
        promised = promises_of(where, message.promises, electors, self.verify)
        if not self._is_majority(promised, electors):
            return None
        if bound_by(promised.values(), electors) not in (b"", value):
            return None
        return sum(promise.value == value for promise in promised.values())

    def _named_before(self, stage: int, era: int, step: int) -> Named | None:
        """Return the members of the decree before a step, and the electors that it names."""
        if (before := self.commit(stage, era, step - 1)) is not None:
            return before.decree.members, frozenset(before.decree.electors)
        term = self._terms.get((stage, era))
        if term is not None and term.step == step and term.electors:
            return term.members, frozenset(term.electors)
        first = frozenset(self.sees.first(era, step))
        return ((), first) if first else None

    def _leads(self, peer: PeerId, term: Term) -> bool:
        """Whether a peer leads a step, as far as we see: the first by rank of those that serve the
        stage and are not past the step, of the members of the decree before while one of them does.
        A leader that sees others lost before we do asks again. Who is far from the stage does not
        see who obstructs it, and takes any of the line."""
        lost, step = self.sees.lost(), term.step
        serving = self.sees.serving(term.stage).items()
        there = [p for p, at in serving if step - 1 <= at <= step and p not in lost]
        line = [p for p in there if p in term.members] or there
        first = designated(line, term.stage, step)
        return not line or peer == first or (peer in line and not self.sees.is_near(term.stage))

    def _say(self, kind: str, term: Term, message: Propose, value: bytes) -> Vote:
        """Write a term down, and sign what it says."""
        where = (term.stage, term.era, term.step, term.promised, term.leader or PeerId(""))
        body = encode_ballot(Ballot(*where, term.voted, value))
        if self._terms.get((term.stage, term.era)) != term:
            self._put(term)
        decree = term.decree if kind == PROMISE else None
        said = (message.stage, message.step, message.attempt, message.attempt)
        return Vote(*said, term.voted, decree, self.sign(kind, body), era=message.era)

    @staticmethod
    def _refusal(term: Term, message: Propose) -> Vote:
        promised = min(max(term.promised, message.attempt + 1), limits.MAX_ATTEMPT)
        return Vote(message.stage, message.step, message.attempt, promised, era=message.era)

    def _put(self, term: Term) -> None:
        key = term.stage, term.era
        self._terms.pop(key, None)
        self._terms[key] = term
        while len(self._terms) > MAX_TERMS:
            forgotten, _ = self._terms.popitem(last=False)
            self._moved.discard(forgotten)
            self._since.pop(forgotten, None)
            self._liars.pop(forgotten, None)
        self._keep()
