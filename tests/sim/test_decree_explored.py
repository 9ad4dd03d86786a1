"""Every interleaving of a small swarm that closes one step: no step has two decrees.

Three electors, of which two are members, and may lead. One is designated and begins with the first
attempt, whose plan names both, or itself alone; each may begin anew, then with a plan of itself. A
member that gets a plan which its attempt allows may be Ready for it. A message, once sent, may
arrive at any time, any number of times or never: so crashes of leaders, delays, losses, duplicates
and splits are all among what is explored. An elector's process may end at any time: it keeps what
it has written down. That a decree names other electors for the next step changes nothing here:
whoever proposes there holds this step's only decree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from protocol.decree.decree import (
    bound_by,
    by_ready,
    digest_of,
    is_majority,
    promises_of,
)
from protocol.decree.elector import Elector, Term
from protocol.decree.proposer import Proposer, State
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Propose, Ready, Vote
from protocol.wire.parts import Ballot, Decree, Promise
from protocol.wire.statement import Statement

ELECTORS = tuple(map(PeerId, "abc"))
LEADERS = tuple(map(PeerId, "ab"))
"""The first one is designated."""
ATTEMPTS = {"a": 1, "b": 1}
"""How often each begins."""
STEP = 5
TOGETHER, ALONE = LEADERS, LEADERS[:1]
"""Members of the first attempt's plan: a majority of the electors, or not."""
first_members = TOGETHER


def decree_of(leader: PeerId, attempt: int) -> Decree:
    """What a leader that is free proposes in an attempt."""
    members = first_members if attempt == 1 else (leader,)
    return Decree(attempt, leader.encode() * 32, members, ELECTORS)


def quorum(me: PeerId) -> Quorum:
    """The electors of the step, of which none is known to have ended."""
    made = Quorum(me, 0, None, electors=ELECTORS)
    made.designated = LEADERS[0]
    return made


def elector(me: PeerId, term: Term) -> Elector:
    """An elector as its disk has it, before the step or within it."""
    made = Elector(lambda kind, body: b"s" * 64, lambda *_: True)
    made.load([term])
    return made


Known = tuple[object, ...]
"""What a leader knows: the values of ``NAMES``."""


class Planned(NamedTuple):
    """What a leader asks its members to be Ready for."""

    attempt: int
    promises: tuple[Promise, ...]


Said = tuple[PeerId, PeerId, Planned | Ready | Propose | Vote]
"""By whom, to whom, what."""
Step = tuple[Known, frozenset[Said]]
"""What a leader knows after something has happened, and what it says."""


class World(NamedTuple):
    """What matters for what may happen next."""

    terms: tuple[Term, ...]
    leaders: tuple[Known, ...]
    ready: tuple[frozenset[PeerId], ...]
    """By leader: the members that are Ready for its plan."""
    begun: tuple[int, ...]
    sent: frozenset[Said]


def thaw(index: int, state: Known) -> Proposer:
    """Return a leader in a state."""
    made = Proposer(LEADERS[index], 0, QUORUMS[index], lambda *_: True)
    made.start_step(STEP, 0)
    made._say_at = 0.0
    for name, value in zip(NAMES, state, strict=True):
        setattr(made, name, dict(value) if name in DICTS else value)  # type: ignore[call-overload]
    return made


def frozen(leader: Proposer) -> Known:
    """Return what a leader knows."""
    found = ((name, getattr(leader, name)) for name in NAMES)
    return tuple(tuple(sorted(v.items())) if name in DICTS else v for name, v in found)


NAMES = (
    "state",
    "attempt",
    "_known",
    "_promised",
    "_refused",
    "_ready",
    "decree",
    "_named",
    "_again",
)
DICTS = ("_promised", "_refused", "_named")
FIXED = ("_me", "_stage", "_quorum", "_verify", "_left_out", "_step", "_era")
APART = ("_votes", "_say_at")
"""A decree is in force whether its leader hears of it or not, and any time may have passed."""
QUORUMS = tuple(map(quorum, LEADERS))


def begin() -> World:
    """Nothing of the step has been said; all electors know who is designated."""
    term = Term(0, 0, STEP, 1, LEADERS[0], members=LEADERS, electors=ELECTORS)
    leaders = (Proposer(p, 0, q, lambda *_: True) for p, q in zip(LEADERS, QUORUMS, strict=True))
    states = []
    for leader in leaders:
        leader.start_step(STEP, 0)
        states.append(frozen(leader))
    nobody = (frozenset[PeerId](),) * 2
    return World((term,) * len(ELECTORS), tuple(states), nobody, (0, 0), frozenset())


def put(some: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return a tuple with another value at a place."""
    return (*some[:index], value, *some[index + 1 :])


def nexts(world: World, attempts: dict[str, int]) -> Iterator[World]:
    """Everything that may happen next."""
    for index, me in enumerate(LEADERS):
        state = world.leaders[index]
        if world.begun[index] < attempts[me]:
            anew = world._replace(
                ready=put(world.ready, index, frozenset()),
                begun=put(world.begun, index, world.begun[index] + 1),
            )
            yield go_on(anew, index, begun(index, state))
        yield go_on(world, index, waited(index, state))
    for sender, to, message in world.sent:
        match message:
            case Planned() | Propose():
                place = ELECTORS.index(to)
                term, answer = answered(to, world.terms[place], sender, message)
                sent = world.sent | ({(to, sender, answer)} if answer is not None else set())
                yield world._replace(terms=put(world.terms, place, term), sent=sent)
            case Ready():
                yield counted(world, LEADERS.index(to), sender, message)
            case Vote() if not is_vote(message):
                index = LEADERS.index(to)
                yield go_on(world, index, told(index, world.leaders[index], sender, message))


@cache
def answered(
    me: PeerId, term: Term, sender: PeerId, message: Planned | Propose
) -> tuple[Term, Vote | Ready | None]:
    """An elector answers, by what it has on its disk."""
    voter = elector(me, term)
    if isinstance(message, Propose):
        answer = voter.answer(sender, message)
        return voter.terms[0], answer if isinstance(answer, Vote) else None
    said = ready(me, voter, sender, message)
    return voter.terms[0], said


def ready(me: PeerId, voter: Elector, leader: PeerId, plan: Planned) -> Ready | None:
    """A member follows a plan as far as its attempt allows, and is Ready."""
    if plan.attempt > 1:
        where = Ballot(0, 0, STEP, plan.attempt, leader, 0, b"")
        promised = promises_of(where, plan.promises, frozenset(ELECTORS), lambda *_: True)
        if bound_by(promised.values(), frozenset(ELECTORS)) is not None:
            return None
    decree = decree_of(leader, plan.attempt)
    said = Statement(0, 0, STEP, plan.attempt, digest_of(decree))
    votes = by_ready(decree, frozenset(ELECTORS))
    signature = voter.ready(said, decree, me, leader, votes=votes)
    return Ready(0, STEP, plan.attempt, said.digest, 0.0, signature) if signature else None


def counted(world: World, index: int, sender: PeerId, message: Ready) -> World:
    """A leader takes a Ready; once it has those of all members it proposes, or has closed."""
    leader = thaw(index, world.leaders[index])
    if leader.state is not State.FREE or leader.attempt != message.attempt:
        return world
    ready = world.ready[index] | {sender}
    world = world._replace(ready=put(world.ready, index, ready))
    decree = decree_of(LEADERS[index], message.attempt)
    if ready != set(decree.members):
        return world
    return go_on(world, index, proposed(index, world.leaders[index]))


@cache
def begun(index: int, state: Known) -> Step:
    """A leader begins anew."""
    leader = thaw(index, state)
    leader.give_up()
    return acted(index, leader, [] if leader.state is State.CLOSED else leader.ask(0.0))


@cache
def proposed(index: int, state: Known) -> Step:
    """All members are Ready for a leader's plan."""
    leader = thaw(index, state)
    decree = decree_of(LEADERS[index], leader.attempt)
    whole = replace(decree, ready=(b"s" * 64,) * len(decree.members))
    return acted(index, leader, leader.propose(whole, 0.0))


@cache
def waited(index: int, state: Known) -> Step:
    """A leader has waited for answers for a while."""
    leader = thaw(index, state)
    return acted(index, leader, leader.tick(math.inf))


@cache
def told(index: int, state: Known, sender: PeerId, message: Vote) -> Step:
    """A leader takes an answer."""
    leader = thaw(index, state)
    leader.vote(sender, message)
    return acted(index, leader, [])


def is_vote(message: Vote) -> bool:
    """Whether it is for a decree, which is in force whether its leader hears of it or not."""
    return bool(message.signature) and message.voted == message.attempt


def acted(index: int, leader: Proposer, sends: list[Send]) -> Step:
    """A leader does what its state asks for."""
    me, sends = LEADERS[index], list(sends)
    if leader.state is State.BOUND and leader.decree is not None:
        sends += leader.propose(leader.decree, 0.0)
    said = {(me, send.peer, send.message) for send in sends if isinstance(send.message, Propose)}
    if leader.state is State.FREE:
        plan = Planned(leader.attempt, leader.promises)
        said |= {(me, PeerId(to), plan) for to in decree_of(me, leader.attempt).members}
    return frozen(leader), frozenset(said)


def go_on(world: World, index: int, step: Step) -> World:
    """Something has happened to a leader."""
    known, said = step
    return world._replace(leaders=put(world.leaders, index, known), sent=world.sent | said)


@cache
def in_force(sent: frozenset[Said]) -> set[bytes]:
    """Return the digests of the decrees for which a majority has voted in one attempt."""
    for_whom = defaultdict[tuple[PeerId, int], set[PeerId]](set)
    ready = defaultdict[tuple[PeerId, int], set[PeerId]](set)
    for sender, to, message in sent:
        if isinstance(message, Vote) and is_vote(message):
            for_whom[to, message.attempt].add(sender)
        elif isinstance(message, Ready):
            ready[to, message.attempt].add(sender)
    for (leader, attempt), by in ready.items():
        if by == set(decree_of(leader, attempt).members):
            for_whom[leader, attempt] |= by
    won = {which for which, by in for_whom.items() if is_majority(by, frozenset(ELECTORS))}
    return {decree_in(leader, attempt, sent).digest for leader, attempt in won}


def decree_in(leader: PeerId, attempt: int, sent: frozenset[Said]) -> Decree:
    """Return what a leader has proposed in an attempt; else what it has planned."""
    said = (m for by, _, m in sent if by == leader and isinstance(m, Propose))
    proposed = (m.decree for m in said if m.attempt == attempt)
    return next(filter(None, proposed), decree_of(leader, attempt))


def explore(attempts: dict[str, int]) -> tuple[int, set[bytes]]:
    """Visit every world that can come about; return how many, and what is decreed in any.

    A world in which more was said can become all that one with less can: the latter is left out.
    """
    first = begin()
    said = defaultdict[object, list[frozenset[Said]]](list)
    said[first[:-1]] = [first.sent]
    todo, visited, decreed = [first], 0, set[bytes]()
    while todo:
        world = todo.pop()
        if world.sent not in said[world[:-1]]:
            continue
        visited += 1
        for after in nexts(world, attempts):
            known = said[after[:-1]]
            if any(after.sent <= one for one in known):
                continue
            said[after[:-1]] = [one for one in known if not one <= after.sent] + [after.sent]
            todo.append(after)
            found = in_force(after.sent)
            assert len(found) <= 1, "two decrees"
            decreed |= found
    return visited, decreed


@pytest.fixture(params=[TOGETHER, ALONE], ids=["together", "alone"])
def members(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom the first attempt's plan names."""
    monkeypatch.setattr(f"{__name__}.first_members", request.param)


@pytest.mark.usefixtures("members", "forgets")
def test_no_interleaving_makes_two_decrees() -> None:
    count, decreed = explore(ATTEMPTS)
    assert decreed == {b"a" * 32, b"b" * 32}, "each of the two can win"
    assert count > 1000


def test_the_model_knows_all_that_a_leader_decides_by() -> None:
    leader = Proposer(LEADERS[0], 0, QUORUMS[0], lambda *_: True)
    assert set(vars(leader)) == {*NAMES, *FIXED, *APART}


def binds_nobody(patch: pytest.MonkeyPatch) -> None:
    """An elector does not tell what it has voted for."""
    promise = Elector._promise

    def silent(self: Elector, term: Term, sender: PeerId, message: Propose) -> Vote | None:
        said = promise(self, term, sender, message)
        return said and (replace(said, voted=0, decree=None) if said.signature else said)

    patch.setattr(Elector, "_promise", silent)


def forgets_its_promise(term: Term, leader: PeerId, attempt: int) -> Term:
    """Return the term of an elector that takes part in attempts which it has promised to leave."""
    late = attempt < term.promised and term.voted != attempt
    return replace(term, promised=attempt, leader=leader) if late else term


def votes_after_a_later_promise(patch: pytest.MonkeyPatch) -> None:
    """An elector votes in attempts that it has promised to leave."""
    vote = Elector._vote

    def forgetful(
        self: Elector,
        term: Term,
        sender: PeerId,
        message: Propose,
        decree: Decree,
        members: Collection[PeerId],
    ) -> Vote | Penalise | None:
        term = forgets_its_promise(term, sender, message.attempt)
        return vote(self, term, sender, message, decree, members)

    patch.setattr(Elector, "_vote", forgetful)
    patch.setattr(f"{__name__}.first_members", ALONE)


def is_ready_after_a_later_promise(patch: pytest.MonkeyPatch) -> None:
    """An elector is Ready in attempts that it has promised to leave."""
    ready = Elector.ready

    def forgetful(
        self: Elector, said: Statement, decree: Decree, me: PeerId, leader: PeerId, *, votes: bool
    ) -> bytes:
        [term] = self.terms
        self.load([forgets_its_promise(term, leader, said.attempt)])
        return ready(self, said, decree, me, leader, votes=votes)

    patch.setattr(Elector, "ready", forgetful)


def writes_no_ready_down(patch: pytest.MonkeyPatch) -> None:
    """The next process of an elector does not know that it was Ready."""
    ready = Elector.ready

    def forgetful(
        self: Elector, said: Statement, decree: Decree, me: PeerId, leader: PeerId, *, votes: bool
    ) -> bytes:
        return ready(self, said, decree, me, leader, votes=False)

    patch.setattr(Elector, "ready", forgetful)


BROKEN = [
    binds_nobody,
    votes_after_a_later_promise,
    is_ready_after_a_later_promise,
    writes_no_ready_down,
]


@pytest.fixture
def forgets() -> Iterator[None]:
    """What was computed before an elector breaks, or while it was broken, does not count."""
    kept = answered, begun, proposed, waited, told, in_force
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


@pytest.mark.usefixtures("forgets")
@pytest.mark.parametrize("mutant", BROKEN)
def test_a_broken_elector_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="two decrees"):
        explore(ATTEMPTS)
