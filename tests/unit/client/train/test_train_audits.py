"""Audits and contradictions among real engines: honest replicas agree, liars are expelled."""

from typing import Any

import pytest

from client.compute.payload import seal
from client.node.trust import audit_counts
from client.views.report import report
from protocol.ids import PeerId
from protocol.pipeline.effects import ContributeTask
from protocol.wire.messages import AuditRequest, Message, Segment, Shown
from tests.support.cases import usual
from tests.support.local_worker import LocalWorker
from tests.support.train_swarm import Volunteer, open_swarm


def expelled(volunteer: Volunteer) -> set[PeerId]:
    """Whom a volunteer has cut off, with the reasons on its disk and in its status."""
    return {verdict.culprit for verdict in volunteer.engine.membership.verdicts}


def work(volunteer: Volunteer) -> int:
    """The microbatches that it computed in its stages."""
    return sum(commit.counted for commit in volunteer.engine.commits)


def lie(worker: LocalWorker, factor: float) -> None:
    """Contribute so many times the gradient from now on."""
    executor = worker._executor
    execute, spoilt = executor.execute, set[int]()

    def lying(request: Any, payloads: Any, answer: Any) -> None:
        if isinstance(request, ContributeTask) and request.step not in spoilt:
            spoilt.add(request.step)
            executor._opened.replica.gradient_sum.mul_(factor)
        execute(request, payloads, answer)

    executor.execute = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("stages", "changes"),
    usual(
        2,
        [
            ((0, 0, 0, 1), {"averaging_codec": "fp32"}),
            ((0, 0, 1, 1), {}),
            ((0, 1, 1, 1), {}),
            ((0, 1, 1, 1), {"aggregation": "centred-clipping"}),
        ],
    ),
)
async def test_honest_replicas_agree(
    tmp_path, stages: tuple[int, ...], changes: dict[str, Any]
) -> None:
    async with open_swarm(tmp_path, audit=50, steps=12, **changes) as swarm:
        volunteers = await swarm.staffed(*stages)
        await swarm.until_done()
        if "aggregation" not in changes:  # what it clips is not in the sum of one process
            swarm.assert_exact()
        found = [audit_counts(v.held_stages.audits.records.values()) for v in volunteers]
        assert sum(each.agree for each in found) >= 6
        assert not sum(each.disagree for each in found)
        for volunteer in volunteers:
            assert not len(volunteer.engine.membership.verdicts)
            assert not volunteer.refused
        for volunteer, stage in zip(volunteers, stages, strict=True):
            told = volunteer.shown()
            results = told.audits.results
            assert results.disagree == 0
            siblings = {v.peer for v, of in zip(volunteers, stages, strict=True) if of == stage}
            standing = {one.peer: one.standing for one in told.trust}
            assert {standing[peer] for peer in siblings & standing.keys()} <= {"proven"}
            # a replica beside ours that has sent us nothing has shown no work yet
            assert set(standing.values()) <= {"proven", "probation"}
            assert sum(one.audits.drawn for one in told.trust) == results.drawn
            assert "not agree" not in report(None, told)
            told_of = [one for one in volunteer.events if one.words.startswith("audit of")]
            assert {event.level for event in told_of} <= {"debug"}, "news is what does not agree"


@pytest.mark.parametrize("factor", usual(1, [-10.0, 0.0]))
async def test_a_liar_is_expelled_and_the_run_goes_on(tmp_path, factor: float) -> None:
    async with open_swarm(tmp_path, audit=20, steps=60) as swarm:
        first, *replicas = await swarm.staffed(0, 1, 1, 1)
        await swarm.until(lambda: first.step(0) >= 3)
        # Two of three can do all the work of one stage before; who does none cannot lie.
        honest, other, liar = sorted(replicas, key=work)
        for worker in liar.workers:
            lie(worker, factor)
        members = (first, honest, other)
        await swarm.until(lambda: all(expelled(v) == {liar.peer} for v in members))
        step = first.step(0)
        assert step < 50
        await swarm.until(lambda: first.step(0) >= step + 5)
        assert all(expelled(v) == {liar.peer} for v in members)
        assert not swarm.hub.linked(liar.peer)

        now = honest.shown()
        assert [out.peer for out in now.expelled] == [liar.peer]
        assert "of stage 1; found by 2 members" in now.expelled[0].reason
        out = next(one for one in now.trust if one.peer == liar.peer)
        assert out.standing == "expelled"
        assert out.words == now.expelled[0].reason
        assert out.audits.disagree == now.audits.results.disagree > 0
        assert "contribution" in out.fault
        assert [one.standing for one in now.trust if one.peer == other.peer] == ["proven"]
        assert not now.audits.open, "what the liar says of who has found it out"
        assert "not agree" in report(None, now)
        swarm.vanish(liar)
        later = await swarm.add(home=honest.disk.parent)
        assert expelled(later) == {liar.peer}, "as after a restart"


async def test_a_newcomer_gets_a_bounded_share_that_grows_as_its_siblings_audit_it(
    tmp_path,
) -> None:
    """That it is bounded no more once most have done so is tested where nothing depends on how soon
    an audit is answered: steps are short here. Of many microbatches whoever was slow at first gets
    some, too, for which it can be audited."""
    async with open_swarm(tmp_path, audit=50, steps=24, microbatches=16) as swarm:
        first, *_ = await swarm.staffed(0, 1, 1, 1)
        await swarm.until(lambda: first.step(0) >= 3)
        [driver] = first.held_stages.drivers()
        roster = driver.seat.standing
        assert not roster.bound(1).named, "all have begun together"
        later = await swarm.add(1)
        await swarm.until(lambda: later.peer in roster.bound(1).named)
        assert roster.bound(1).most(later.peer, 8) == 2
        await swarm.until(lambda: roster.bound(1).named.get(later.peer, 3) > 0)
        assert not roster.bound(1).named or roster.bound(1).most(later.peer, 8) >= 4
        assert later.serves(1)
        await swarm.until_done()
        swarm.assert_exact()


async def test_asking_for_what_was_dropped_or_never_was_harms_nobody(tmp_path) -> None:
    async with open_swarm(tmp_path, audit=20, steps=14) as swarm:
        first, asked, asker, third = await swarm.staffed(0, 1, 1, 1)
        await swarm.until(lambda: first.step(0) >= 9)
        wanted: list[tuple[Shown, int]]
        wanted = [("list", 0), ("input", 2), ("segment", 1), ("segment", 999), ("grad_in", 10**6)]
        for name, item in wanted:
            for step in (1, 13):
                asker.engine.send(asked.peer, AuditRequest(1, step, 1, name, item))
        await swarm.until_done()
        assert not any(map(expelled, (first, asked, asker, third)))
        assert swarm.hub.linked(asker.peer)
        assert asked.engine.internal_errors == 0


# --- a member signs one contribution and sends another one ------------------------------------


def another(_to: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
    """Contribute sound payloads of other numbers than were committed to."""
    if not isinstance(message, Segment):
        return message, payload
    damaged = bytearray(payload)
    damaged[-1] ^= 1
    seal(damaged)
    return message, bytes(damaged)


async def test_who_sends_something_else_than_it_signed_is_refused_and_voted_out(tmp_path) -> None:
    """Nobody else can be shown what it sent: a majority has to say so."""
    async with open_swarm(tmp_path, audit=20, steps=60) as swarm:
        *honest, liar = await swarm.staffed(0, 1, 1, 1)
        first = honest[0]
        await swarm.until(lambda: first.step(0) >= 3)
        liar.distort(another)
        await swarm.until(lambda: all(expelled(one) == {liar.peer} for one in honest))
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 5)
