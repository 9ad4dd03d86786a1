"""Accounts and the board: roll-backs, newcomers, those who leave, and liars."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.contributions.account import MAX_MEMBERS, StageAccount
from protocol.contributions.board import MAX_KEPT, Board, Vouched
from protocol.contributions.record import Counted, Counts, StageCounts
from protocol.ids import PeerId
from tests.support.protocol_examples import peer

A, B, C, D, E = map(peer, range(1, 6))


def counts(version: int, said: dict[PeerId, int], stage: int = 0) -> StageCounts:
    return StageCounts(stage, version, tuple(Counted(p, n) for p, n in sorted(said.items())))


def board_of(said: dict[PeerId, dict[PeerId, int]], board: Board | None = None) -> dict[str, tuple]:  # type: ignore[type-arg]
    """Return (vouched, vouchers, unvouched) by member."""
    board = board or Board()
    records = {author: Counts((counts(100, of),)) for author, of in said.items()}
    board.update(records, lambda _stage, author: author in said, lambda one: one in (A, B, C, D, E))
    lines = board.contributors(lambda _peer: False)
    return {one.peer: (one.microbatches, one.vouchers, one.unvouched) for one in lines}


# --- the account -------------------------------------------------------------------------------


def test_a_step_that_is_done_again_counts_once() -> None:
    account = StageAccount(0, per_step=6)
    for version in (1, 2, 3):
        account.closed(version, {A: 4, B: 2})
    for version in (2, 3):  # rolled back to version 1, with other shares
        account.closed(version, {A: 1, B: 5})
    assert (account.counts.get(A, 0), account.counts.get(B, 0), account.missing) == (12, 6, 0)
    account.closed(4, {B: 6})
    assert (account.counts.get(A, 0), account.counts.get(B, 0)) == (12, 12)


def test_a_newcomer_takes_over_what_two_say_and_no_more_than_is_missing() -> None:
    account = StageAccount(0, per_step=6)
    account.closed(11, {A: 3, B: 3})
    assert account.missing == 60
    account.take_over({A: counts(10, {A: 40, B: 20})})
    assert account.missing == 60, "one alone is not believed"
    account.take_over({A: counts(11, {A: 43, B: 23}), B: counts(11, {A: 43, B: 23})})
    assert (account.counts.get(A, 0), account.counts.get(B, 0), account.missing) == (43, 23, 0)
    account.take_over({A: counts(11, {A: 66}), B: counts(11, {A: 66})})
    assert account.counts.get(A, 0) == 43, "nothing is missing any more"


def test_a_lone_liar_in_the_newcomers_stage_inflates_neither_itself_nor_others() -> None:
    account = StageAccount(0, per_step=6)
    account.closed(101, {A: 3, B: 3})
    honest, liar = {A: 400, B: 200}, {A: 1, B: 605}
    account.take_over({A: counts(101, honest), B: counts(101, liar)})
    assert account.counts.get(B, 0) == 200
    assert account.counts.get(A, 0) <= 400


def test_who_has_seen_all_takes_nothing_over_whatever_a_majority_says() -> None:
    account = StageAccount(0, per_step=6)
    for version in range(1, 11):
        account.closed(version, {A: 4, B: 2})
    lies = {D: 60}
    account.take_over({author: counts(10, lies) for author in (B, C, D, E)})
    assert account.said(9).members == counts(10, {A: 40, B: 20}).members


def test_counts_of_versions_that_we_have_not_reached_wait() -> None:
    account = StageAccount(0, per_step=6)
    account.closed(5, {A: 6})
    ahead = counts(6, {B: 30})
    account.take_over({A: ahead, B: ahead})
    assert account.missing == 24
    account.closed(6, {A: 6})
    account.take_over({A: ahead, B: ahead})
    assert account.counts.get(B, 0) == 24


@given(st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 10**9)), max_size=5))
def test_whatever_others_say_no_more_is_counted_than_there_was(said: list[dict]) -> None:  # type: ignore[type-arg]
    account = StageAccount(0, per_step=6)
    account.closed(50, {A: 6})
    account.take_over({peer(10 + n): counts(40, words) for n, words in enumerate(said)})
    account.closed(51, {B: 6})
    account.take_over({peer(10 + n): counts(40, words) for n, words in enumerate(said)})
    total = sum(member.microbatches for member in account.said(99).members)
    assert total + account.missing == 51 * 6
    assert account.missing >= 0


def test_members_without_end_are_forgotten_the_idle_ones_first() -> None:
    account = StageAccount(0, per_step=2)
    for version in range(1, MAX_MEMBERS + 50):
        account.closed(version, {A: 1, peer(100 + version): 1})
    assert len(account.counts) == MAX_MEMBERS
    assert account.counts.get(A, 0) == MAX_MEMBERS + 49


# --- the board ---------------------------------------------------------------------------------


def test_the_median_of_the_others_counts_and_nobodys_own_word() -> None:
    honest = {A: 50, B: 30, C: 20}
    board = board_of({A: honest, B: honest, C: honest})
    assert board == {A: (50, 2, 0), B: (30, 2, 0), C: (20, 2, 0)}
    liar = {A: 50, B: 30, C: 600}
    assert board_of({A: honest, B: honest, C: liar}) == board


def test_one_liar_raises_nobody_and_among_five_lowers_nobody() -> None:
    honest = {A: 50, B: 30, C: 20, D: 10, E: 10}
    said = dict.fromkeys((A, B, C, D), honest)
    for lie in ({A: 1, B: 1, E: 598}, {B: 600}, {}):
        board = board_of({**said, E: lie})
        assert {p: line[0] for p, line in board.items()} == honest


def test_a_pair_has_one_voucher_each_and_a_lone_member_none() -> None:
    assert board_of({A: {A: 5, B: 7}, B: {A: 5, B: 7}}) == {A: (0, 0, 5), B: (0, 0, 7)}
    assert board_of({A: {A: 5}}) == {}


def test_what_one_says_of_a_pair_stays_when_the_other_is_gone_and_counts_for_less() -> None:
    board = Board()
    board_of({A: {A: 5, B: 7}, B: {A: 5, B: 7}}, board)
    assert board_of({A: {A: 6, B: 7}}, board) == {A: (0, 0, 5), B: (0, 0, 7)}
    three = {A: 9, B: 9, C: 1}
    assert board_of({A: three, B: three, C: three}, board)[A] == (9, 2, 0)
    assert board_of({B: {A: 50}}, board)[A] == (9, 2, 0), "one alone lifts nobody"


def test_inventing_contributors_without_end_displaces_nobody() -> None:
    board, honest = Board(), {A: 1, B: 1, C: 1}
    board_of({A: honest, B: honest, C: honest}, board)
    invented = {peer(100 + n): 600 // 90 for n in range(90)}
    assert set(board_of({D: invented}, board)) == {A, B, C}
    many = Board([*board.kept(), *(Vouched(peer(1000 + n), 0, 9, 1) for n in range(MAX_KEPT))])
    board_of({A: honest, B: honest, C: honest}, many)
    assert len(many.kept()) == MAX_KEPT
    assert {A, B, C} <= {one.peer for one in many.kept()}


def test_only_who_serves_the_stage_is_heard() -> None:
    board = Board()
    lie = Counts((counts(100, {E: 500}),))
    board.update({C: lie, D: lie}, lambda _stage, _author: False, lambda _peer: True)
    assert board.contributors(lambda _peer: False) == []


def test_stages_add_up_and_the_fewest_vouchers_are_told() -> None:
    board = Board()
    records = {
        author: Counts((counts(9, {E: 4}), counts(9, {E: 5}, 1)) if author != C else
                       (counts(9, {E: 4}),))
        for author in (A, B, C)
    }  # fmt: skip
    board.update(records, lambda _stage, _author: True, lambda _peer: True)
    (line,) = board.contributors(lambda _peer: False)
    assert (line.microbatches, line.vouchers) == (9, 2)


def test_what_was_vouched_for_stays_when_all_others_are_gone_and_after_a_restart() -> None:
    board, honest = Board(), {A: 50, B: 30, C: 20}
    board_of({A: honest, B: honest, C: honest}, board)
    assert board_of({A: {A: 55, C: 20}}, board)[C] == (20, 2, 0)
    again = Board(board.kept())
    assert board_of({}, again)[B] == (30, 2, 0)
    more = {A: 60, B: 40, C: 21}
    assert board_of({A: more, B: more, C: more}, again)[B] == (40, 2, 0)


def test_the_expelled_are_left_out() -> None:
    board = Board([Vouched(A, 0, 9, 2), Vouched(B, 0, 8, 2)])
    assert [one.peer for one in board.contributors(lambda p: p == A)] == [B]
