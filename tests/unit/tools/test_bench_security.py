"""The measurement of protections: it goes on where it was, and compares with no protection."""

from __future__ import annotations

from dataclasses import replace

from tests.bench import security
from tests.bench.machines import this_machine
from tests.bench.security import WAYS, Result

OFF = Result(
    *("off", 44),
    tokens_per_s=6000.0,
    wire_bytes_per_step=5_000_000,
    cpu_s_per_1000=100.0,
    held_out_loss=2.5,
    machine=this_machine(),
)
AUDITS = replace(OFF, way="audits of 3 %", tokens_per_s=5700.0, cpu_s_per_1000=110.0, audits=7)


def test_the_ways_take_turns_and_what_was_measured_is_not_measured_again() -> None:
    turn = list(WAYS)
    assert list(security.missing([], 2)) == [*turn, *turn]
    assert list(security.missing([OFF], 2)) == [*turn[1:], *turn]
    elsewhere, disturbed = replace(OFF, machine="another machine"), replace(OFF, others=0.5)
    assert list(security.missing([elsewhere, disturbed], 1)) == turn


def test_the_page_has_medians_and_their_ratios_to_no_protection() -> None:
    slow, fast = (replace(AUDITS, tokens_per_s=rate) for rate in (3000.0, 9000.0))
    elsewhere = replace(OFF, tokens_per_s=1.0, machine="another machine")
    disturbed = replace(AUDITS, tokens_per_s=1.0, others=0.5)
    text = security.markdown([elsewhere, slow, OFF, disturbed, AUDITS, fast])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[2].startswith("| off | 1 | 6,000 | 5.00 | 100.0 | 2.5000 | 0 |")
    assert lines[3].startswith(
        "| audits of 3 % | 3 | 5,700 (0.95 x) | 5.00 (1.00 x) | 110.0 (1.10 x)"
    )
    assert "Not shown: 1 runs of other machines." in text


def test_every_way_gets_a_row_of_the_page_of_all() -> None:
    found = list(security.rows([OFF, AUDITS]))
    assert [one.table for one in found] == ["security"] * 2
    assert found[1].value.startswith(
        "5,700 (0.95 x); 5.00 (1.00 x); 110.0 (1.10 x); 2.5000 (1.00 x)"
    )
