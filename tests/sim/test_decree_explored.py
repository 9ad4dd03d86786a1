"""Every interleaving of a small swarm that closes one step: no step has two decrees.

Three electors and two leaders, each with a decree of its own. One is designated and begins with
the first attempt; each may begin anew. A message, once sent, may arrive at any time, any number of
times or never: so crashes of leaders, delays, losses, duplicates and splits are all among what is
explored. An elector's process may end at any time: it keeps what it has written down. That a decree
names other electors for the next step changes nothing here: whoever proposes there holds this
step's only decree.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from client.lab.simulate.electing import UnsplitQuorum, sight
from protocol.decree.decree import is_majority
from protocol.decree.elector import Elector, Term
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.rounds.proposer import Proposer, State
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Propose, Vote
from protocol.wire.parts import Decree

ELECTORS = tuple(map(PeerId, "abc"))
LEADERS = tuple(map(PeerId, "ab"))
"""The first one is designated."""
ATTEMPTS = {"a": 1, "b": 1}
"""How often each begins."""
STEP = 5


def decree_of(leader: PeerId, attempt: int) -> Decree:
    """What a leader that is free proposes in an attempt."""
    return Decree(attempt, leader.encode() * 32, ("a", "b"), ("a", "b", "c"), 0.0, (b"", b""))


def quorum(me: PeerId) -> Quorum:
    """The electors of the step, of which none is known to have ended."""
    made = UnsplitQuorum(me, 0, ELECTORS)
    made.designated = LEADERS[0]
    return made


def elector(me: PeerId, term: Term) -> Elector:
    """An elector as its disk has it, before the step or within it."""
    made = Elector(lambda kind, body: b"s" * 64, lambda *_: True, sight())
    made.load([term])
    return made


Known = tuple[object, ...]
"""What a leader knows: the values of ``NAMES``."""
Said = tuple[PeerId, PeerId, Propose | Vote]
"""By whom, to whom, what."""
Step = tuple[Known, frozenset[Said]]
"""What a leader knows after something has happened, and what it says."""


class World(NamedTuple):
    """What matters for what may happen next."""

    terms: tuple[Term, ...]
    leaders: tuple[Known, ...]
    begun: tuple[int, ...]
    sent: frozenset[Said]


def proposer(index: int) -> Proposer:
    """Return a leader of which nobody is left out."""
    return Proposer(QUORUMS[index], 0, lambda *_: True, lambda _decree: (), lambda: None)


def thaw(index: int, state: Known) -> Proposer:
    """Return a leader in a state."""
    made = proposer(index)
    made.start_step(STEP, 0.0)
    for name, value in zip(NAMES, state, strict=True):
        setattr(made, name, dict(value) if name in DICTS else value)  # type: ignore[call-overload]
    return made


def frozen(leader: Proposer) -> Known:
    found = ((name, getattr(leader, name)) for name in NAMES)
    return tuple(tuple(sorted(v.items())) if name in DICTS else v for name, v in found)


NAMES = (
    "state",
    "attempt",
    "_known",
    "_promised",
    "_refused",
    "decree",
    "_named",
    "_again",
)
DICTS = ("_promised", "_refused", "_named")
FIXED = ("_quorum", "_verify", "_left_out", "_before", "_step", "_era")
APART = ("_votes", "_said_at", "_since", "_overtaken", "not_before")
"""A decree is in force whether its leader hears of it or not, and any time may have passed."""
QUORUMS = tuple(map(quorum, LEADERS))


def begin() -> World:
    """Nothing of the step has been said; all electors know who is designated."""
    term = Term(0, 0, STEP, 1, LEADERS[0], members=LEADERS, electors=ELECTORS)
    states = []
    for leader in map(proposer, range(len(LEADERS))):
        leader.start_step(STEP, 0.0)
        states.append(frozen(leader))
    return World((term,) * len(ELECTORS), tuple(states), (0, 0), frozenset())


def put(some: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return a tuple with another value at a place."""
    return (*some[:index], value, *some[index + 1 :])


def nexts(world: World, attempts: dict[str, int]) -> Iterator[World]:
    """Everything that may happen next."""
    for index, me in enumerate(LEADERS):
        state = world.leaders[index]
        if world.begun[index] < attempts[me]:
            yield go_on(world, index, begun(index, state), begins=True)
        yield go_on(world, index, waited(index, state))
    for sender, to, message in world.sent:
        if isinstance(message, Propose):
            place = ELECTORS.index(to)
            term, answer = answered(to, world.terms[place], sender, message)
            sent = world.sent | ({(to, sender, answer)} if answer is not None else set())
            yield World(put(world.terms, place, term), world.leaders, world.begun, sent)
        elif not is_vote(message):
            index = LEADERS.index(to)
            yield go_on(world, index, told(index, world.leaders[index], sender, message))


@cache
def answered(me: PeerId, term: Term, sender: PeerId, message: Propose) -> tuple[Term, Vote | None]:
    """An elector answers, by what it has on its disk."""
    voter = elector(me, term)
    answer = voter.answer(sender, message)
    return voter.terms[0], answer if isinstance(answer, Vote) else None


@cache
def begun(index: int, state: Known) -> Step:
    """A leader begins anew."""
    leader = thaw(index, state)
    leader.give_up()
    return acted(index, leader, [] if leader.state is State.CLOSED else leader.ask(0.0))


@cache
def waited(index: int, state: Known) -> Step:
    """A leader has waited for answers for a while."""
    leader = thaw(index, state)
    return acted(index, leader, leader.tick(math.inf))


@cache
def told(index: int, state: Known, sender: PeerId, message: Vote) -> Step:
    """A leader takes an answer."""
    leader = thaw(index, state)
    leader.vote(sender, message, 0.0)
    return acted(index, leader, [])


def is_vote(message: Vote) -> bool:
    """Whether it is for a decree, which is in force whether its leader hears of it or not."""
    return bool(message.signature) and message.voted == message.attempt


def acted(index: int, leader: Proposer, sends: list[Send]) -> Step:
    """A leader does what its state asks for."""
    me, sends = LEADERS[index], list(sends)
    if leader.state is State.FREE:
        sends += leader.propose(decree_of(me, leader.attempt), 0.0)
    elif leader.state is State.BOUND and leader.decree is not None:
        sends += leader.propose(leader.decree, 0.0)
    said = ((me, send.peer, send.message) for send in sends)
    return frozen(leader), frozenset(one for one in said if isinstance(one[2], Propose))


def go_on(world: World, index: int, step: Step, *, begins: bool = False) -> World:
    """Something has happened to a leader."""
    known, said = step
    begun = put(world.begun, index, world.begun[index] + begins)
    return World(world.terms, put(world.leaders, index, known), begun, world.sent | said)


@cache
def in_force(sent: frozenset[Said]) -> set[bytes]:
    """Return the digests of the decrees for which a majority has voted in one attempt."""
    for_whom = defaultdict[tuple[PeerId, int], set[PeerId]](set)
    for sender, to, message in sent:
        if isinstance(message, Vote) and is_vote(message):
            for_whom[to, message.attempt].add(sender)
    won = {which for which, by in for_whom.items() if is_majority(by, frozenset(ELECTORS))}
    return {
        message.decree.digest
        for sender, _, message in sent
        if isinstance(message, Propose) and message.decree and (sender, message.attempt) in won
    }


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


def test_no_interleaving_makes_two_decrees() -> None:
    count, decreed = explore(ATTEMPTS)
    assert decreed == {b"a" * 32, b"b" * 32}, "each of the two can win"
    assert count > 1000


def test_the_model_knows_all_that_a_leader_decides_by() -> None:
    leader = proposer(0)
    assert set(vars(leader)) == {*NAMES, *FIXED, *APART}


def binds_nobody(patch: pytest.MonkeyPatch) -> None:
    """An elector does not tell what it has voted for."""
    promise = Elector._promise

    def silent(self: Elector, term: Term, sender: PeerId, message: Propose) -> Vote | None:
        said = promise(self, term, sender, message)
        return said and (replace(said, voted=0, decree=None) if said.signature else said)

    patch.setattr(Elector, "_promise", silent)


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
    ) -> Vote | Penalise:
        if term.voted != message.attempt:
            term = replace(term, promised=message.attempt, leader=sender)
        return vote(self, term, sender, message, decree, members)

    patch.setattr(Elector, "_vote", forgetful)


@pytest.fixture
def forgets() -> Iterator[None]:
    """What was computed before an elector breaks, or while it was broken, does not count."""
    kept = answered, begun, waited, told
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


@pytest.mark.usefixtures("forgets")
@pytest.mark.parametrize("mutant", [binds_nobody, votes_after_a_later_promise])
def test_a_broken_elector_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="two decrees"):
        explore(ATTEMPTS)
