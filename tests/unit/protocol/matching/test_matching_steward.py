"""One steward, message by message: answers, idempotence, leases, and hostile bodies."""

import msgspec
import pytest

from protocol.effects import Publish
from protocol.ids import PeerId, Stage
from protocol.matching.board import Board
from protocol.matching.bodies import QUIET, Posting
from protocol.matching.context import Context
from protocol.matching.member import Member
from protocol.matching.steward import Steward
from protocol.matching.timing import LEASE_S
from protocol.wire import letters
from protocol.wire.letters import Hold, Mandate, Reject, Withdraw
from tests.support.matching_examples import NOW, WALL_S, answers, member, peer, population, propose

MANDATE = Mandate(int(WALL_S // 600), 1)
ME = peer(0)


def steward_of(members: list[Member], stages: int = 2) -> tuple[Steward, Context]:
    view = population(members, stages)
    context = Context(ME, view, Board(stages), WALL_S - NOW)
    context.board.observe(view, WALL_S)
    steward = Steward(context, Stage(0), MANDATE, 0)
    steward.start(NOW)
    return steward, context


def two_stages() -> tuple[Steward, Context]:
    """Four equal members and two stages: the quota is 2, so the third newcomer is one too many."""
    return steward_of([member(n) for n in range(4)])


def later(ms: int, *, bound: bool = False) -> letters.Propose:
    """Return a proposal that was issued so many milliseconds after the usual one."""
    first = propose(MANDATE, bound=bound)
    return msgspec.structs.replace(first, issued_ms=first.issued_ms + ms)


def test_a_proposal_is_held_and_posted() -> None:
    steward, _ = two_stages()
    effects = steward.receive(peer(1), propose(MANDATE), NOW + 1)
    [hold] = answers(effects)
    assert isinstance(hold, Hold)
    assert not hold.locked
    assert hold.asked_ms == propose(MANDATE).issued_ms
    [post] = [e for e in effects if isinstance(e, Publish)]
    posting = post.said
    assert isinstance(posting, Posting)
    assert (posting.replicas, posting.level, posting.locked_replicas) == (1, 1_000_000, 0)


def test_a_proposal_said_again_gets_the_same_answer_and_changes_nothing() -> None:
    steward, _ = two_stages()
    [first] = answers(steward.receive(peer(1), propose(MANDATE), NOW))
    posting = steward.posting
    [again] = answers(steward.receive(peer(1), later(1), NOW))
    assert steward.posting == posting
    assert isinstance(first, Hold)
    assert isinstance(again, Hold)
    assert (first.mandate, first.locked) == (again.mandate, again.locked)


def test_beyond_the_quota_the_least_preferred_is_turned_away_and_the_cutoff_rises() -> None:
    steward, _ = two_stages()
    for number in range(4):
        steward.receive(peer(number), propose(MANDATE), NOW)
    assert steward.posting.replicas == 2
    assert steward.posting.cutoff > 0
    worst = min(steward.pool.places.values(), key=lambda place: place.score)
    assert steward.posting.cutoff < worst.score


def test_a_late_copy_of_a_rejected_proposal_wins_no_place_in_a_later_epoch() -> None:
    steward, _ = two_stages()
    for number in range(3):
        steward.receive(peer(number), propose(MANDATE), NOW)
    [gone] = {peer(n) for n in range(3)} - set(steward.pool.places)
    left = next(iter(steward.pool.places))
    steward.receive(left, Withdraw(0, MANDATE, later(1).issued_ms, "leaving"), NOW)
    assert steward.posting.cutoff == 0
    assert steward.receive(gone, propose(MANDATE), NOW) == []
    assert isinstance(answers(steward.receive(gone, later(1), NOW))[0], Hold)


def test_a_lease_is_renewed_by_a_message_or_by_the_view_and_lapses_otherwise() -> None:
    steward, _ = steward_of([member(n, held=[0] if n == 3 else []) for n in range(6)])
    for number in (1, 2, 3):
        steward.receive(peer(number), propose(MANDATE, bound=True), NOW)
    steward.receive(peer(1), later(1, bound=True), NOW + LEASE_S - 1)
    steward.tick(NOW + LEASE_S + 1)
    assert set(steward.pool.places) == {peer(1), peer(3)}


def test_a_member_that_left_the_swarm_loses_its_place_at_once() -> None:
    steward, context = two_stages()
    steward.receive(peer(1), propose(MANDATE), NOW)
    context.population = population([member(0), member(2)])
    steward.update(NOW)
    assert not steward.pool.places


@pytest.mark.parametrize(
    ("here", "there", "gives"),
    [(3, (1, 2), True), (2, (1, 2), False), (3, (2, 2), False), (3, (1, 4), False)],
)
def test_one_with_more_than_two_replicas_gives_one_where_one_is_missing(
    here: int, there: tuple[int, int], gives: bool
) -> None:
    """As many stages as replicas are missing, those with most first; its quota falls, too."""
    steward, context = steward_of([member(n) for n in range(9)], stages=3)
    for number in range(here):
        steward.receive(peer(number), propose(MANDATE), NOW)
    for stage, held in enumerate(there, 1):
        author = context.population.candidates(Stage(stage), MANDATE.beacon)[0]
        level = held * 1_000_000
        said = (stage, MANDATE, int(WALL_S * 1000), 1, QUIET, level, held, 0, 0, level, level, 2, 0)
        context.board.pin(author, Posting(*said), NOW)
    quota = steward.posting.quota
    refused = [isinstance(body, Reject) for body in answers(steward._act(NOW))]
    assert any(refused) == gives
    assert (steward.posting.quota < quota) == gives


@pytest.mark.parametrize(
    ("sender", "body"),
    [
        (peer(1), propose(Mandate(0, 1))),
        (peer(77), propose(MANDATE)),
        (peer(2), later(4)),
        (peer(3), propose(MANDATE, bound=True)),
    ],
    ids=["old term", "stranger", "replay", "serves another stage as everybody knows"],
)
def test_hostile_bodies_change_nothing(sender: PeerId, body: letters.ToSteward) -> None:
    steward, _ = steward_of([member(0), member(1), member(2), member(3, held=[1])])
    steward.receive(peer(2), later(5), NOW)
    before = (steward.posting, dict(steward.pool.places))
    assert steward.receive(sender, body, NOW) == []
    assert (steward.posting, dict(steward.pool.places)) == before


def test_a_machine_that_is_too_small_is_told_so() -> None:
    steward, _ = steward_of([member(0), member(1, memory_bytes=1.0)])
    [answer] = answers(steward.receive(peer(1), propose(MANDATE), NOW))
    assert isinstance(answer, Reject)
    assert "too small" in answer.reason
