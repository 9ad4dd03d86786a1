"""Workers that lie: their lies are sound on the wire, and audits see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from client.compute import passes
from client.compute.averaging import Averager
from client.compute.codec import decode
from client.compute.payload import HEADER
from protocol.audit.record import Grade
from tests.hostile import lying_worker
from tests.hostile.attack import all_attacks
from tests.hostile.attacks.work import WHAT
from tests.hostile.lying_worker import LIES
from tests.support.audited_stage import AuditedStage, Lie

PATCHED = (
    (passes, "run_back"),
    (passes, "losses_of_hidden"),
    (passes, "forward_backward"),
    (passes, "backward"),
    (Averager, "contribute"),
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
    ("name", "factor"), [("contribution x -10", -10.0), ("contribution zero", 0.0)]
)
def test_contributions_are_multiplied(name: str, factor: float) -> None:
    honest, told = _contributed(name)
    assert torch.allclose(told, factor * honest, atol=0.02 * float(honest.abs().max()) * 10)


def _contributed(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A segment as it would be contributed, and what is contributed instead."""
    lies = [False]
    LIES[name](lambda: lies[0])
    swarm = AuditedStage(1)
    swarm.compute()
    honest = swarm.contribute()[0][0]
    lies[0] = True
    told = swarm.contribute()[0][0]
    shape = (HEADER.unpack_from(honest)[8],)
    a, b = (decode(each, shape, direction="average") for each in (honest, told))
    return a, b


def test_a_lie_begins_with_its_file(tmp_path: Any) -> None:
    file = tmp_path / "lie"
    lies = lying_worker.begun(str(file))
    assert not lies()
    file.touch()
    assert lies()
    assert lying_worker.begun("")()
