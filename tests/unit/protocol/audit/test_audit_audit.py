"""One audit from the draw to its end: its table, and whatever a member may show instead."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S, Audit
from protocol.audit.commitment import (
    CONTENTS,
    MAX_TENSORS,
    Contents,
    Microbatch,
    contents,
    largest_list,
    root_of,
    tensors_of,
)
from protocol.audit.record import Grade
from protocol.audit.terms import AuditTerms
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.limits import MAX_MICROBATCHES_PER_STEP
from protocol.pipeline.effects import Outcome, PassTask, PayloadKey, ReduceTask
from protocol.pipeline.ledger import to_bitmap
from protocol.wire.messages import Commitment, Plan
from protocol.wire.parts import PlanMember

ME, MEMBER, THIRD = PeerId("me"), PeerId("member"), PeerId("third")
IDS = (30, 31, 33)
TENSORS = tensors_of(first=False, last=False)
DIGESTS = {m: tuple(bytes([m, n]) * 16 for n in range(len(TENSORS))) for m in IDS}
SEGMENTS = (b"a" * 32, b"", b"b" * 32)
LIST = contents(DIGESTS)
SHARES = {MEMBER: IDS, ME: (32, 34), THIRD: (35,)}
PLAN = Plan(
    1,
    3,
    2,
    [PlanMember(peer, to_bitmap(ids, 3, 10)) for peer, ids in SHARES.items()],
    [0, 10, 10, 20],
    [],
)
PARTS = {MEMBER: SEGMENTS[2], ME: b"m" * 32, THIRD: b"t" * 32}


def begun(encoded=LIST, *, counted=frozenset(IDS), segment=None, coarse=False):
    """An audit of a member that has signed a list, and what it says first."""
    said = {
        peer: Commitment(1, 3, 2, root_of(encoded), (*SEGMENTS[:2], part))
        for peer, part in PARTS.items()
    }
    terms = AuditTerms(coarse=coarse)
    of = {"me": ME, "tensors": TENSORS, "said": said, "here": {0}, "terms": terms}
    audit = Audit(PLAN, MEMBER, counted, segment, **of)
    return audit, audit.begin(0.0)


def listing(encoded=LIST, **changes):
    audit, effects = begun(encoded, **changes)
    assert wanted_by(audit, effects) == {key("list", 0): root_of(encoded)}
    return audit


def wanted_by(audit, effects):
    """What these ask the member for, with the digests."""
    asked = [effect.message for effect in effects if isinstance(effect, Send)]
    keys = [PayloadKey(3, of.name, of.item, 2, of.of or MEMBER) for of in asked]
    return {key: audit._waits.get(key) for key in keys}


def key(name, item):
    return PayloadKey(3, name, item, 2, MEMBER)


def show(audit, effects, now=1.0):
    """Show what is asked for; return what is wanted beside."""
    wanted = [effect for effect in effects if not isinstance(effect, Send)]
    for asked, digest in wanted_by(audit, effects).items():
        wanted += show(audit, audit.shown(asked, digest, now), now)
    return wanted


def compares():
    """An audit that has recomputed everything."""
    audit = listing()
    wanted = show(audit, audit.listed(LIST, 0.0))
    for microbatch in IDS:
        assert [task.microbatch for task in wanted] == [microbatch]
        wanted = show(audit, done(audit, wanted, 1e-8, 1e-7))
    return audit, wanted


def done(audit, wanted, *apart):
    """The worker has done the task that is wanted."""
    return audit.computed(wanted[0], Outcome(apart=(*apart, 0.0)[:2]), 2.0)


def graded(effects, grade):
    (judged,) = effects
    return judged.grade is grade and judged.words


def test_what_was_sent_to_us_before_is_not_asked_for():
    audit = listing()
    wanted = show(audit, audit.listed(LIST, 0.0))
    asked = []
    while wanted:
        effects = done(audit, wanted, 0.0)
        asked += wanted_by(audit, effects)
        wanted = [e for e in show(audit, effects) if isinstance(e, PassTask)]
    assert [k.item for k in asked if k.name == "segment"] == [2]  # 0 is here, 1 is empty


def test_another_list_than_was_signed_is_refused():
    other = contents(dict.fromkeys(IDS, DIGESTS[30]))
    assert graded(listing().listed(other, 0.0), Grade.REFUSED)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        LIST + b"\x00",
        contents({m: DIGESTS[m] for m in IDS[:2]}),
        contents(DIGESTS | {34: DIGESTS[30]}),
        contents(DIGESTS | {33: DIGESTS[33][:2]}),
        CONTENTS.encode(Contents(tuple(Microbatch(m, DIGESTS[m]) for m in reversed(IDS)))),
        CONTENTS.encode(Contents(tuple(Microbatch(m, DIGESTS[m]) for m in (*IDS, 33)))),
    ],
)
def test_a_list_of_anything_but_what_the_plan_counts_is_refused(encoded):
    audit = listing(encoded)
    assert graded(audit.listed(encoded, 0.0), Grade.REFUSED)


@given(st.binary(max_size=300))
def test_no_bytes_for_a_list_break_the_auditor(encoded):
    assert graded(listing(encoded).listed(encoded, 0.0), Grade.REFUSED)


def test_what_is_shown_must_be_what_was_committed_to():
    audit = listing()
    asked = next(iter(wanted_by(audit, audit.listed(LIST, 0.0))))
    assert audit.shown(key("input", 99), b"x" * 32, 0.0) == []  # nobody asked for it
    assert graded(audit.shown(asked, b"x" * 32, 0.0), Grade.REFUSED)


def test_a_tensor_counts_once():
    audit = listing()
    asked, digest = next(iter(wanted_by(audit, audit.listed(LIST, 0.0)).items()))
    audit.shown(asked, digest, 0.0)
    assert audit.shown(asked, b"x" * 32, 0.0) == []
    assert audit.listed(LIST, 0.0) == []


def test_our_own_slowness_is_not_held_against_anybody():
    audit = listing()
    show(audit, audit.listed(LIST, 0.0))
    assert audit.tick(math.inf) == []
    audit, _ = compares()
    assert audit.tick(math.inf) == []


@pytest.mark.parametrize(
    ("error", "grade"),
    [
        ("codec", Grade.REFUSED),
        ("shape", Grade.REFUSED),
        ("poisoned", Grade.REFUSED),
        ("oom", None),
        ("stale", None),
        ("internal", None),
    ],
)
def test_only_what_the_member_has_shown_is_held_against_it(error, grade):
    audit, [task] = compares()
    assert graded(audit.computed(task, Outcome(error=error), 3.0), grade)


@pytest.mark.parametrize(
    ("boundary", "deviation", "along", "coarse", "grade"),
    [
        (0.0, 0.0, 0.0, False, Grade.AGREES),
        (0.0, 2e-2, 2e-2, False, Grade.LIES),
        (0.5, 0.0, 0.0, False, Grade.LIES),
        (0.3, 0.0, 0.0, True, Grade.LIES),
        (0.0, math.nan, 0.0, False, Grade.LIES),
        (0.0, math.inf, 0.0, False, Grade.LIES),
        (0.0, 5e-3, 0.0, False, Grade.DOUBTFUL),
        (0.0, 0.0, 4e-3, False, Grade.DOUBTFUL),
        (0.0, 0.0, 4e-3, True, Grade.AGREES),
        (0.0, 0.0, 2e-2, True, Grade.DOUBTFUL),
        (0.0, 0.0, -0.25, True, Grade.LIES),
    ],
)
def test_the_worst_that_was_measured_decides(boundary, deviation, along, coarse, grade):
    audit = listing(coarse=coarse)
    wanted = show(audit, audit.listed(LIST, 0.0))
    while isinstance(wanted[0], PassTask):
        wanted = show(audit, done(audit, wanted, boundary))
        boundary = 0.0
    assert graded(done(audit, wanted, deviation, along), grade)


@pytest.mark.parametrize("count", [1, 20, MAX_MICROBATCHES_PER_STEP])
def test_a_list_is_as_long_as_said_before_at_most(count):
    of_one, last = tuple(bytes(32) for _ in range(MAX_TENSORS)), 2**40
    ids = range(last - count, last)
    encoded = contents(dict.fromkeys(ids, of_one))
    assert len(encoded) <= largest_list(count) < 1.01 * len(encoded) + 16
    assert len(encoded) < 2**22


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (True, False, ("grad_in", "tokens", "output")),
        (False, False, ("grad_in", "input", "tokens", "output", "grad_out")),
        (False, True, ("input", "tokens", "grad_out")),
        (True, True, ()),
    ],
)
def test_what_is_shown_of_a_microbatch(first, last, names):
    assert tensors_of(first=first, last=last) == names
    assert len(names) <= MAX_TENSORS


def part(peer, segment=2):
    return PayloadKey(3, "segment", segment, 2, peer)


def collecting():
    """An audit of a member that has contributed nothing, and owns a segment."""
    return begun(counted=frozenset(), segment=2)


def summing():
    audit, asked = collecting()
    [task] = show(audit, asked)
    return audit, task


def test_the_owner_is_asked_for_all_parts_but_ours_and_they_are_summed_in_order():
    audit, asked = collecting()
    assert wanted_by(audit, asked) == {part(peer): PARTS[peer] for peer in (MEMBER, THIRD)}
    assert audit.shown(part(THIRD), PARTS[THIRD], 1.0) == []
    [task] = audit.shown(part(MEMBER), PARTS[MEMBER], 1.0)
    parts = (part(MEMBER), part(ME), part(THIRD))
    sent = PayloadKey(3, "reduced", 2, 2, MEMBER)
    assert task == ReduceTask(3, 2, 2, parts, (3, 2, 1), compare_to=sent)


def test_a_sum_is_made_again_once_the_contribution_agrees():
    for deviation, asked in ((0.0, True), (0.5, False)):
        audit = listing(segment=2)
        wanted = show(audit, audit.listed(LIST, 0.0))
        while isinstance(wanted[0], PassTask):
            wanted = show(audit, done(audit, wanted, 0.0))
        effects = done(audit, wanted, deviation)
        assert all(isinstance(effect, Send) for effect in effects) == asked
        assert asked or graded(effects, Grade.LIES)


@pytest.mark.parametrize(
    ("deviation", "grade"),
    [
        (1e-7, Grade.AGREES),
        (5e-3, Grade.DOUBTFUL),
        (11.0, Grade.SUMS),
        (math.nan, Grade.SUMS),
    ],
)
def test_a_sum_is_judged_by_its_distance_from_ours(deviation, grade):
    audit, task = summing()
    assert graded(done(audit, [task], deviation), grade)


def test_no_part_is_taken_but_those_that_were_asked_for():
    audit, _ = collecting()
    for foreign in (part(ME), part(PeerId("stranger")), part(MEMBER, 0)):
        assert not audit.waits_for(foreign)
        assert audit.shown(foreign, b"o" * 32, 1.0) == []


def test_an_owner_that_is_silent_is_asked_again_and_then_given_up():
    audit, asked = collecting()
    assert audit.tick(ASK_AGAIN_S - 0.1) == []
    assert audit.tick(ASK_AGAIN_S) == asked
    assert audit.tick(2 * ASK_AGAIN_S - 0.1) == []
    assert audit.tick(2 * ASK_AGAIN_S) == asked
    assert graded(audit.tick(PATIENCE_S), Grade.REFUSED)


def test_what_comes_of_a_sum_too_early_or_late_changes_nothing():
    audit, _ = collecting()
    finished, task = summing()
    assert done(audit, [task], 11.0) == [], "nothing is summed yet"
    assert finished.tick(math.inf) == [], "the worker takes its time"
    assert graded(done(finished, [task], 0.0), Grade.AGREES)
    assert done(finished, [task], 11.0) == []
