"""What members commit to before they contribute, and what becomes of a round if they lie."""

import pytest
from msgspec.structs import replace

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.effects import ContributeTask, DecodeTask, Outcome, PayloadKey, ReduceTask
from protocol.pipeline.place import Place
from protocol.rounds.commitments import MAX_AUTHORS, NEWEST, Commitments
from protocol.rounds.member import Progress, RoundMember
from protocol.wire.messages import Commitment, Plan, Ready, Reduced, Segment
from protocol.wire.parts import PlanMember
from tests.support.effects import sent
from tests.support.rounds import Summed, member_of

ME, OTHER, THIRD = (PeerId(name) for name in ("me", "other", "third"))
BOUNDS = [0, 128, 256, 384]
MEMBERS = [PlanMember(ME, b"\1"), PlanMember(OTHER, b"\2"), PlanMember(THIRD, b"\4")]
PLAN = Plan(0, 0, 1, MEMBERS, BOUNDS, [])
DIGESTS = {
    peer: tuple(bytes([n, i]) * 16 for i in range(3)) for n, peer in enumerate((ME, OTHER, THIRD))
}


def said(peer: PeerId, **changes: object) -> Commitment:
    return replace(Commitment(0, 0, 1, bytes(32), DIGESTS[peer]), **changes)


def committed() -> Commitments:
    kept = Commitments(ME, active=True)
    for peer in DIGESTS:
        kept.take(peer, said(peer))
    return kept


def test_the_fingerprint_is_of_all_commitments_and_of_nothing_less() -> None:
    kept = committed()
    whole = kept.fingerprint(PLAN)
    assert whole
    assert kept.fingerprint(replace(PLAN, attempt=2)) is None
    partial = Commitments(ME, active=True)
    partial.take(ME, said(ME))
    assert partial.fingerprint(PLAN) is None
    assert partial.missing(PLAN) == [OTHER, THIRD]
    other = Commitments(ME, active=True)
    for peer in DIGESTS:
        other.take(peer, said(peer, root=b"x" * 32) if peer == OTHER else said(peer))
    assert other.fingerprint(PLAN) not in (whole, None)
    alone = replace(PLAN, members=PLAN.members[:1])
    for nobody, order in ((partial, alone), (Commitments(ME, active=False), PLAN)):
        assert (nobody.fingerprint(order), nobody.missing(order)) == (b"", [])


def test_the_first_word_stands_and_a_flood_displaces_the_sender_s_own_only() -> None:
    kept = committed()
    kept.take(OTHER, said(OTHER, root=b"x" * 32))
    assert kept.of(OTHER, 0, 1) == said(OTHER)
    for attempt in range(2, 2 + NEWEST):
        kept.take(OTHER, said(OTHER, attempt=attempt, step=10**6))
    assert kept.of(OTHER, 0, 1) is None
    assert kept.missing(PLAN) == [OTHER]


def test_who_comes_and_goes_displaces_nobody_that_goes_on() -> None:
    kept = committed()
    for number in range(3 * MAX_AUTHORS):
        invented = PeerId(f"invented {number}")
        kept.take(invented, said(OTHER))
        for step, peer in enumerate(DIGESTS):
            kept.take(peer, said(peer, step=number + step))
    assert all(kept.of(peer, number + step, 1) for step, peer in enumerate(DIGESTS))
    assert kept.of(PeerId("invented 0"), 0, 1) is None
    assert len(kept._kept) <= MAX_AUTHORS


@pytest.mark.parametrize("segments", [(), DIGESTS[OTHER][:2], (*DIGESTS[OTHER][:2], b"")])
def test_a_commitment_that_does_not_fit_the_plan_is_false(segments: tuple[bytes, ...]) -> None:
    kept = Commitments(ME, active=True)
    kept.take(OTHER, said(OTHER, segments=segments))
    assert kept.false(PLAN, {}) == [OTHER]


def test_so_is_one_to_something_else_than_was_contributed() -> None:
    kept = committed()
    came = {OTHER: {0: DIGESTS[OTHER][0], 1: b"x" * 32}}  # the second is no segment of ours
    assert kept.false(PLAN, came) == []
    assert kept.false(PLAN, {**came, THIRD: {0: b"x" * 32}}) == [THIRD]


def exchanging(kept: Commitments, of_third: bytes = DIGESTS[THIRD][0]) -> RoundMember:
    """A member that holds every sum of the plan, and this digest of what one contributed."""
    place = Place(ME, 0, 1, 3)
    member = member_of(place, 384, 0, summed=Summed({0}), commitments=kept)
    member.plan(OTHER, PLAN)
    member.computed(ContributeTask(0, 1, tuple(BOUNDS)), Outcome())
    for peer, digest in ((OTHER, DIGESTS[OTHER][0]), (THIRD, of_third)):
        member.take(peer, Segment(0, 0, 1, 0), digest)
    keys = tuple(part(peer) for peer in DIGESTS)
    member.computed(ReduceTask(0, 1, 0, keys, (1, 1, 1)), Outcome(digests=(b"r" * 32,)))
    for i, peer in ((1, OTHER), (2, THIRD)):
        member.take(peer, Reduced(0, 0, 1, i, 1.0), bytes([i]) * 32)
    return member


def part(peer: PeerId) -> PayloadKey:
    return PayloadKey(0, "segment", 0, 1, peer)


def decoded(member: RoundMember) -> list[object]:
    tasks = [DecodeTask(0, 1, i, part(peer), 1.0) for i, peer in ((1, OTHER), (2, THIRD))]
    return [effect for task in tasks for effect in member.computed(task, Outcome())]


def test_a_member_is_ready_only_with_every_commitment() -> None:
    kept = Commitments(ME, active=True)
    for peer in (ME, OTHER):
        kept.take(peer, said(peer))
    member = exchanging(kept)
    assert not sent(decoded(member), Ready)
    waits = member.awaited((), OTHER)
    assert waits == [("contribution", THIRD)], "so it can be seen who holds us up"
    kept.take(THIRD, said(THIRD))
    assert len(sent(member.exchange(), Ready)) == 1
    assert member.progress is Progress.READY


def test_who_contributes_something_else_than_it_signed_is_refused_once() -> None:
    kept = committed()
    member = exchanging(kept, b"x" * 32)
    effects = decoded(member)
    assert not sent(effects, Ready)
    assert [e.peer for e in effects if isinstance(e, Penalise)] == [THIRD]
    assert member.exchange() == []
    assert member.progress is Progress.EXCHANGING


@pytest.mark.parametrize("active", [True, False])
def test_so_is_who_sends_other_bytes_than_their_seal_says_where_an_audit_would_ask_for_them(
    active: bool,
) -> None:
    """Of the owner, who could show the same seal with bytes of its own. Without audits they count
    for nothing."""
    kept = committed() if active else Commitments(ME, active=False)
    member = exchanging(kept)
    keys = tuple(part(peer) for peer in DIGESTS)
    outcome = Outcome(digests=(b"r" * 32,), part=2, parts=(2,))
    effects = member.computed(ReduceTask(0, 1, 0, keys, (1, 1, 1)), outcome)
    assert bool(member.spoilers) == active
    assert [e.peer for e in effects if isinstance(e, Penalise)] == [THIRD] * active
