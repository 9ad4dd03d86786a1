"""A member whose worker still computes its version's hash: it contributes nothing before."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.pipeline.effects import ApplyTask, ContributeTask
from protocol.rounds.plans import plan_digest
from protocol.wire.messages import Ready
from tests.support.round_members import IDS, LEADER, ME, STEP, B, Table, plan, sent, tasks

STATE, OTHER = b"a" * 16, b"b" * 16


def hashing(*done: int) -> Table:
    table = Table(*done)
    table.member.start_step(STEP, hashing=True)
    return table


def test_it_contributes_once_the_hash_is_known() -> None:
    table = hashing(8, 9)
    order = replace(plan({ME: {8, 9}, B: {10, 11}}), state=STATE)
    assert tasks(table.member.plan(LEADER, order)) == []
    assert tasks(table.member.advance()) == []
    assert table.member.awaited((), LEADER) == []  # we are the late one
    [task] = tasks(table.member.hashed(STATE))
    assert isinstance(task, ContributeTask)


def test_it_leaves_if_its_siblings_have_another_state() -> None:
    table = hashing(8, 9)
    order = replace(plan({ME: {8, 9}, B: {10, 11}}), state=OTHER)
    table.member.plan(LEADER, order)
    [fault] = table.member.hashed(STATE)
    assert fault.kind == "behind"


def test_a_version_stays_until_its_hash_is_known() -> None:
    table = hashing(*IDS)
    order = plan({ME: set(IDS)})
    agreed = plan_digest(LEADER, order, [])
    assert sent(table.member.plan(LEADER, order), Ready) == []
    assert tasks(table.member.committed(1, agreed)) == []
    assert tasks(table.member.hashed(STATE)) == [ApplyTask(STEP)]
