"""What ``create`` and ``plan`` measure: nothing large, nothing that a busy machine falsifies."""

from __future__ import annotations

import pytest

from client.cli.founding import manifest, pricing
from client.cli.founding.options import RunChoices
from client.cli.founding.presets import PRESETS
from model_zoo import cutting
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import whole_slice
from protocol.manifest import StageCost

TINY = PRESETS["tiny"].model
LARGE = PRESETS["llama-3.1-8b"].model
SPEED = 1e11
RUN = RunChoices(sequences=8)
DRAFT = manifest.drafted(RUN, TINY, 2)


def _parts(monkeypatch: pytest.MonkeyPatch, embedding_s: float) -> None:
    parts = (embedding_s, *[0.01] * TINY.layers, 0.002)
    monkeypatch.setattr(pricing, "machine_speed", lambda: SPEED)
    monkeypatch.setattr(pricing, "measure_costs", lambda *_, **__: parts)


def _priced() -> tuple[tuple[StageCost, ...], tuple[str, ...]]:
    found, notes = manifest.priced(DRAFT, manifest.measured_prices(TINY, RUN))
    return found.stages, notes


def test_a_part_that_seems_to_take_seconds_is_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was busy while the first part ran, and one layer would be cut off for it."""
    _parts(monkeypatch, embedding_s=2.0)
    costs, notes = _priced()
    assert [cost.layers for cost in costs] == [2, 2]
    counted, _ = manifest.priced(DRAFT, None)
    assert [cost.flops for cost in costs] == [cost.flops for cost in counted.stages]
    assert notes == (manifest.BUSY,)


def test_what_is_measured_near_the_estimate_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    _parts(monkeypatch, embedding_s=0.001)
    costs, notes = _priced()
    assert [cost.flops for cost in costs] == pytest.approx([0.021 * SPEED, 0.022 * SPEED])
    assert notes == ()


def test_the_least_of_several_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([1.5, 0.3, 0.1, 0.2])
    clock = [0.0]
    monkeypatch.setattr(cutting, "process_time", lambda: clock[0])

    def run() -> None:
        clock[0] += next(took)

    assert cutting.least_seconds(run, 3) == pytest.approx(0.1)


def test_a_large_model_is_counted_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running a layer and the head of 8B parameters takes minutes."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(pricing, "measure_costs", fail)
    monkeypatch.setattr(pricing, "machine_speed", lambda: SPEED)
    assert manifest.measured_prices(LARGE, RunChoices(sequences=1)) is None
    found, _ = manifest.priced(manifest.drafted(RunChoices(sequences=1), LARGE, 32), None)
    spec = LARGE.context * flops_per_token(LARGE, whole_slice(LARGE))
    assert sum(cost.flops for cost in found.stages) == pytest.approx(spec)
