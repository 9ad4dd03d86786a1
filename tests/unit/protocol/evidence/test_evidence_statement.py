"""The statements of plans and Readys, and conflicts between two of one author."""

import msgspec
import pytest
from msgspec.structs import replace

from protocol.errors import RemoteProtocolError
from protocol.evidence.heard import MAX_AUTHORS, MAX_OF_AUTHOR, Heard
from protocol.evidence.proof import check
from protocol.evidence.statement import Decisive, envelope_of, statement_of
from protocol.evidence.word import MAX_MARKS, OwnWord
from protocol.ids import SwarmId
from protocol.wire.fields import Envelope
from protocol.wire.messages import Plan
from protocol.wire.parts import PlanMember
from protocol.wire.statement import Statement, encode_statement, parse_statement
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer, stated_by

LEADER, ALICE, BORIS = peer(1), peer(2), peer(3)


def plan(attempt: int = 1, electors: tuple[int, ...] = (1, 2), **changes: object) -> Plan:
    members = [PlanMember(ALICE, b"\x0f"), PlanMember(BORIS, b"\xf0")]
    made = Plan(1, 7, attempt, members, [0, 4, 8], [], b"s", list(map(peer, electors)), era=5)
    return replace(made, **changes)


def shown(number: int, message: Decisive, swarm: SwarmId = SWARM) -> Envelope:
    envelope = envelope_of(peer(number), stated_by(number, message, swarm))
    assert envelope is not None
    return envelope


@pytest.mark.parametrize(
    "changed",
    [
        {"members": [PlanMember(ALICE, b"\xff"), PlanMember(BORIS, b"\x00")]},
        {"bounds": [0, 5, 8]},
        {"observers": [peer(9)]},
        {"state": b"t"},
        {"electors": (2, 1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_plan_states_all_that_it_says(changed: dict[str, object]) -> None:
    one, other = statement_of(plan()), statement_of(plan(**changed))
    assert one[1].digest != other[1].digest
    assert replace(one[1], digest=b"x" * 32) == replace(other[1], digest=b"x" * 32)


def test_a_statement_that_is_not_canonical_or_cut_is_malformed() -> None:
    body = encode_statement(Statement(1, 5, 7, 2, b"d" * 32))
    assert parse_statement(body) == Statement(1, 5, 7, 2, b"d" * 32)
    for wrong in [*(body[:n] for n in range(len(body))), body + b"\0", msgspec.msgpack.encode({})]:
        with pytest.raises(RemoteProtocolError):
            parse_statement(wrong)


# --- what others state ----------------------------------------------------------------------


def test_a_leader_that_tells_two_members_two_plans_is_convicted() -> None:
    heard = Heard(SWARM)
    told, found = heard.take(LEADER, stated_by(1, plan()))
    assert found is None
    assert told is not None  # others may have been told something else
    assert heard.take(LEADER, stated_by(1, plan())) == (None, None), "once"
    proof = heard.passed_on(BORIS, shown(1, plan(electors=(2, 1))))
    assert check(proof, SWARM).culprit == LEADER


@pytest.mark.parametrize(
    "other",
    [
        plan(),
        plan(attempt=2, electors=(2, 1)),
        plan(electors=(2, 1), era=6),
        plan(electors=(2, 1), step=8),
        plan(electors=(2, 1), stage=0),
    ],
    ids=["the same", "a later attempt", "another lineage", "another step", "another stage"],
)
def test_an_honest_leader_contradicts_nothing(other: Plan) -> None:
    heard = Heard(SWARM)
    heard.take(LEADER, stated_by(1, plan()))
    assert heard.take(LEADER, stated_by(1, other))[1] is None
    assert heard.passed_on(BORIS, shown(1, other)) is None


@pytest.mark.parametrize(
    "message",
    [
        plan(),
        plan(signature=bytes(63)),
        plan(signature=bytes(64)),
        stated_by(2, plan()),
        stated_by(1, plan(), OTHER_SWARM),
        replace(stated_by(1, plan()), attempt=2),
    ],
    ids=["unsigned", "cut", "forged", "another's", "another run's", "replayed as a later attempt"],
)
def test_what_its_sender_has_not_signed_is_refused(message: Decisive) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Heard(SWARM).take(LEADER, message)
    full = len(message.signature) == 64
    assert caught.value.reason == ("bad-signature" if full else "not-signed")


@pytest.mark.parametrize("first", [True, False])
def test_a_forgery_is_refused_and_not_kept(first: bool) -> None:
    heard = Heard(SWARM)
    if not first:
        heard.take(LEADER, stated_by(1, plan()))
    lie = plan(electors=(2, 1))
    for forged in (shown(1, lie, OTHER_SWARM), replace(shown(2, lie), signer=LEADER)):
        with pytest.raises(RemoteProtocolError) as caught:
            heard.passed_on(BORIS, forged)
        assert caught.value.penalty == 50
    told, proof = heard.take(LEADER, stated_by(1, plan()))
    assert (told is not None, proof) == (first, None)


@pytest.mark.parametrize("kind", ["ready", "commit", "advert", "posting", "segment"])
def test_only_plans_are_passed_on(kind: str) -> None:
    envelope = signer(1).sign(kind, encode_statement(Statement(1, 5, 7, 1, b"d" * 32)), SWARM)
    with pytest.raises(RemoteProtocolError, match="not-to-be-passed-on"):
        Heard(SWARM).passed_on(BORIS, envelope)
    with pytest.raises(RemoteProtocolError):
        Heard(SWARM).passed_on(LEADER, shown(1, plan()))  # of itself


def test_what_is_kept_is_bounded_for_each_author_and_in_all() -> None:
    heard = Heard(SWARM)
    for attempt in range(MAX_OF_AUTHOR + 5):
        heard.passed_on(BORIS, shown(1, plan(attempt)))
    assert len(heard._said[LEADER]) == MAX_OF_AUTHOR
    for number in range(10, 10 + MAX_AUTHORS + 5):
        heard.passed_on(BORIS, shown(number, plan()))
    assert len(heard._said) == MAX_AUTHORS


# --- our own word ---------------------------------------------------------------------------


def said(attempt: int, digest: bytes = b"d" * 32, step: int = 7, era: int = 5) -> Statement:
    return Statement(1, era, step, attempt, digest)


def test_we_say_the_same_again_or_something_newer() -> None:
    word = OwnWord()
    assert word.may_say("plan", said(1))
    assert word.may_say("plan", said(1))
    assert not word.may_say("plan", said(1, b"e" * 32))
    assert word.may_say("plan", said(2, b"e" * 32))
    assert not word.may_say("plan", said(1))  # members that still need it get a later one
    assert word.may_say("plan", said(1, step=8))
    assert not word.may_say("plan", said(9))


def test_kinds_stages_and_lineages_are_apart() -> None:
    word = OwnWord()
    assert word.may_say("plan", said(3))
    assert word.may_say("ready", said(2))
    assert word.may_say("plan", said(1, era=4))  # it returns to the most followed lineage
    assert word.may_say("plan", replace(said(1), stage=0))
    assert not word.may_say("plan", said(1))


def test_the_next_process_keeps_the_word_of_the_one_before() -> None:
    before = OwnWord()
    before.may_say("plan", said(3))
    before.may_say("ready", said(2, step=8))
    word = OwnWord(before.marks)
    assert not word.may_say("plan", said(3, b"e" * 32))
    assert word.may_say("plan", said(3))
    assert word.promise(1, 5) == (8, 2)
    assert word.promise(1, 4) == word.promise(0, 5) == (0, 0)


def test_marks_are_bounded() -> None:
    word = OwnWord()
    for era in range(MAX_MARKS + 5):
        word.may_say("plan", said(1, era=era))
    assert len(word.marks) == MAX_MARKS
    assert word.promise(1, MAX_MARKS + 4) == (7, 1)


def test_who_has_just_spoken_is_kept_while_others_come_and_go() -> None:
    heard = Heard(SWARM)
    for number in range(10, 10 + MAX_AUTHORS):
        heard.take(LEADER, stated_by(1, plan(attempt=number)))
        heard.passed_on(BORIS, shown(number, plan()))
    assert heard.passed_on(BORIS, shown(1, plan(attempt=10, electors=(2, 1)))) is not None
