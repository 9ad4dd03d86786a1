"""The composition of one peer: stewardship, belief in postings, misuse, and its own API."""

import msgspec
import pytest

from protocol.effects import Explain, Penalise, Publish
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, Stage
from protocol.matching import bodies, stewards
from protocol.matching.board import Board
from protocol.matching.bodies import Posting
from protocol.matching.effects import Assign, Effect
from protocol.matching.machine import Matching
from protocol.matching.seat import State
from protocol.matching.timing import LEASE_S
from protocol.wire.letters import Body, Mandate
from tests.support.matching_examples import NOW, WALL_S, manifest, member, peer, population, propose

BEACON = stewards.beacon_at(WALL_S)
POSTING = Posting(0, Mandate(BEACON, 5), int(WALL_S * 1000), 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1)


def machine(count: int = 1, stages: int = 1) -> Matching:
    matching = Matching(peer(0), manifest(stages), WALL_S - NOW)
    matching.update_members([member(n) for n in range(count)], NOW)
    return matching


def run(matching: Matching, seconds: float) -> list[Effect]:
    found: list[Effect] = []
    now = NOW
    while (now := max(now, matching.next_deadline(now))) < NOW + seconds:
        found += matching.tick(now)
    return found


def candidates(count: int) -> list[PeerId]:
    """Return the peers of a swarm of equals, the first steward of stage 0 first."""
    peers = [peer(n) for n in range(count)]
    return sorted(peers, key=lambda p: stewards.role_rank(BEACON, Stage(0), p))


def test_one_peer_alone_trains_one_stage_alone() -> None:
    matching = machine()
    effects = run(matching, 5)
    assert [e.stage for e in effects if isinstance(e, Assign)] == [0]
    said = [e.words for e in effects if isinstance(e, Explain)]
    assert said.count("every stage is covered; replicas by stage: 1") == 1
    assert matching.seats.home.state is State.FETCHING
    matching.serving(Stage(0), NOW + 5)
    assert matching.seats.home.state is State.SERVING


def test_only_the_assigned_stage_can_be_served_or_lost() -> None:
    matching = machine()
    with pytest.raises(LocalProtocolError):
        matching.serving(Stage(0), NOW)
    with pytest.raises(LocalProtocolError):
        matching.lost(Stage(0), "never had it", NOW)


def test_a_vacant_stage_is_taken_over_in_turn() -> None:
    """The first candidate listens a second; the others give it time before they step in."""
    order = candidates(4)
    for turn, name in enumerate(order):
        matching = Matching(name, manifest(1), WALL_S - NOW)
        matching.update_members([member(n) for n in range(4)], NOW)
        matching.tick(NOW)
        matching.tick(NOW + 1.5 + 2 * turn - 1.0)
        assert not matching.stewardships.held
        matching.tick(NOW + 1.5 + 2 * turn)
        assert bool(matching.stewardships.held) is (turn < stewards.STEWARDS)


def test_who_leaves_gives_up_its_stewardships_and_takes_none_again() -> None:
    matching = Matching(candidates(4)[0], manifest(1), WALL_S - NOW)
    matching.update_members([member(n) for n in range(4)], NOW)
    matching.tick(NOW)
    matching.tick(NOW + 1.5)
    assert matching.stewardships.held
    matching.leave(NOW + 2)
    assert not matching.stewardships.held
    matching.tick(NOW + 200)
    assert not matching.stewardships.held


def test_a_posting_is_believed_only_from_a_live_candidate() -> None:
    matching = machine(count=8)
    order = candidates(8)
    matching.receive_posting(order[-1], POSTING, NOW)
    matching.receive_posting(peer(99), POSTING, NOW)
    assert matching.context.board.notices(NOW) == {}
    matching.receive_posting(order[1], POSTING, NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].author == order[1]
    assert matching.context.board.notices(NOW + 61) == {}


def test_a_posting_from_before_its_author_was_known_counts_later() -> None:
    matching = machine()
    author = peer(3)
    matching.receive_posting(author, POSTING, NOW)
    assert matching.context.board.notices(NOW) == {}
    matching.update_members([member(0), member(3)], NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].author == author


def test_of_a_crowd_that_posts_a_few_are_kept_and_who_is_believed() -> None:
    matching, author = machine(), peer(3)
    crowd = msgspec.structs.replace(POSTING, mandate=Mandate(BEACON, 9))
    for number in range(100, 200):
        matching.receive_posting(peer(number), crowd, NOW)
    assert len(matching.context.board._kept[0]) == bodies.MAX_AUTHORS
    matching.update_members([member(0), member(3)], NOW)
    matching.receive_posting(author, POSTING, NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].author == author
    late = NOW + LEASE_S
    matching.receive_posting(peer(200), crowd, late)
    assert list(matching.context.board._kept[0]) == [peer(200)], "the others have expired"


def test_of_two_stewards_the_higher_term_and_then_the_lower_rank_counts() -> None:
    matching = machine(count=3)
    first, second = (candidate for candidate in candidates(3) if candidate != peer(0))
    matching.receive_posting(second, POSTING, NOW)
    matching.receive_posting(first, POSTING, NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].author == first
    higher = msgspec.structs.replace(POSTING, mandate=Mandate(BEACON, 6))
    matching.receive_posting(second, higher, NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].author == second


def test_a_steward_gives_way_to_a_higher_term() -> None:
    members = [member(n) for n in range(2)]
    matching = machine()
    run(matching, 3)
    assert matching.stewardships.held
    matching.update_members(members, NOW + 3)
    matching.receive_posting(peer(1), POSTING, NOW + 3)
    assert not matching.stewardships.held


def posted_by_the_successor(of: Posting) -> Posting:
    """The posting of the only member left after the steward of this record has gone."""
    matching = machine(count=2)
    matching.receive_posting(peer(1), of, NOW)
    matching.tick(NOW)
    matching.update_members([member(0)], NOW + 1)
    matching.tick(NOW + 1)
    [post] = [e for e in matching.tick(NOW + 2.5) if isinstance(e, Publish)][:1]
    posting = post.said
    assert isinstance(posting, Posting)
    return posting


def test_a_successor_does_not_follow_a_liar_to_the_end_of_the_numbers() -> None:
    """The epoch after the last one does not decode: the successor would be taken for hostile."""
    posting = posted_by_the_successor(msgspec.structs.replace(POSTING, epoch=2**31 - 1))
    assert (posting.mandate, posting.epoch) == (Mandate(BEACON, 6), 1)


def test_a_clock_set_back_takes_back_what_nobody_accepted() -> None:
    """Otherwise everything we say for three hours is stale, and our own steward deaf to us."""
    matching, three_hours = machine(), 3 * 3600.0
    matching.context.wall_offset_s = WALL_S - NOW + three_hours
    run(matching, 5)
    ahead = matching.context.number(NOW + 5)
    matching.context.wall_offset_s = WALL_S - NOW
    number = matching.context.number(NOW + 5)
    assert ahead - number >= three_hours * 1000 - 10
    run(matching, 25)
    assert matching.context.board.notices(NOW + 25)[Stage(0)].posting.mandate.beacon == BEACON
    assert matching.stewardships.held


def test_a_clock_set_back_a_little_lets_numbers_rise_on() -> None:
    matching = machine()
    run(matching, 5)
    before = matching.context.number(NOW + 5)
    matching.context.wall_offset_s = WALL_S - NOW - 60
    assert matching.context.number(NOW + 5) == before + 1
    assert matching.stewardships.held


def test_an_older_posting_of_the_same_author_changes_nothing() -> None:
    matching = machine(count=2)
    newer = msgspec.structs.replace(POSTING, epoch=9)
    matching.receive_posting(peer(1), newer, NOW)
    matching.receive_posting(peer(1), POSTING, NOW)
    assert matching.context.board.notices(NOW)[Stage(0)].posting.epoch == 9


def test_the_next_expiry_is_that_of_the_oldest_posting_that_counts() -> None:
    board = Board(2)
    board.observe(population([member(n) for n in range(3)]), WALL_S)
    for stage in range(2):
        board.pin(peer(stage), msgspec.structs.replace(POSTING, stage=stage), NOW + stage)
    assert board.next_expiry(NOW + 1) == NOW + LEASE_S
    assert board.next_expiry(NOW + LEASE_S) == NOW + 1 + LEASE_S


@pytest.mark.parametrize("said", [POSTING, propose(Mandate(BEACON, 1))])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"stage": 7}, "matching-stage-unknown"), ({"issued_ms": 1}, "matching-stale")],
)
def test_a_hostile_record_or_letter_is_penalised_and_survived(
    said: Body, changes: dict[str, int], reason: str
) -> None:
    matching, hostile = machine(count=2), msgspec.structs.replace(said, **changes)
    takes = matching.receive_posting if isinstance(said, Posting) else matching.receive
    [penalty] = [e for e in takes(peer(1), hostile, NOW) if isinstance(e, Penalise)]
    assert (penalty.peer, penalty.reason) == (peer(1), reason)


def test_members_that_are_no_candidates_cannot_fill_the_board() -> None:
    """Their mandate does not matter: a later one counts more only among possible stewards."""
    matching = machine(count=40)
    first, *others = candidates(40)
    matching.receive_posting(first, POSTING, NOW)
    for beacon in (2**40 - 1, BEACON + 1):
        later = msgspec.structs.replace(POSTING, mandate=Mandate(beacon, 5))
        population = matching.context.population
        liars = [p for p in others if p not in population.candidates(Stage(0), beacon)]
        for liar in liars[:20]:
            matching.receive_posting(liar, later, NOW)
        assert matching.context.board.notices(NOW)[Stage(0)].author == first


@pytest.mark.parametrize(
    ("ahead", "taken"), [(0, True), (1, True), (-1, True), (2, False), (-2, False), (2**39, False)]
)
def test_nobody_chooses_the_beacon_that_makes_it_a_candidate(ahead: int, taken: bool) -> None:
    """A mandate of a beacon far ahead would stand before every genuine one."""
    matching = machine(count=2)
    later = msgspec.structs.replace(POSTING, mandate=Mandate(BEACON + ahead, 1))
    found = matching.receive_posting(peer(1), later, NOW)
    refused = [e.reason for e in found if isinstance(e, Penalise)]
    assert refused == ([] if taken else ["matching-stale"])
    assert (matching.context.board.notices(NOW) != {}) is taken
