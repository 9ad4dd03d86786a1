"""The partners' joint evaluation: medians, agreement, and the small influence of a few."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, Stage, rank
from protocol.matching.member import Member
from protocol.membership.measured import Measurements, Partner, StageRate
from protocol.reputation.belief import believe, two_digits, weigh
from protocol.reputation.beliefs import MAX_REPORTERS, Beliefs
from tests.support.protocol_examples import manifest, peer

COSTS = manifest(stages=4).stages
HERE = frozenset({Stage(1)})
F = COSTS[1].flops
CLAIM = Member(peer(1), 0.0, 2 * F, 1e7, 1e7, 1e12, HERE)
"""Of two microbatches per second."""


def report(rate: float, seconds: int = 300, stage: int = 1, by: int = 9) -> Partner:
    return Partner(peer(by), (StageRate(stage, round(1e6 * rate), seconds),))


def belief_of(*reports: Partner, claim: Member = CLAIM, serving: frozenset[Stage] = HERE) -> Member:
    return believe(replace(claim, held=serving), reports, COSTS)


def claims(*numbers: int) -> list[Member]:
    return [replace(CLAIM, peer=peer(number)) for number in numbers]


@pytest.mark.parametrize(
    ("samples", "value"),
    [
        ([], None),
        ([(100, 500)], None),  # one word is none
        ([(100, 500), (104, 500)], 100),
        ([(100, 500), (900, 500)], None),  # one of two lies, and nobody can say which
        ([(100, 500), (104, 500), (9000, 3600)], 104),
        ([(1, 3600), (100, 500), (104, 500)], 100),
        ([(1, 3600), (100, 20), (104, 20)], 100),  # however loud the one is
        ([(50, 500), (100, 500), (101, 500), (200, 500), (400, 500)], None),  # two of five
        ([(100, 0), (100, 0)], None),
        ([(0, 300), (0, 300)], 0),
    ],
)
def test_verdicts(samples: list[tuple[int, int]], value: int | None) -> None:
    found = weigh(Stage(1), [StageRate(1, *sample) for sample in samples])
    assert (None if found is None else found.rate) == value


@given(st.integers(0, 10**13))
def test_two_digits_is_near_and_stays(value: int) -> None:
    rounded = two_digits(value)
    assert abs(rounded - value) <= 0.05 * value
    assert two_digits(rounded) == rounded


def test_a_claim_stands_while_partners_measure_about_as_much() -> None:
    belief = belief_of(report(1.8), report(2.1))
    assert belief.flops == CLAIM.flops
    assert belief.measured_s == 300.0


@pytest.mark.parametrize(("seconds", "corrected"), [(60, False), (119, False), (120, True)])
def test_a_claim_far_above_the_measurement_is_lowered_after_two_minutes(
    seconds: int, corrected: bool
) -> None:
    belief = belief_of(report(0.4, seconds), report(0.41, seconds))
    assert (belief.flops == pytest.approx(0.4 * F, rel=0.05)) is corrected
    assert belief.measured_s < 300, "still capped by the matching"


def test_two_stages_add_up() -> None:
    both = frozenset({Stage(1), Stage(2)})
    halves = [report(1), report(1), report(1, stage=2), report(1, stage=2)]
    assert belief_of(*halves, serving=both).flops == CLAIM.flops
    third = belief_of(*(report(0.2, stage=s) for s in (1, 1, 2, 2)), serving=both)
    assert third.flops == pytest.approx(0.4 * F)


def test_one_of_two_stages_says_nothing_of_the_whole() -> None:
    belief = belief_of(report(0.4), report(0.4), serving=frozenset({Stage(1), Stage(2)}))
    assert (belief.flops, belief.measured_s) == (CLAIM.flops, 0.0)


def test_a_move_does_not_wash_a_liar() -> None:
    belief = belief_of(report(0.4), report(0.4), serving=frozenset({Stage(3)}))
    assert belief.flops == pytest.approx(0.4 * F)


def test_a_slow_line_does_not_make_a_slow_processor() -> None:
    slow = replace(CLAIM, uplink_bytes_per_s=40_000.0)
    belief = belief_of(report(0.4), report(0.4), claim=slow)
    assert belief == replace(slow, measured_s=300.0)
    assert belief_of(report(0.4), report(0.4)).flops < CLAIM.flops, "its line would allow more"


def test_reports_count_only_from_where_they_can_be_made() -> None:
    beliefs = Beliefs(COSTS)
    liar, far, near = peer(1), peer(2), peer(3)
    held = {liar: 0, far: 3, near: 1}
    members = [replace(CLAIM, peer=p, held=frozenset({Stage(s)})) for p, s in held.items()]
    slander = Partner(liar, (StageRate(0, 1, 3600),))
    for reporter in (far, near, peer(4)):  # the last one is no member at all
        beliefs.reports[reporter] = Measurements((slander,))
    assert beliefs.revise(members) == []


def test_what_makes_no_sense_in_a_report_counts_nothing() -> None:
    beliefs = Beliefs(COSTS)
    twice = StageRate(1, 1, 3600)
    last = replace(CLAIM, peer=peer(2), held=frozenset({Stage(3)}))
    beliefs.reports[peer(3)] = Measurements((Partner(peer(1), (twice, twice)),))
    beliefs.reports[peer(2)] = Measurements((Partner(peer(1), (StageRate(4, 1, 3600),)),))
    beliefs.reports[peer(4)] = Measurements((Partner(PeerId("nobody"), (twice,)),))
    assert beliefs.revise([*claims(1, 3, 4), last]) == []


def test_a_crowd_of_reporters_counts_no_more_than_its_bound() -> None:
    beliefs = Beliefs(COSTS)
    about, *reporters = claims(*range(1, 60))
    counted = sorted(reporters, key=lambda one: rank("reporter", about.peer, one.peer))
    for number, reporter in enumerate(counted):
        rate = 400_000 if number < MAX_REPORTERS else 4_000_000
        found = Measurements((Partner(about.peer, (StageRate(1, rate, 600),)),))
        beliefs.reports[reporter.peer] = found
    (revised,) = beliefs.revise([about, *reporters])
    assert revised.flops == pytest.approx(0.4 * F)


def test_the_newest_report_counts_and_nobodys_word_about_itself() -> None:
    beliefs = Beliefs(COSTS)
    members = claims(1, 2, 3)
    slander = Measurements((report(0.4, by=1),))
    for reporter in (1, 2):
        beliefs.reports[peer(reporter)] = slander
    assert beliefs.revise(members) == [], "of two words one was its own"
    beliefs.reports[peer(3)] = slander
    beliefs.reports[peer(2)] = Measurements(())
    assert beliefs.revise(members) == []


def test_an_expired_report_is_forgotten_and_a_claim_corrected_stays_so() -> None:
    beliefs = Beliefs(COSTS)
    members = claims(1, 2, 3)
    for reporter in members[1:]:
        beliefs.reports[reporter.peer] = Measurements((report(0.4, by=1),))
    (revised,) = beliefs.revise(members)
    assert CLAIM.flops / revised.flops > 4
    bolder = replace(CLAIM, flops=99 * F)
    assert beliefs.of(bolder).flops < F, "a new claim does not undo a correction"
    del beliefs.reports[peer(2)]
    (revised,) = beliefs.revise(members)
    assert revised.flops == CLAIM.flops
    assert beliefs.revise(members) == []
