"""What a status says of a running matching and of members: seats, stages, shares, reasons."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from trio.testing import MockClock

from client.compute.process import Worker
from client.config import Settings
from client.control.snapshot import (
    CreditView,
    MatchesView,
    NetworkView,
    PeerView,
    ReplicaView,
    SeatView,
    StageView,
    WorkerView,
)
from client.node import status
from client.node.matches import describe_matching
from client.node.trust import _Known, audit_counts
from client.train.engine import Engine
from protocol.audit.draw import PROVEN, UNPROVEN
from protocol.audit.record import Grade, Record
from protocol.ids import PeerId, Stage
from tests.support.train_swarm import ADVERT, TestSwarm, Volunteer, open_swarm

SEATED = msgspec.structs.replace(ADVERT, seats=1)
"""An advert that the matching reckons with."""


async def matched_swarm(swarm: TestSwarm, count: int = 3) -> list[Volunteer]:
    """Volunteers that have found their stages by the real matching."""
    volunteers = [await swarm.add() for _ in range(count)]
    for volunteer in volunteers:
        volunteer.engine.describe(SEATED)
    await swarm.until(lambda: all(volunteer.engine.served for volunteer in volunteers))
    return volunteers


def described(volunteer: Volunteer) -> MatchesView:
    now = describe_matching(volunteer.engine)
    assert now is not None
    return now


async def test_a_status_says_who_holds_what_and_how_all_are_linked(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, steps=6) as swarm:
        first, last = await swarm.staffed(0, 1)
        me, other, idle = first.peer, last.peer, (await swarm.add()).peer
        await swarm.until_done()
        network = first.engine.network
        counted = replace(network.statistics(), tensor_bytes_out=7, refused={"a lie": 2})
        monkeypatch.setattr(network, "statistics", lambda: counted)
        links = {
            other: SimpleNamespace(session=SimpleNamespace(rtt_s=0.25), relay=None, punched=True),
            idle: SimpleNamespace(session=SimpleNamespace(rtt_s=None), relay=other, punched=False),
        }
        monkeypatch.setattr(network, "working", lambda: links)
        now, whole = first.shown(), 6 * swarm.manifest.microbatches_per_step
        assert (now.state, now.step, now.steps, now.tokens_per_s, now.eta_s) == (
            "done",
            6,
            6,
            0,
            None,
        )
        (seat,) = now.seats
        made = {"stage": 0, "version": 6, "state": "serving", "members": [me]}
        both = sorted([me, other])
        assert seat == SeatView(electors=both, for_s=seat.for_s, staying=0, **made)
        assert seat.for_s > 0
        for stage, peer in enumerate((me, other)):
            (there,) = now.stages[stage].replicas
            assert there == ReplicaView(peer=peer, version=6, state="serving", rate=there.rate)
            assert there.rate > 0
            view = StageView(stage=stage, layers=1, version=6, replicas=[there])
            assert now.stages[stage] == view
        assert {one.peer: one for one in now.peers} == {
            other: PeerView(peer=other, state="connected", rtt_ms=250.0, punched=True),
            idle: PeerView(peer=idle, state="connected", relay=other),
        }
        bytes_ = {"sent_bytes": counted.bytes_out, "received_bytes": counted.bytes_in}
        assert now.network == NetworkView(sent_tensor_bytes=7, links=2, **bytes_)
        assert [worker.stage for worker in now.workers] == [0, None]
        assert (now.counters.rounds_committed, now.counters.refused_by_reason) == (6, {"a lie": 2})
        tokens = whole * swarm.manifest.tokens_per_microbatch
        assert now.credit == CreditView(microbatches=whole, tokens=tokens)
        assert [(one.peer, one.standing) for one in now.trust] == [(other, "proven")]


def test_audits_are_counted_by_what_came_of_them() -> None:
    found = Counter[Grade | None]({Grade.AGREES: 5, Grade.LIES: 2, None: 3})
    records = [cast(Record, SimpleNamespace(results=results)) for results in (found, found)]
    counts = audit_counts(records)
    assert (counts.agree, counts.disagree, counts.unchecked, counts.drawn) == (10, 4, 6, 20)


async def test_a_volunteer_that_waits_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_swarm(tmp_path, stages=3) as swarm:
        alone = await swarm.add()
        assert describe_matching(alone.engine) is None, "it has not begun"
        alone.engine.describe(SEATED)
        await swarm.until(lambda: alone.engine.matching is not None and described(alone).stages)
        now = described(alone)
        assert (now.state in ("free", "proposed", "held"), alone.shown().seats) == (True, [])
        assert now.decides == [0, 1, 2]


async def test_everybody_tells_its_seat_and_its_reasons(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, stages=2, steps=1000) as swarm:
        for volunteer in await matched_swarm(swarm):
            [seat], now = volunteer.shown().seats, described(volunteer)
            assert (now.state, seat.state, seat.seat) == ("serving", "serving", 0)
            assert now.asked in (None, seat.stage)
            assert {stage.stage for stage in now.stages} == {0, 1}


ME, OTHER, THIRD = (PeerId(name) for name in ("me", "other", "third"))


@pytest.mark.parametrize(
    ("rates", "share"),
    [
        ({ME: 3.0, OTHER: 1.0}, 0.75),
        ({ME: 0.0, OTHER: 0.0, THIRD: 0.0}, 1 / 3),
        ({ME: 0.0, OTHER: 2.0}, 0.0),
        ({OTHER: 2.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_our_share_is_by_rates_and_by_heads_until_they_are_known(
    rates: dict[PeerId, float], share: float
) -> None:
    serving = [SimpleNamespace(peer=p, seat=SimpleNamespace(rate=r)) for p, r in rates.items()]
    roster = SimpleNamespace(serving=lambda stage: serving if stage == 1 else [])
    engine: Any = SimpleNamespace(
        membership=SimpleNamespace(roster=roster),
        signer=SimpleNamespace(peer=ME),
        manifest=SimpleNamespace(stage_count=4),
    )
    assert status._share_of(cast(Engine, engine), 1) == pytest.approx(share)
    held: Any = SimpleNamespace(held=[Stage(0), Stage(1)])
    assert status._own_share(cast(Engine, engine), held) == pytest.approx(share / 4)


def test_a_worker_that_has_just_died_takes_no_memory() -> None:
    running: Any = SimpleNamespace(pid=2**30)
    assert status._worker(cast(Worker, running), 1) == WorkerView(stage=1, pid=2**30)


def test_limits_that_limit_nothing_are_said_as_none() -> None:
    whole = status.limits_view(Settings(compute_share=100, vram_share=100), 5, 1)
    part = status.limits_view(Settings(compute_share=40, vram_share=60), 5, 1)
    assert (whole.compute_share, whole.vram_share) == (0, 0)
    assert (part.compute_share, part.vram_share, part.used_bytes) == (40, 60, 5)


@pytest.mark.parametrize(
    ("agreed", "words"),
    [
        ([], ""),
        ([0], f"; 0 of {UNPROVEN} audits until it is new no more"),
        ([0, UNPROVEN], f"; {UNPROVEN} of {PROVEN} audits until it is audited half as often"),
        ([PROVEN, 1], "; audited half as often as others"),
    ],
)
def test_audits_are_said_by_the_best_record_of_a_member(agreed: list[int], words: str) -> None:
    records = {OTHER: [SimpleNamespace(agreed=count) for count in agreed]}
    known: Any = SimpleNamespace(_records=records)
    assert _Known._audited(known, OTHER) == words


@pytest.mark.parametrize(
    ("true_of_it", "standing", "words"),
    [
        ("out charged aside proves", "expelled", "a lie"),
        ("charged aside proves", "charged", "has found it out, which is no majority"),
        ("aside proves", "aside", "stage 3 and is left out of it for a while"),
        ("proves named", "proven", "contain its work"),
        ("named is_new", "proven", "planned with it"),
        ("waits", "unproven", "everybody counts"),
        ("is_new", "probation", "one is enough"),
        ("is_new waits", "probation", "others are tried before it"),
    ],
)
def test_the_worst_that_is_known_of_a_member_is_its_standing(
    true_of_it: str, standing: str, words: str
) -> None:
    def tell(what: str) -> Any:
        return lambda peer: peer == OTHER and what in true_of_it.split()

    seat = SimpleNamespace(
        place=SimpleNamespace(stage=3),
        standing=SimpleNamespace(is_aside=tell("aside"), waits=tell("waits")),
        quorum=SimpleNamespace(names=tell("named")),
    )
    known: Any = _Known.__new__(_Known)
    known.out = {OTHER: "a lie"} if tell("out")(OTHER) else {}
    known.charged = {OTHER: [THIRD]} if tell("charged")(OTHER) else {}
    known._seats, known._records = [seat], {}
    known._history, known._is_new = SimpleNamespace(proves=tell("proves")), tell("is_new")
    found, said = known._standing(OTHER)
    assert found == standing
    assert said.endswith(words)
