"""One member obstructs its swarm by legal messages: the rest goes on within 15 seconds."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.chaos.world import ChaosWorld
from protocol.decree.decree import PROMISE, READY, agreed, digest_of, encode_ballot
from protocol.decree.elector import Term
from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key, short
from protocol.limits import MAX_ATTEMPTS_PER_S
from protocol.pace import ASIDE_S
from protocol.rounds.proposer import State
from protocol.wire.messages import (
    Backward,
    Commit,
    Forward,
    Have,
    Lease,
    LedgerReport,
    Message,
    Plan,
    Propose,
    Ready,
    Receipt,
    Reduced,
    Segment,
    Vote,
)
from protocol.wire.parts import Ballot, Decree
from protocol.wire.statement import Statement, encode_statement
from tests.support.cases import usual
from tests.support.obstructed_world import WARM_UP_S, Distort, ObstructedWorld

OF_THE_RATE = 0.8
Said = TypeVar("Said", bound=Message)
IN_ROUNDS = (Segment, Reduced, Ready, LedgerReport, Plan, Propose, Vote, Commit)
IN_THE_PIPELINE = (Forward, Backward, Receipt, Have)


def swallow(*kinds: type[Message]) -> Distort:
    return lambda _to, message: [] if isinstance(message, kinds) else [(message, 0.0)]


def late(seconds: float, kind: type[Message]) -> Distort:
    return lambda _to, message: [(message, seconds if isinstance(message, kind) else 0.0)]


def changed(kind: type[Said], change: Callable[[Said], Message]) -> Distort:
    return lambda _to, said: [(change(said) if isinstance(said, kind) else said, 0.0)]


def ready_for(digest: bytes) -> Distort:
    return changed(Ready, lambda said: msgspec.structs.replace(said, digest=digest))


def with_an_invented_member(plan: Plan) -> Plan:
    *others, last = plan.members
    invented = msgspec.structs.replace(last, peer=peer_id_from_key(b"i" * 32))
    return msgspec.structs.replace(plan, members=[*others, invented])


def with_another_state(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, state=b"x" * 16)


def with_electors(*, others: int, kept: int) -> Distort:
    """Plans name so many electors that it has invented, beside some of the real ones."""
    invented = [peer_id_from_key(bytes([n]) * 32) for n in range(others)]

    def change(plan: Plan) -> Plan:
        return msgspec.structs.replace(plan, electors=[*plan.electors[:kept], *invented])

    return changed(Plan, change)


def keeps_and_reports() -> Distort:
    """Whatever it was leased stays with it, and each report names another microbatch as done."""
    sent = itertools.count()

    def distort(_to: PeerId, message: Message) -> list[tuple[Message, float]]:
        if isinstance(message, Forward):
            return []
        if isinstance(message, LedgerReport):
            done = bytearray(message.done or b"\0")
            done[0] ^= next(sent) % 2
            message = msgspec.structs.replace(message, done=bytes(done))
        return [(message, 0.0)]

    return distort


LIARS: dict[str, tuple[int, Distort]] = {
    "keeps what it was leased, and reports for ever": (0, keeps_and_reports()),
    "plans with invented electors": (1, with_electors(others=26, kept=6)),
    "plans with another state than all have": (1, changed(Plan, with_another_state)),
    "plans with as few of them as may be": (1, with_electors(others=4, kept=3)),
    "says nothing in rounds": (1, swallow(*IN_ROUNDS)),
    "never plans": (1, swallow(Plan)),
    "plans with an invented member": (1, changed(Plan, with_an_invented_member)),
    "never leases": (0, swallow(Lease)),
    "never commits": (1, swallow(Commit, Vote)),
    "contributes nothing": (1, swallow(Segment)),
    "never broadcasts its sums": (1, swallow(Reduced)),
    "returns no gradients": (1, swallow(Backward)),
    "is never Ready": (1, swallow(Ready)),
    "names a wrong digest": (1, ready_for(b"x" * 32)),
    "sleeps four seconds per gradient": (1, late(4.0, Backward)),
    "keeps what it was leased, and leases nothing": (0, swallow(Forward, Lease)),
    "votes for nothing": (1, swallow(Vote)),
    "says nothing but heartbeats": (1, swallow(*IN_ROUNDS, *IN_THE_PIPELINE)),
    "never plans, stage 0": (0, swallow(Plan)),
    "is never Ready, stage 0": (0, swallow(Ready)),
    "sleeps a second per gradient": (1, late(1.0, Backward)),
    "keeps what it was leased": (0, swallow(Forward)),
}


def signed(liar: Volunteer, step: int, decree: Decree) -> Decree:
    """Return a decree of nobody but the liar, which is Ready for it."""
    assert liar.seat is not None
    decree = msgspec.structs.replace(decree, members=(liar.peer,))
    said = Statement(liar.stage, liar.seat.place.era, step, decree.attempt, agreed(decree))
    signature = liar.elector.sign(READY, encode_statement(said))
    return msgspec.structs.replace(decree, ready=(signature,))


def proposes(change: Callable[[Volunteer, Decree], Decree]) -> Callable[[Volunteer], None]:
    """Whenever it leads it proposes another decree than its members are Ready for."""

    def mislead(liar: Volunteer) -> None:
        assert liar.seat is not None
        proposer = liar.seat.leader.proposer
        propose = proposer.propose

        def falsely(decree: Decree, now: float) -> list[Send]:
            return propose(change(liar, decree), now)

        proposer.propose = falsely  # type: ignore[method-assign]

    return mislead


def false_digest(_liar: Volunteer, decree: Decree) -> Decree:
    return msgspec.structs.replace(decree, digest=b"x" * 32)


def false_electors(liar: Volunteer, decree: Decree) -> Decree:
    return msgspec.structs.replace(decree, electors=(liar.peer,))


def of_itself(liar: Volunteer, decree: Decree) -> Decree:
    assert liar.seat is not None
    return signed(liar, liar.seat.step, decree)


def names_votes_that_nobody_gave(liar: Volunteer) -> None:
    """It leaves out all others whenever it leads, and tells later leaders that it has voted so."""
    proposes(of_itself)(liar)

    def promise(term: Term, sender: PeerId, message: Propose) -> Vote:
        decree = Decree(1, b"x" * 32, (liar.peer,), (liar.peer,), 0.0)
        decree, voted = signed(liar, message.step, decree), message.attempt - 1
        where = (term.stage, term.era, message.step, message.attempt, sender)
        signature = liar.elector.sign(
            PROMISE, encode_ballot(Ballot(*where, voted, digest_of(decree)))
        )
        said = (message.stage, message.step, message.attempt, message.attempt)
        return Vote(*said, voted, decree, signature, era=message.era)

    liar.elector._promise = promise  # type: ignore[method-assign]


def begins_attempt_after_attempt(liar: Volunteer) -> None:
    """As soon as all are Ready it plans anew, so that nobody waits long for any commit."""
    proposes(of_itself)(liar)
    assert liar.seat is not None
    proposer = liar.seat.leader.proposer
    tick = proposer.tick

    def gives_up(now: float) -> list[Send]:
        if proposer.state is State.PROPOSING:
            proposer.give_up()
        return tick(now)

    proposer.tick = gives_up  # type: ignore[method-assign]


FALSE_LEADERS = {
    "proposes what nobody is Ready for": proposes(false_digest),
    "names itself as the only elector": proposes(false_electors),
    "leaves out all others": proposes(of_itself),
    "names votes that nobody gave": names_votes_that_nobody_gave,
    "begins attempt after attempt": begins_attempt_after_attempt,
}


def says(**lies: object) -> Callable[[Volunteer], None]:
    """Its heartbeats say this of its seat."""

    def mislead(liar: Volunteer) -> None:
        assert liar.seat is not None
        status = liar.seat.status
        liar.seat.status = lambda rate: msgspec.structs.replace(  # type: ignore[method-assign]
            status(rate), **lies
        )

    return mislead


def world(replicas: int, seed: int) -> ObstructedWorld:
    return ObstructedWorld(ChaosConfig(seed=seed, replicas=replicas, per_step=8))


def goes_on(made: ObstructedWorld, begin: Callable[[], None]) -> None:
    before, _, after = made.measure(begin)
    assert after >= OF_THE_RATE * before, "\n".join(made.log[-60:])
    assert {v.recovery.lineage.number for v in made.volunteers.values() if v.alive} == {0}


@pytest.mark.parametrize("replicas", usual(1, [2, 3]))
@pytest.mark.parametrize("name", usual(15, LIARS))
def test_a_liar_is_got_rid_of(name: str, replicas: int) -> None:
    made, (stage, distort) = world(replicas, seed=1), LIARS[name]
    liar = made.of_stage(stage)[-1]

    def begin() -> None:
        made.liars[liar.peer] = distort

    goes_on(made, begin)
    honest = [pair for pair in made.blamed if liar.peer not in pair]
    assert not honest, "honest ones blamed each other for what a third one did"


@pytest.mark.parametrize("replicas", usual(1, [3, 2]))
@pytest.mark.parametrize("name", FALSE_LEADERS)
def test_a_leader_that_proposes_lies_loses_its_attempts_and_not_the_run(
    name: str, replicas: int
) -> None:
    made = world(replicas, seed=1)
    liar = made.of_stage(1)[-1]
    goes_on(made, lambda: made.mislead(liar, FALSE_LEADERS[name]))
    assert not [pair for pair in made.blamed if liar.peer not in pair]


def test_a_leader_that_plans_alone_makes_nobody_drop_its_state() -> None:
    """It names a state that nobody else has, and takes part in that plan itself."""
    made = world(3, seed=1)
    liar = made.of_stage(1)[-1]

    def plan_alone(to: PeerId, message: Message) -> list[tuple[Message, float]]:
        if not isinstance(message, Plan):
            return [(message, 0.0)]
        part = Segment(1, message.step, message.attempt, 0, era=message.era)
        ChaosWorld.send(made, liar, to, part, (b"",))
        own = [member for member in message.members if member.peer == liar.peer]
        return [(msgspec.structs.replace(message, members=own, state=b"x" * 16), 0.0)]

    goes_on(made, lambda: made.liars.update({liar.peer: plan_alone}))
    assert not [line for line in made.log if "differs from our siblings" in line]


@pytest.mark.parametrize("begins", usual(1, [WARM_UP_S, 0.0]))
@pytest.mark.parametrize("leap", usual(1, [1, MAX_ATTEMPTS_PER_S]))
def test_who_does_not_lead_overtakes_nobody(leap: int, begins: float) -> None:
    """A member asks the electors for promises all the time, of ever higher attempts."""
    made, asked = world(3, seed=1), Counter[int]()
    liar = made.of_stage(1)[-1]

    def ask() -> None:
        made.agenda.after(0.05, ask)
        if (seat := liar.seat) is not None:
            asked[seat.step] += leap
            question = Propose(1, seat.step, 1 + asked[seat.step], era=seat.place.era)
            for elector in seat.quorum.electors - {liar.peer}:
                made.send(liar, elector, question)

    if begins:
        goes_on(made, ask)
    else:
        before, *_ = world(3, seed=1).measure(lambda: None)
        ask()
        assert made.measure(lambda: None)[-1] >= OF_THE_RATE * before
    assert not [pair for pair in made.blamed if liar.peer not in pair]
    assert made.set_aside() <= {short(liar.peer)}


def test_who_says_that_all_has_returned_does_not_stop_its_stage() -> None:
    """A friend in the next stage counts what it gets, and returns no gradient."""
    made = world(3, seed=1)
    liar, friend = made.of_stage(0)[-1], made.of_stage(1)[-1]

    def begin() -> None:
        made.mislead(liar, says(returned=True))
        made.liars[friend.peer] = swallow(Backward)

    goes_on(made, begin)


@pytest.mark.parametrize("friend", usual(1, [0, 1, 2]))
def test_a_judge_that_sides_with_a_liar_is_outvoted(friend: int) -> None:
    """It names the liar's siblings, as if it had set them aside."""
    made = world(3, seed=1)
    *siblings, liar = made.of_stage(1)

    def begin() -> None:
        sides_with_it = says(missing=tuple(one.peer for one in siblings))
        made.mislead(made.of_stage(0)[friend], sides_with_it)
        made.liars[liar.peer] = swallow(*IN_ROUNDS, *IN_THE_PIPELINE)

    goes_on(made, begin)
    assert not made.set_aside() & {short(one.peer) for one in siblings}


@pytest.mark.parametrize("seed", usual(1, [1, 2, 3]))
def test_a_stage_goes_on_where_all_that_some_have_out_is_kept(seed: int) -> None:
    """With three replicas and few microbatches some have nothing out but what the liar keeps."""
    made = world(3, seed)
    liar = made.of_stage(1)[-1]
    distort = swallow(Backward)
    before, during, after = made.measure(lambda: made.liars.update({liar.peer: distort}))
    assert during >= before / 2
    assert after >= OF_THE_RATE * before


@pytest.mark.parametrize(("stage", "replicas"), usual(1, [(0, 3), (1, 2), (0, 2), (1, 3)]))
def test_a_heartbeat_alone_is_no_seat(stage: int, replicas: int) -> None:
    made = world(replicas, seed=1)
    goes_on(made, lambda: made.by_word(stage) and None)


@pytest.mark.parametrize("seed", usual(1, [1, 2, 3]))
def test_a_newcomer_that_says_nothing_does_not_stop_a_new_leader_of_stage_0(seed: int) -> None:
    """The leader dies in mid-step: its successor goes by the reports that it has."""
    made = world(3, seed)
    silent: list[PeerId] = []

    def begin() -> None:
        silent.append(made.admitted_by_word(0).peer)
        made.crash(made.leader_in_mid_step(0), wipe=False)

    before, during, after = made.measure(begin)
    assert during >= before / 2, "\n".join(made.log[-60:])
    assert after >= OF_THE_RATE * before
    assert made.set_aside() <= {short(peer) for peer in silent}


@pytest.mark.parametrize("replicas", [2, 3])
def test_siblings_that_cannot_reach_each_other_do_not_stop_their_stage(replicas: int) -> None:
    """One of them has banned the other; the stage beside theirs decides who goes."""
    made = world(replicas, seed=1)
    first, *_, last = made.of_stage(1)
    goes_on(made, lambda: made.part(first, last))


def test_an_honest_member_that_was_set_aside_comes_back() -> None:
    """It loses nothing but time, and begins no lineage of its own: it sees that others go on."""
    made = world(2, seed=1)
    first, last = made.of_stage(1)
    made.measure(lambda: made.part(first, last))
    made.apart.clear()

    def side_by_side() -> bool:
        steps = [member.seat.step for member in (first, last) if member.seat and member.serving]
        return len(steps) == 2 and abs(steps[0] - steps[1]) <= 1

    healed_at = made.agenda.now
    while not side_by_side():
        made.advance_to(made.agenda.now + 1.0)
        assert made.agenda.now < healed_at + ASIDE_S
    begun = ("training goes on from", "training starts again from")
    assert not any(words in line for words in begun for line in made.log)


def test_two_that_have_set_each_other_aside_roll_back_together() -> None:
    """They are what is left of four electors, and what their step needs of the others is lost."""
    made = world(2, seed=1)
    made.advance_to(10.0)
    pair, others = made.of_stage(0), made.of_stage(1)
    for one, two in (pair, pair[::-1]):
        assert one.seat is not None
        now = made.now_of(one)
        one.seat.standing._decide(two.peer, one.peer, 0, "it is late", now)
        one.seat.standing.tick(now)
        made.perform(one, one.seat._take_view(now))
        assert one.seat.standing.is_aside(two.peer)
    for gone in others:
        made.crash(gone, wipe=True)
    made.advance_to(12.0)
    for gone in others:
        made.start(gone)
    made.advance_to(145.0)
    (number,) = {v.recovery.lineage.number for v in made.volunteers.values()}
    assert number > 0, "once, or again if they had counted on copies that were wiped"
    assert all(v.seat and v.seat.step > 0 for v in made.volunteers.values())
