"""How a stage is acquired: joined, begun, or waited for; and which admission counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from msgspec.structs import replace

from protocol.held_stage.acquisition import Begin, Join, Wait, admission, way_in
from protocol.ids import PeerId, peer_id_from_key
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Lineage
from protocol.view import Replica, SwarmView
from protocol.wire.fields import ERA_BITS
from protocol.wire.messages import Admit, Commit
from protocol.wire.parts import Decree

ME, OTHER, THIRD = (peer_id_from_key(bytes([n]) * 32) for n in range(3))
AT_20 = Lineage(1 << ERA_BITS, 20, electors=(ME,))


@dataclass
class Known:
    """What a recovery machine would say."""

    lineage: Lineage = AT_20
    open: bool = True
    may: bool = False
    passed: bool = False
    liars: set[PeerId] = field(default_factory=set)

    @property
    def evidence(self) -> Known:
        return self

    @property
    def known(self) -> Known:
        return self

    def vetted(self, view: SwarmView) -> SwarmView:
        return SwarmView.of([[r for r in s if r.peer not in self.liars] for s in view.stages])

    def may_begin(self, stage: int, now: float) -> bool:
        return self.may

    def has_passed(self, stage: int) -> bool:
        return self.passed


def way(known: Known, *stages: list[Replica]) -> Join | Begin | Wait:
    return way_in(0, ME, SwarmView.of(stages), cast(Recovery, known), 100.0)


def at(peer: PeerId, version: int) -> Replica:
    return Replica(peer, version, True)


class TestTheWayIn:
    def test_who_is_past_the_beginning_is_joined(self) -> None:
        past = [at(OTHER, 21), at(THIRD, 20), at(ME, 22)]
        assert way(Known(), past, []) == Join((OTHER, THIRD))
        assert isinstance(way(Known(open=False), past, []), Wait)
        assert isinstance(way(Known(), [at(OTHER, 20), at(ME, 22)], []), Wait), "nobody else is"
        assert isinstance(way(Known(liars={OTHER}), past[:1], []), Wait)

    def test_where_the_swarm_has_gone_on_nobody_begins_alone(self) -> None:
        gone_on = [at(OTHER, 25), at(THIRD, 25)]
        assert isinstance(way(Known(may=True), [], gone_on), Wait)
        assert way(Known(may=True), [], [at(OTHER, 20)]) == Begin(Known().lineage)
        assert way(Known(may=True), [at(OTHER, 20)], gone_on) == Begin(Known().lineage)

    @pytest.mark.parametrize(
        ("known", "why"),
        [
            (Known(open=False), "finding out where the run stands"),
            (Known(), "finding out where the run stands"),
            (Known(passed=True), "waiting for somebody who has the state of stage 0"),
        ],
    )
    def test_what_is_waited_for_is_said(self, known: Known, why: str) -> None:
        assert way(known, [], []) == Wait(why)


DECREE = Decree(1, bytes(32), (OTHER,), (OTHER,), 0.0)
COMMIT = Commit(0, 23, 1, OTHER, DECREE, (), era=AT_20.era)
ADMIT = Admit(0, 24, ME, [OTHER, THIRD], COMMIT, bytes(32), era=AT_20.era)
SERVED = SwarmView.of([[at(OTHER, 25), Replica(THIRD, 25, False)], [at(THIRD, 25)]])


class TestAdmission:
    def test_only_donors_that_serve_count(self) -> None:
        counts = admission(0, OTHER, ADMIT, SERVED, cast(Recovery, Known()))
        assert counts == replace(ADMIT, donors=[OTHER])

    @pytest.mark.parametrize(
        ("sender", "change"),
        [
            (THIRD, {}),
            (OTHER, {"stage": 1}),
            (OTHER, {"era": AT_20.era + 1}),
            (OTHER, {"donors": [THIRD]}),
            (OTHER, {"version": 23, "commit": replace(COMMIT, step=22)}),
            (OTHER, {"commit": replace(COMMIT, step=24)}),
            (OTHER, {"commit": replace(COMMIT, stage=1)}),
            (OTHER, {"commit": replace(COMMIT, era=AT_20.era + 1)}),
        ],
    )
    def test_what_does_not_count(self, sender: PeerId, change: dict[str, object]) -> None:
        admit = replace(ADMIT, **change)
        assert admission(0, sender, admit, SERVED, cast(Recovery, Known())) is None

    def test_who_is_not_believed_admits_nobody(self) -> None:
        known = cast(Recovery, Known(liars={OTHER}))
        assert admission(0, OTHER, ADMIT, SERVED, known) is None
