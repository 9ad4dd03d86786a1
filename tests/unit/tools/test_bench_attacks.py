"""The table of liars: what is missed, measured next, shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import attacks
from tests.bench.attacks import HONEST, LAYOUTS, STEPS, Row, misses, missing, now, todo, wanted
from tests.bench.machines import this_machine
from tests.hostile.attack import attack_named

BEFORE = Row(
    attack=HONEST,
    layout="1x4",
    rule="centred-clipping",
    audits=0.03,
    steps=STEPS,
    reached=STEPS,
    lied_from=60,
    loss=2.5,
    rate=8.0,
    honest=4,
    alive=4,
    machine=this_machine(),
)
LIAR = replace(BEFORE, attack="work-contribution-zero", loss=2.52, rate=7.5, honest=3, alive=3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_wanted_row_is_an_attack_that_fits_the_layout(layout: str) -> None:
    for name in wanted(layout):
        attack = attack_named(name)
        assert not attack.within or attack.stage in (0, 1)


def test_what_is_asked_for_is_compared_with_the_honest_runs() -> None:
    assert misses(LIAR, [BEFORE]) == []
    assert misses(replace(LIAR, loss=2.53), [BEFORE]) == ["loss"]
    assert misses(replace(LIAR, rate=7.0), [BEFORE]) == ["rate"]
    stood = replace(LIAR, reached=99, loss=None, wrongly=("v1",), alive=2)
    assert misses(stood, [BEFORE])[0] == "stood at step 99"
    assert len(misses(stood, [BEFORE])) == 4


def test_measured_rows_of_the_same_setting_are_not_measured_again() -> None:
    assert BEFORE.setting == now("1x4")
    runs = list(todo([], ["1x4"], [BEFORE, LIAR], honest=1))
    assert runs == [(name, "1x4") for name in missing("1x4", [LIAR.attack])]
    older = replace(LIAR, rule="sum")
    assert (LIAR.attack, "1x4") in todo([], ["1x4"], [BEFORE, older], honest=1)
    assert list(todo([LIAR.attack], ["1x4"], [BEFORE, LIAR], honest=1)) == [(LIAR.attack, "1x4")]


def test_rows_of_every_machine_are_shown_each_beside_its_own_honest_runs() -> None:
    elsewhere = {"machine": "another one", "rate": 4.0}
    slow = [
        replace(BEFORE, **elsewhere),
        replace(LIAR, **elsewhere, attack="work-contribution-zero"),
    ]
    other = replace(LIAR, attack="work-random-gradients", rate=4.0)
    page = attacks.markdown([*slow, BEFORE, other])
    zero, noise = (
        next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        for name in ("work-contribution-zero", "work-random-gradients")
    )
    assert "| 1.00 |" in zero
    assert "| 0.50 |" in noise
    assert zero.endswith("| another one |")
