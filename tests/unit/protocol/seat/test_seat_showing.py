"""What a member shows to auditors: everything to honest ones, and to greedy ones not much more."""

import random

import pytest

from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.seat.effects import SeatEffect
from protocol.seat.showing import AGAIN, MAX_ASKERS, Showing
from protocol.wire.messages import AuditRequest, Commitment, Plan
from protocol.wire.parts import PlanMember

STAGE, STEP, ATTEMPT, ERA = 1, 3, 2, 0
ME, ASKER, OTHER = PeerId("me"), PeerId("asker"), PeerId("other")
PLACE = Place(ME, STAGE, 3, 8, era=ERA)
TENSORS = Showing(PLACE, Commitments(ME, active=True)).tensors
IDS = tuple(range(24, 32))
BOUNDS = [0, 10, 10, 20]
SEGMENTS = (b"a" * 32, b"", b"b" * 32)
PLAN = Plan(STAGE, STEP, ATTEMPT, [PlanMember(ME, b"\xff"), PlanMember(ASKER, b"")], BOUNDS, [])


@pytest.fixture
def showing() -> Showing:
    return showing_of(PLAN)


def showing_of(plan: Plan) -> Showing:
    made = Showing(PLACE, Commitments(ME, active=True))
    made.contributed(plan, frozenset(IDS))
    return made


def request(
    name: str, item: int, *, of: PeerId | None = None, step: int = STEP, attempt: int = ATTEMPT
) -> AuditRequest:
    return AuditRequest(STAGE, step, attempt, name, item, of)


EVERYTHING = [
    request("list", 0),
    *(request(name, item) for item in IDS for name in TENSORS),
    request("segment", 0),
    request("segment", 2),
    request("segment", 0, of=ASKER),
]
BOUND = 2 * (len(EVERYTHING) + 1) + AGAIN
"""There are two parts of the segment that we own: our own one stands under its owner, too."""


@pytest.mark.parametrize("order", ["round and round", "one after the other", "at random"])
def test_a_greedy_asker_is_shown_twice_as_much_and_a_little(showing: Showing, order: str) -> None:
    asks = EVERYTHING * 50
    if order == "one after the other":
        asks.sort(key=repr)
    elif order == "at random":
        random.Random(7).shuffle(asks)
    shown = sum(showing.shows(ASKER, asked) for asked in asks)
    assert shown == BOUND
    assert not showing.shows(OTHER, EVERYTHING[0]), "who is in no plan with us audits nothing"


def test_nobody_is_shown_more_by_asking_under_other_attempts(showing: Showing) -> None:
    for attempt in range(ATTEMPT + 1, ATTEMPT + 30):
        members = PLAN.members
        showing.contributed(Plan(STAGE, STEP, attempt, members, BOUNDS, []), frozenset(IDS))
    asks = [request("input", IDS[0], attempt=ATTEMPT + n) for n in range(30)] * 10
    assert sum(showing.shows(ASKER, asked) for asked in asks) == BOUND


@pytest.mark.parametrize(
    "asked",
    [
        request("input", 23),
        request("input", 10**9),
        request("list", 1),
        request("segment", 1),
        request("segment", 3),
        request("segment", 2, of=ASKER),
        request("segment", 0, of=OTHER),
        request("input", 24, of=ASKER),
        request("list", 0, step=STEP + 1),
        request("list", 0, attempt=ATTEMPT + 1),
    ],
    ids=str,
)
def test_what_was_not_contributed_is_not_shown_and_earns_nothing(
    showing: Showing, asked: AuditRequest
) -> None:
    assert not any(showing.shows(ASKER, asked) for _ in range(1000))
    assert not showing._shown


def beside(showing: Showing, asker: PeerId, *, step: int = STEP) -> list[SeatEffect]:
    """What a replica of the next stage is shown that asks for our list."""
    asked = AuditRequest(STAGE, step, 0, "list", 0, beside=STAGE + 1)
    return showing.on_request(asker, asked, 0.0)


def test_a_replica_beside_is_shown_the_list_alone_with_our_word_and_not_without_end() -> None:
    commitments = Commitments(ME, active=True)
    showing = Showing(PLACE, commitments)
    said = Commitment(STAGE, STEP, ATTEMPT, bytes(32), SEGMENTS, signature=bytes(64))
    showing.contributed(PLAN, frozenset(IDS))
    assert not beside(showing, OTHER), "it is not signed yet"
    commitments.take(ME, said)
    [shown] = beside(showing, OTHER)
    assert shown.keys == (PayloadKey(STEP, "list", 0, ATTEMPT, ME),)
    assert (shown.message.stage, shown.message.said) == (STAGE + 1, said)
    assert not beside(showing, OTHER, step=STEP + 1)
    assert sum(bool(beside(showing, OTHER)) for _ in range(100)) == 1 + AGAIN
    for number in range(3 * MAX_ASKERS):
        beside(showing, PeerId(f"asker {number}"))
    assert len(showing._shown) <= MAX_ASKERS


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_an_honest_auditor_notices_no_bound_where_much_is_lost_each_way(loss: float) -> None:
    """It asks again every 3 s for what does not come, and gives up when nothing came for 10 s."""
    for seed in range(200):
        lost, showing = random.Random(seed), showing_of(PLAN)
        for asked in EVERYTHING:
            for _ in range(4):
                if lost.random() < loss:
                    continue  # the request
                assert showing.shows(ASKER, asked), seed
                if lost.random() >= loss:
                    break  # it has come
