"""Every interleaving of a small swarm that closes one step: no step has two decrees.

Three electors and two leaders, each with a decree of its own. One is designated and begins with
the first attempt; each may begin anew. A message, once sent, may arrive at any time, any number of
times or never: so crashes of leaders, delays, losses, duplicates and splits are all among what is
explored. An elector's process may end at any time: it keeps what it has written down. That a decree
names other electors for the next step changes nothing here: whoever proposes there holds this
step's only decree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.decree.decree import is_majority
from protocol.decree.elector import Elector, Term
from protocol.decree.proposer import Proposer, State
from protocol.effects import Send
from protocol.ids import PeerId
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
    return Decree(attempt, leader.encode() * 32, ("a", "b"), ("a", "b", "c"), 0.0)


def quorum(me: PeerId) -> Quorum:
    """The electors of the step, of which none is known to have ended."""
    made = Quorum(me, 0, None, electors=ELECTORS)
    made.designated = LEADERS[0]
    return made


def elector(me: PeerId, term: Term, *, keeps: bool = True) -> Elector:
    """An elector as its disk has it, before the step or within it."""
    made = Elector(me, lambda kind, body: b"s" * 64, lambda *_: True, lambda _terms: keeps)
    made.load([term])
    return made


@dataclass(frozen=True)
class World:
    """What matters for what may happen next."""

    terms: tuple[Term, ...]
    leaders: tuple[tuple[object, ...], ...]
    begun: tuple[int, ...]
    sent: frozenset[tuple[PeerId, PeerId, Propose | Vote]]


def thaw(index: int, state: tuple[object, ...]) -> Proposer:
    """Return a leader in a state."""
    made = Proposer(LEADERS[index], 0, QUORUMS[index], lambda *_: True)
    made.start_step(STEP, 0)
    for name, value in zip(NAMES, state, strict=True):
        setattr(made, name, dict(value) if name in DICTS else value)  # type: ignore[call-overload]
    return made


def frozen(leader: Proposer) -> tuple[object, ...]:
    """Return what a leader knows."""
    found = ((name, getattr(leader, name)) for name in NAMES)
    return tuple(tuple(sorted(v.items())) if name in DICTS else v for name, v in found)


NAMES = ("state", "attempt", "_known", "_promised", "_refused", "decree", "_voted")
DICTS = ("_promised", "_refused")
QUORUMS = tuple(map(quorum, LEADERS))


def begin() -> World:
    """Nothing of the step has been said; all electors know who is designated."""
    term = Term(0, 0, STEP, 1, LEADERS[0])
    leaders = (Proposer(p, 0, q, lambda *_: True) for p, q in zip(LEADERS, QUORUMS, strict=True))
    states = []
    for leader in leaders:
        leader.start_step(STEP, 0)
        states.append(frozen(leader))
    return World((term,) * len(ELECTORS), tuple(states), (0, 0), frozenset())


def put(some: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return a tuple with another value at a place."""
    return (*some[:index], value, *some[index + 1 :])


def nexts(world: World) -> Iterator[World]:
    """Everything that may happen next."""
    for index, me in enumerate(LEADERS):
        if world.begun[index] < ATTEMPTS[me]:
            leader = thaw(index, world.leaders[index])
            if leader.state is not State.CLOSED:
                leader.give_up()
                yield go_on(world, index, leader, leader.ask(0.0), begins=True)
    for sender, to, message in world.sent:
        if isinstance(message, Propose):
            place = ELECTORS.index(to)
            voter = elector(to, world.terms[place])
            answer = voter.answer(sender, message)
            if isinstance(answer, Vote):
                sent = world.sent | {(to, sender, answer)}
                yield World(
                    put(world.terms, place, voter.terms[0]), world.leaders, world.begun, sent
                )
        elif not is_vote(message):
            index = LEADERS.index(to)
            leader = thaw(index, world.leaders[index])
            leader.vote(sender, message)
            yield go_on(world, index, leader, [])


def is_vote(message: Vote) -> bool:
    """Whether it is for a decree, which is in force whether its leader hears of it or not."""
    return bool(message.signature) and message.voted == message.attempt


def go_on(
    world: World, index: int, leader: Proposer, sends: list[Send], *, begins: bool = False
) -> World:
    """A leader does what its state asks for."""
    sends = list(sends)
    if leader.state is State.FREE:
        sends += leader.propose(decree_of(LEADERS[index], leader.attempt), 0.0)
    elif leader.state is State.BOUND and leader.decree is not None:
        sends += leader.propose(leader.decree, 0.0)
    said = ((LEADERS[index], send.peer, send.message) for send in sends)
    sent = world.sent | {one for one in said if isinstance(one[2], Propose)}
    begun = put(world.begun, index, world.begun[index] + begins)
    return World(world.terms, put(world.leaders, index, frozen(leader)), begun, sent)


def in_force(world: World) -> set[bytes]:
    """Return the digests of the decrees for which a majority has voted in one attempt."""
    for_whom = defaultdict[tuple[PeerId, int], set[PeerId]](set)
    for sender, to, message in world.sent:
        if isinstance(message, Vote) and is_vote(message):
            for_whom[to, message.attempt].add(sender)
    won = {which for which, by in for_whom.items() if is_majority(by, frozenset(ELECTORS))}
    return {
        message.decree.digest
        for sender, _, message in world.sent
        if isinstance(message, Propose) and message.decree and (sender, message.attempt) in won
    }


def explore(first: World) -> tuple[int, set[bytes]]:
    """Visit every world that can come about; return how many, and what is decreed in any."""
    seen, todo, decreed = {first}, [first], set[bytes]()
    while todo:
        for world in nexts(todo.pop()):
            if world in seen:
                continue
            seen.add(world)
            todo.append(world)
            found = in_force(world)
            assert len(found) <= 1, "two decrees"
            decreed |= found
    return len(seen), decreed


def test_no_interleaving_makes_two_decrees() -> None:
    count, decreed = explore(begin())
    assert decreed == {b"a" * 32, b"b" * 32}, "each of the two can win"
    assert count > 1000
