"""A member of a round whose sum is secret: one attempt of a step is opened, whoever says what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from protocol.effects import Effect, Penalise, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import ApplyTask, Compute, ContributeTask, Fault, Outcome, Task
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.member import RoundMember
from protocol.rounds.plans import REFUSED
from protocol.secrecy.machine import Masking
from protocol.wire.messages import Dealing, Opening, Plan, Ready, Reduced, Segment
from protocol.wire.parts import PlanMember
from tests.support.round_members import Summed, digest, sent, tasks

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(4)]
ME, LEADER = PEERS[0], PEERS[1]
STAGE, STEP, SIZE = 0, 2, 512
HERE = 0.0


def plan_of(attempt: int = 1) -> Plan:
    """Every member counts one of the four microbatches, and owns one segment."""
    parts = [PlanMember(peer, to_bitmap({8 + n}, STEP, len(PEERS))) for n, peer in enumerate(PEERS)]
    return Plan(STAGE, STEP, attempt, parts, [0, 128, 256, 384, 512], [])


class Table:
    """Our member, and the masking of the three others, whose messages a test delivers."""

    def __init__(self) -> None:
        self.there = set(PEERS)
        self.others = {
            peer: Masking(peer, bytes([n]) * 32, lambda: self.there)
            for n, peer in enumerate(PEERS[1:], 1)
        }
        self.member = RoundMember(
            Place(ME, STAGE, 1, len(PEERS)),
            SIZE,
            STEP,
            accumulator=Summed({8}),
            loaded=True,
            masking=Masking(ME, b"me" * 16, lambda: self.there),
        )

    def deal(self, plan: Plan) -> list[object]:
        """The plan comes, and what all have dealt; return what our member does."""
        effects: list[object] = list(self.member.plan(LEADER, plan))
        for peer, machine in self.others.items():
            for effect in machine.follow(plan):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Dealing)
                if effect.peer == ME:
                    effects += self.member.on_dealing(peer, effect.message, HERE)
                else:
                    self.others[effect.peer].dealing(peer, effect.message)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Dealing):
                self.others[effect.peer].dealing(ME, effect.message)
        for machine in self.others.values():
            machine.false_dealers()
        return effects

    def ready(self, plan: Plan) -> bytes:
        """Everything up to Ready has come; return the digest of the sums."""
        [task] = [task for task in tasks(self.deal(plan)) if isinstance(task, ContributeTask)]
        assert len(task.masks) == len(PEERS)
        effects: list[object] = list(self.member.computed(task, Outcome()))
        for peer in PEERS[1:]:
            effects += self.member.segment(peer, Segment(STAGE, STEP, plan.attempt, 0))
        for n, peer in enumerate(PEERS[1:], 1):
            summed = Reduced(STAGE, STEP, plan.attempt, n, 0.0)
            effects += self.member.reduced(peer, summed, digest(n))
        while found := tasks(effects):
            done, effects = found, [e for e in effects if not isinstance(e, Compute)]
            for one in done:
                if not isinstance(one, ContributeTask):
                    effects += self.member.computed(one, Outcome(digests=(digest(9),)))  # type: ignore[arg-type]
        assert len(sent(effects, Ready)) == 1
        return self.member._digest

    def openings(self) -> list[tuple[PeerId, Opening]]:
        """What the others show of their shares."""
        found = []
        for peer, machine in self.others.items():
            for effect in machine.open():
                if isinstance(effect, Send) and effect.peer == ME:
                    assert isinstance(effect.message, Opening)
                    found.append((peer, effect.message))
        return found


def applied(effects: Sequence[object]) -> list[Task]:
    return [task for task in tasks(list(effects)) if isinstance(task, ApplyTask)]


def test_the_version_is_made_when_three_of_four_have_opened() -> None:
    table = Table()
    agreed = table.ready(plan_of())
    assert agreed != REFUSED
    opened = list(table.member.committed(1, agreed))
    assert len(sent(opened, Opening)) == 3
    assert applied(opened) == []
    (first, one), (second, two), _ = table.openings()
    assert applied(table.member.on_opening(first, one, HERE)) == []
    [task] = applied(table.member.on_opening(second, two, HERE))
    assert isinstance(task, ApplyTask)
    assert len(task.seeds) == len(PEERS)
    assert all(task.seeds)


def test_shares_may_come_before_the_commit_and_open_nothing_without_it() -> None:
    table = Table()
    agreed = table.ready(plan_of())
    for peer, said in table.openings():
        effects = table.member.on_opening(peer, said, HERE)
        assert not sent(list(effects), Opening)
        assert applied(effects) == []
    assert len(applied(table.member.committed(1, agreed))) == 1


def test_of_one_step_one_attempt_is_opened_whatever_is_committed_and_planned() -> None:
    table = Table()
    agreed = table.ready(plan_of())
    assert sent(list(table.member.committed(1, agreed)), Opening)
    assert table.member.committed(2, digest(7)) == []
    assert table.member.plan(LEADER, plan_of(2)) == []
    assert table.member.promised == 1
    assert not sent(list(table.member.committed(1, agreed)), Opening)


def test_after_a_later_promise_the_earlier_attempt_is_not_opened() -> None:
    table = Table()
    agreed = table.ready(plan_of())
    assert table.deal(plan_of(2))
    assert table.member.committed(1, agreed) == []


def test_a_commit_of_another_digest_opens_nothing() -> None:
    table = Table()
    table.ready(plan_of())
    effects = list(table.member.committed(1, digest(7)))
    assert not sent(effects, Opening)
    assert [type(effect) for effect in effects] == [Fault]


def test_members_that_were_dealt_different_hashes_are_not_ready_for_the_same() -> None:
    digests = []
    for lie in (False, True):
        table = Table()
        if lie:
            table.others[PEERS[3]] = Masking(PEERS[3], b"other" * 8, lambda: set(PEERS))
        digests.append(table.ready(plan_of()))
    assert digests[0] != digests[1]


def test_a_false_dealing_refuses_the_plan_and_names_the_dealer() -> None:
    table = Table()
    table.member.plan(LEADER, plan_of())
    for effect in table.others[PEERS[2]].follow(plan_of()):
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Dealing)
        if effect.peer == ME:
            bad = replace(effect.message, share=bytes(17))
    effects: list[Effect] = list(table.member.on_dealing(PEERS[2], bad, HERE))  # type: ignore[arg-type]
    [(to, said)] = sent(list(effects), Ready)
    assert to == LEADER
    assert isinstance(said, Ready)
    assert said.digest == REFUSED
    assert [e.peer for e in effects if isinstance(e, Penalise)] == [PEERS[2]]


def test_a_false_share_is_penalised_and_the_rest_open_the_sum() -> None:
    table = Table()
    agreed = table.ready(plan_of())
    table.member.committed(1, agreed)
    (liar, said), *rest = table.openings()
    bad = replace(said, shares=(bytes(17), *said.shares[1:]))
    effects = table.member.on_opening(liar, bad, HERE)
    assert [e.peer for e in effects if isinstance(e, Penalise)] == [liar]
    found = [applied(table.member.on_opening(peer, one, HERE)) for peer, one in rest]
    assert [len(each) for each in found] == [0, 1]


@pytest.mark.parametrize(("lost", "gives_up"), [(1, False), (2, True)])
def test_a_sum_that_too_few_are_left_to_open_is_given_up(lost: int, gives_up: bool) -> None:
    table = Table()
    agreed = table.ready(plan_of())
    table.member.committed(1, agreed)
    table.there -= set(PEERS[2 : 2 + lost])
    effects = [e for peer in PEERS[2 : 2 + lost] for e in table.member.forget(peer)]
    assert any(isinstance(effect, Fault) for effect in effects) is gives_up
