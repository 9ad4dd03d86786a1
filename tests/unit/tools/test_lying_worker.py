"""Workers that lie: their lies are sound on the wire, and audits see them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from client.compute import passes
from client.compute.averaging import Averager
from protocol.audit.record import Grade
from tests.hostile.attack import all_attacks
from tests.hostile.attacks.work import WHAT
from tests.hostile.lying_worker import HUGE, LIES
from tests.support.audited_stage import AuditedStage, Lie
from tests.support.codecs import decode
from tests.support.compute_rounds import accumulate, bounds_of, contribute_and_reduce, replicas

PATCHED = (
    (passes, "run_back"),
    (passes, "losses_of_hidden"),
    (passes, "backward"),
    (Averager, "contribute"),
    (Averager, "reduce"),
)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in PATCHED:
        monkeypatch.setattr(owner, name, getattr(owner, name))


def test_each_lie_is_an_attack() -> None:
    assert set(WHAT) < set(LIES)
    assert {attack.work for attack in all_attacks().values()} >= set(LIES)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    ("name", "grade"),
    [
        ("gradients x -10", Grade.LIES),
        ("gradients x -1", Grade.LIES),
        ("gradients x 1.02", None),
        ("random gradients", Grade.LIES),
        ("nothing computed", Grade.LIES),
    ],
)
def test_audits_see_what_is_computed_otherwise(stage: int, name: str, grade: Grade | None) -> None:
    lies = [False]
    LIES[name](lambda: lies[0])

    @contextmanager
    def lying(_: Any) -> Iterator[None]:
        lies[0] = True
        yield
        lies[0] = False

    swarm = AuditedStage(stage)
    swarm.train(2)
    assert swarm.audit().grade is Grade.AGREES
    found = swarm.audit(Lie(computes=lying)).grade
    assert found is grade or (grade is None and found is not Grade.AGREES)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("contribution x -10", -10.0),
        ("contribution zero", 0.0),
        ("false sums", -10.0),
        ("huge contribution", None),
    ],
)
def test_what_is_summed_is_the_lie(name: str, times: float | None) -> None:
    lies = [False]
    LIES[name](lambda: lies[0])
    workers = replicas(1, "fp32")
    accumulate(workers, 0)
    bounds, sums = bounds_of(workers[0], 1), list[torch.Tensor]()
    for attempt, lies[0] in enumerate((False, True)):
        (sent,), _ = contribute_and_reduce(workers, 0, attempt, bounds, [0])
        sums.append(decode(sent, bounds[1:], "fp32", "average"))
    honest, lied = sums
    assert torch.allclose(
        lied, honest * (HUGE / float(honest.abs().max()) if times is None else times)
    )
