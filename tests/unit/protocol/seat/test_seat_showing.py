"""What a member shows to auditors: everything to honest ones, and to greedy ones not much more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocol.audit.audit import Ask, AskList, Audit, Judged, Subject
from protocol.audit.commitment import Statement, contents, root_of, tensors_of
from protocol.audit.record import Grade
from protocol.ids import PeerId
from protocol.pipeline.effects import CompareTask, RecomputeTask
from protocol.seat.showing import AGAIN, MAX_ASKERS, Showing
from protocol.wire.messages import AuditRequest, Plan
from protocol.wire.parts import PlanMember

STAGE, STEP, ATTEMPT, ERA = 1, 3, 2, 0
ME, ASKER, OTHER = PeerId("me"), PeerId("asker"), PeerId("other")
TENSORS = tensors_of(first=False, last=False)
IDS = tuple(range(24, 32))
BOUNDS = [0, 10, 10, 20]
SEGMENTS = (b"a" * 32, b"", b"b" * 32)
PLAN = Plan(STAGE, STEP, ATTEMPT, [PlanMember(ME, b"\xff"), PlanMember(ASKER, b"")], BOUNDS, [])


@pytest.fixture
def showing() -> Showing:
    made = Showing(ME, TENSORS)
    made.contributed(PLAN, frozenset(IDS))
    return made


def request(
    name: str, item: int, *, of: PeerId | None = None, step: int = STEP, attempt: int = ATTEMPT
) -> AuditRequest:
    return AuditRequest(STAGE, step, attempt, name, item, of)  # type: ignore[arg-type]


EVERYTHING = [
    request("list", 0),
    *(request(name, item) for item in IDS for name in TENSORS),
    request("segment", 0),
    request("segment", 2),
    request("segment", 0, of=ASKER),
]


def test_everything_is_shown_once(showing: Showing) -> None:
    assert all(showing.shows(ASKER, asked) for asked in EVERYTHING)


@pytest.mark.parametrize("order", ["round and round", "one after the other", "at random"])
def test_a_greedy_asker_is_shown_twice_as_much_and_a_little(showing: Showing, order: str) -> None:
    asks = EVERYTHING * 50
    if order == "one after the other":
        asks.sort(key=repr)
    elif order == "at random":
        random.Random(7).shuffle(asks)
    shown = sum(showing.shows(ASKER, asked) for asked in asks)
    assert shown <= 2 * len(EVERYTHING) + AGAIN
    assert showing.shows(OTHER, EVERYTHING[0]), "another asker has a bound of its own"


def test_one_payload_alone_is_shown_a_few_times(showing: Showing) -> None:
    assert sum(showing.shows(ASKER, EVERYTHING[1]) for _ in range(1000)) == 2 + AGAIN


def test_tensors_are_the_same_in_every_attempt(showing: Showing) -> None:
    """Nobody gets more of them by asking for them under other attempts."""
    for attempt in range(ATTEMPT + 1, ATTEMPT + 30):
        members = PLAN.members
        showing.contributed(Plan(STAGE, STEP, attempt, members, BOUNDS, []), frozenset(IDS))
    asks = [request("input", IDS[0], attempt=ATTEMPT + n) for n in range(30)] * 10
    assert sum(showing.shows(ASKER, asked) for asked in asks) == 2 + AGAIN


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
    assert not showing._seen


def test_what_is_remembered_is_bounded(showing: Showing) -> None:
    for number in range(3 * MAX_ASKERS):
        showing.shows(PeerId(f"asker {number}"), EVERYTHING[0])
    assert len(showing._seen) <= MAX_ASKERS
    showing.forget(STEP)
    assert not showing._seen
    assert not showing.shows(ASKER, EVERYTHING[0])


class LossyLine:
    """An honest auditor and what becomes of its audit, where a share of all is lost both ways."""

    def __init__(self, seed: int, loss: float, showing: Showing | None) -> None:
        self._seed, self._loss, self._showing = seed, loss, showing
        self._nth: Counter[tuple[object, ...]] = Counter()
        digests = {m: tuple(bytes([m, n]) * 16 for n in range(len(TENSORS))) for m in IDS}
        self._list = contents(digests, SEGMENTS)
        self.shown = 0

    def grade(self) -> Grade | None:
        """Return the grade of the whole audit, with a second for each payload on its way."""
        subject = Subject(
            member=ME,
            stage=STAGE,
            step=STEP,
            attempt=ATTEMPT,
            era=ERA,
            counted=frozenset(IDS),
            bounds=tuple(BOUNDS),
            segments=SEGMENTS,
            held=frozenset(),
            tensors=TENSORS,
            coarse=False,
        )
        audit = Audit(subject, PeerId("auditor"), 0.0, 0.0)
        todo = audit.committed(Statement(STAGE, STEP, ATTEMPT, ERA, root_of(self._list), ()), 0.0)
        now = 0.0
        while True:
            while todo:
                effect = todo.pop(0)
                match effect:
                    case AskList():
                        if self._comes(request("list", 0)):
                            now += 1.0
                            todo += audit.listed(self._list, now)
                    case Ask(_, key, digest):
                        if self._comes(request(key.name, key.item)):
                            now += 1.0
                            todo += audit.shown(key, digest, now)
                    case RecomputeTask():
                        todo += audit.recomputed(0.0, 0.0, now)
                    case CompareTask():
                        todo += audit.compared(0.0, 0.0, now)
                    case Judged():
                        return effect.grade
            due = audit.next_deadline()
            assert due is not None
            now = max(now, due)
            todo = audit.tick(now)

    def _comes(self, asked: AuditRequest) -> bool:
        """Whether what is asked for comes; lost are the same askings with and without a bound."""
        what = asked.name, asked.item
        self._nth[what] += 1
        chance = random.Random(repr((self._seed, what, self._nth[what])))
        if chance.random() < self._loss:
            return False  # the request is lost
        if self._showing is not None and not self._showing.shows(ASKER, asked):
            return False
        self.shown += 1
        return chance.random() >= self._loss


@pytest.mark.parametrize(("loss", "at_least"), [(0.0, 200), (0.1, 195), (0.3, 120)])
def test_an_honest_auditor_with_losses_comes_to_the_same_as_without_a_bound(
    loss: float, at_least: int
) -> None:
    """Where so much is lost each way; without a bound it fails when nothing came for 10 s."""
    succeeded = 0
    for seed in range(200):
        free = LossyLine(seed, loss, None).grade()
        showing = Showing(ME, TENSORS)
        showing.contributed(PLAN, frozenset(IDS))
        bound = LossyLine(seed, loss, showing).grade()
        assert bound is free, seed
        succeeded += bound is Grade.AGREES
    assert succeeded >= at_least
