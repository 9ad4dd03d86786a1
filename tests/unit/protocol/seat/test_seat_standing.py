"""Peers set aside: by our own judgement between two siblings, or by following that of others."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from client.lab.simulate.electing import UnsplitQuorum
from protocol.effects import Explain
from protocol.ids import PeerId, rank
from protocol.membership.contacts import Contacts
from protocol.pace import ANSWER_S, ASIDE_S, HEARD_S, LOST_S
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.standing import FORGIVEN_AFTER, Standing
from protocol.view import Replica, SwarmView

ME, SIBLING = PeerId("me"), PeerId("sibling")
ONE, TWO = PeerId("one"), PeerId("two")
Missing = dict[PeerId, tuple[PeerId, ...]]
Needs = Callable[[PeerId, Collection[PeerId], float], bool]


class Needing(UnsplitQuorum):
    """A quorum that says for itself which electors it cannot do without."""

    def __init__(self, says: Needs) -> None:
        super().__init__(ME, 0)
        self._says = says

    def needs(self, peer: PeerId, aside: Collection[PeerId], now: float) -> bool:
        return self._says(peer, aside, now)


def standing_of(needs: Needs = lambda *_: False, **how: Any) -> Standing:
    return Standing(Place(ME, 0, 2, 8), Needing(needs), **how)


def observe(
    standing: Standing, seen: SwarmView, claims: Iterable[PeerId], now: float, **how: Any
) -> None:
    standing.update(seen, now)
    standing.observe(claims, now, **how)


def view(
    missing: Missing | None = None,
    *,
    second: Collection[PeerId] = (ONE, TWO),
    version: int = 5,
    versions: dict[PeerId, int] | None = None,
) -> SwarmView:
    """Two replicas of stage 0, us among them, and some of stage 1."""
    said, at = missing or {}, versions or {}

    def replica(peer: PeerId) -> Replica:
        return Replica(peer, at.get(peer, version), True, missing=said.get(peer, ()))

    return SwarmView.of([[replica(ME), replica(SIBLING)], [replica(peer) for peer in second]])


@pytest.fixture
def standing() -> Standing:
    made = standing_of()
    observe(made, view(), (), 0.0)
    return made


def judged(standing: Standing, said: Missing, until: float = ANSWER_S, **how: Any) -> None:
    observe(standing, view(said, **how), (), 0.0)
    observe(standing, view(said, **how), (), until)


def set_aside(standing: Standing, peer: PeerId, now: float) -> list[Explain]:
    """We have decided against a replica of stage 1, and nobody else goes instead."""
    standing._decide(peer, ME, 1, "it sleeps", now)
    return standing.tick(now)


def test_who_comes_once_a_step_was_closed_is_a_newcomer() -> None:
    audited, new = standing_of(audited=True), PeerId("new")
    audited.update(view(), 0.0)
    audited.closed_with([ME, SIBLING, ONE, TWO])
    audited.update(view(second=(ONE, TWO, new)), 1.0)
    assert audited.bound(1).named == {new: 0}


@pytest.mark.parametrize("forgiven", [False, True])
def test_who_is_among_us_for_long_begins_anew(standing: Standing, forgiven: bool) -> None:
    set_aside(standing, ONE, 0.0)
    standing.tick(ASIDE_S)
    again = ASIDE_S + FORGIVEN_AFTER * 2 * ASIDE_S - (not forgiven)
    set_aside(standing, ONE, again)
    standing.tick(again + ASIDE_S)
    assert standing.is_aside(ONE) is not forgiven
    standing.tick(again + 2 * ASIDE_S)
    assert not standing.is_aside(ONE)


def test_nobody_is_set_aside_without_whom_too_few_electors_would_be_left() -> None:
    needed = {SIBLING}
    made = standing_of(needs=lambda peer, _aside, _now: peer in needed)
    observe(made, view(second=[ME, SIBLING]), [SIBLING], 1.0)
    for now in range(2, 20):
        made.tick(float(now))
    assert not made.aside()
    needed.clear()
    made.tick(20.0 + ANSWER_S)
    assert made.aside() == {SIBLING}, "it is still waited for"
    needed.add(SIBLING)
    observe(made, view(second=[ME, SIBLING]), [], 22.0)
    assert made.aside(), "they may be back at once"
    made.tick(22.0 + HEARD_S - 0.1)
    assert made.aside()
    observe(made, view(second=[ME, SIBLING]), [], 22.0 + HEARD_S)
    assert not made.aside(), "others have fallen silent"


def test_whose_fault_we_have_seen_is_set_aside_though_it_is_needed() -> None:
    faulty = {ONE}
    made = standing_of(spoilers=lambda: faulty, needs=lambda *_: True)
    judged(made, {ONE: (TWO,)})
    assert made.aside() == {ONE}
    observe(made, view(), (), ANSWER_S + HEARD_S)
    assert made.aside() == {ONE}


@pytest.mark.parametrize("once", [True, False])
def test_who_has_brought_nothing_lately_goes_whatever_its_rank(once: bool) -> None:
    for idle, busy in ((ONE, TWO), (TWO, ONE)):
        made = standing_of()
        observe(made, view(), (), 0.0)
        if once:
            made.worked(idle, -ANSWER_S - 0.1)
        made.worked(busy, 0.0)
        judged(made, {ONE: (TWO,)})
        assert made.beside() == [idle]


@pytest.mark.parametrize("named", [ONE, TWO])
def test_all_go_by_most_judges_and_by_no_single_one(standing: Standing, named: PeerId) -> None:
    claims, judges = {ONE: (TWO,), TWO: (ONE,)}, (ME, SIBLING, THIRD)
    for now in (0.0, ANSWER_S):
        observe(standing, held_by(judges, (ONE, TWO), missing=claims), (), now)
    (own,) = standing.beside()
    alone = held_by(judges, (ONE, TWO), missing={**claims, SIBLING: (named,)})
    observe(standing, alone, (), 2.0)
    assert standing.aside() == {own}
    most = held_by(judges, (ONE, TWO), missing={**claims, SIBLING: (named,), THIRD: (named,)})
    observe(standing, most, (), 2.0)
    assert standing.aside() == {named}
    assert set(standing.beside()) <= standing.aside(), "what is followed is not said"


@pytest.mark.parametrize("idle", [ONE, TWO])
def test_two_judges_that_differ_agree_once_the_stage_does_not_go_on(
    standing: Standing, idle: PeerId
) -> None:
    (busy,) = {ONE, TWO} - {idle}
    standing.worked(busy, 0.0)
    judged(standing, {ONE: (TWO,)})
    differ = view({ONE: (TWO,), SIBLING: (busy,)})
    observe(standing, differ, (), ANSWER_S)
    assert standing.beside() == [idle]
    observe(standing, differ, (), ANSWER_S + LOST_S)
    assert standing.beside() == [max((ONE, TWO), key=lambda peer: rank("standing", peer))]


def test_a_time_aside_that_was_wrong_does_not_count_the_next_time(standing: Standing) -> None:
    judged(standing, {ONE: (TWO,)})
    (wrong,) = standing.beside()
    back = ANSWER_S + LOST_S
    standing.tick(back)
    again = back + ASIDE_S + 1.0
    standing.tick(again)
    assert standing.beside() == [], "both are back"
    set_aside(standing, wrong, again)
    assert standing.is_aside(wrong)
    standing.tick(again + ASIDE_S)
    assert not standing.is_aside(wrong)


def test_what_goes_on_without_one_stays_so(standing: Standing) -> None:
    judged(standing, {ONE: (TWO,)})
    (right,) = standing.beside()
    (other,) = {ONE, TWO} - {right}
    observe(standing, view(versions={other: 6}), (), 5.0)
    standing.tick(ANSWER_S + LOST_S)
    assert standing.beside() == [right]


def test_a_swap_lasts_though_the_one_let_back_is_not_heard_at_once() -> None:
    """Until it is, the other one seems to be needed, which has just been set aside for it."""
    swapped_at = ANSWER_S + LOST_S
    made = standing_of(
        needs=lambda _peer, _aside, now: swapped_at < now < swapped_at + 1,
    )
    observe(made, view({ONE: (TWO,)}), (), 0.0)
    made.tick(ANSWER_S)
    first = made.aside()
    made.tick(swapped_at)
    second = made.aside()
    assert len(first) == len(second) == 1
    assert first != second
    for tenth in range(int(10 * LOST_S)):
        observe(made, view(), (), swapped_at + tenth / 10)
        assert made.aside() == second


@pytest.mark.parametrize(("spoiler", "other"), [(ONE, TWO), (TWO, ONE)])
def test_who_has_sent_us_what_we_refused_goes_whatever_others_say(
    spoiler: PeerId, other: PeerId
) -> None:
    """Who tells of two liars is in more disputes than any of them, until others tell as well."""
    made = standing_of(spoilers=lambda: {spoiler})
    third = PeerId("a third one")
    everybody = (ONE, TWO, third)
    observe(made, view(second=everybody), (), 0.0)
    judged(made, {other: (spoiler, third)}, second=everybody)
    assert made.is_aside(spoiler)
    observe(made, view(second=everybody), (), ANSWER_S + LOST_S)
    assert made.is_aside(spoiler), "its stage stands for another reason"


def test_the_two_of_a_dispute_wait_for_their_judges(standing: Standing) -> None:
    observe(standing, view({SIBLING: (ME,)}), (), 0.0)
    observe(standing, view({SIBLING: (ME,), ONE: (SIBLING,)}), (), ANSWER_S)
    assert standing.aside() == set(), "one of two judges"
    judges_name = {ONE: (SIBLING,), TWO: (SIBLING,)}
    observe(standing, view({SIBLING: (ME,), **judges_name}), (), ANSWER_S)
    assert standing.aside() == {SIBLING}
    observe(standing, view(judges_name), (), 2 * ANSWER_S)
    assert standing.aside() == {SIBLING}, "though it claims nothing any more"
    observe(standing, view(), (), 1e3)
    assert standing.aside() == set(), "as long as the judges say so"
    observe(standing, view({SIBLING: (ME,)}), (), 2e3)
    observe(standing, view({SIBLING: (ME,), ONE: (ME,), TWO: (ME,)}), (), 2e3 + HEARD_S)
    assert standing.aside() == set(), "it is we who go"


def test_where_no_judge_decides_we_do_without_the_other(standing: Standing) -> None:
    for at, gone in ((0.0, False), (HEARD_S - 0.1, False), (HEARD_S, True)):
        observe(standing, view({SIBLING: (ME,)}), (), at)
        assert standing.is_aside(SIBLING) is gone


def test_after_the_run_s_end_nobody_waits_for_anybody(standing: Standing) -> None:
    claims = view({TWO: (ONE,)})
    for at in (0.0, ANSWER_S):
        observe(standing, claims, (), at, last=5)
    assert not standing.beside()
    for at in (0.0, ANSWER_S):
        observe(standing, claims, (), at, last=6)
    assert len(gone := standing.beside()) == 1
    observe(standing, view(version=6), (), 2 * ANSWER_S, last=6)
    for at in (LOST_S, 3 * LOST_S):
        observe(standing, view(version=6), (), ANSWER_S + at, last=6)
    assert standing.beside() == gone, "the other one did not hold anything up"


def test_who_is_aside_in_one_stage_is_left_out_everywhere_where_enough_remain() -> None:
    for second, left in (([ONE, TWO], 1), ([ONE], 1)):
        made = standing_of()
        here = view(second=second)
        both = SwarmView.of([[*here.stages[0], Replica(ONE, 5, True)], here.stages[1]])
        observe(made, both, (), 0.0)
        assert made.view == both, "nobody is aside"
        made._decide(ONE, ME, 0, "it sleeps", 0.0)
        made.tick(0.0)
        found = made.view
        assert [r.peer for r in found.serving(0)] == [ME, SIBLING], "its own stage"
        assert len(found.serving(1)) == left, second


def test_who_goes_and_who_comes_back_is_told_with_the_reason(standing: Standing) -> None:
    (said,) = set_aside(standing, ONE, 0.0)
    assert said.words.endswith(f"of stage 1 is set aside for {ASIDE_S:.0f} s: it sleeps")
    assert said.members == (ONE,)
    (said,) = standing.tick(ASIDE_S)
    assert said.words.endswith("is not set aside any more: its time is over")
    assert standing.tick(99 * ASIDE_S) == []


def test_what_others_say_of_peers_that_are_not_there_opens_no_dispute(standing: Standing) -> None:
    for said in ({ONE: (ONE,)}, {ONE: (PeerId("gone"),)}, {ONE: (SIBLING,)}):
        observe(standing, view(said), (), 0.0)
        assert not standing._disputes, said
    observe(standing, view({ONE: (TWO,)}), (), 0.0)
    assert standing._disputes


# --- where volunteers hold two stages ---------------------------------------------------------


OTHER, THIRD, FOURTH = map(PeerId, ("other", "third", "fourth"))


def held_by(*stages: tuple[PeerId, ...], missing: Missing | None = None) -> SwarmView:
    said = missing or {}
    return SwarmView.of(
        [[Replica(peer, 5, True, missing=said.get(peer, ())) for peer in there] for there in stages]
    )


def test_what_a_seat_decides_holds_in_that_seat() -> None:
    """A peer that obstructs one stage that we hold may do its work in the other one."""
    both, contacts = held_by((ME, OTHER), (ME, OTHER)), Contacts()
    quorums = [Quorum(ME, stage, contacts, electors=(ME, OTHER, THIRD)) for stage in (0, 1)]
    first, second = (
        Standing(Place(ME, stage, 2, 8), quorum, spoilers=lambda: {OTHER})
        for stage, quorum in enumerate(quorums)
    )
    contacts.said(1, 0.5)
    contacts.heard(OTHER, (0, 1), 1, 1.0)
    for standing in (first, second):
        observe(standing, both, (), 0.0)
    first._decide(OTHER, ME, 0, "it lies", 1.0)
    first.tick(1.0)
    for standing in (first, second):
        observe(standing, both, (), 2.0)
    assert (first.is_aside(OTHER), second.is_aside(OTHER)) == (True, False)
    assert not quorums[0].holds(2.0)
    assert quorums[1].holds(2.0)
    assert (quorums[0].aside, quorums[1].aside) == ({OTHER}, frozenset())


def test_two_that_serve_beside_their_own_stage_do_not_judge_their_dispute() -> None:
    """``OTHER`` and ``THIRD`` hold both stages; each names the other one in both."""
    seen = held_by(
        (ME, OTHER, THIRD, FOURTH),
        (OTHER, THIRD),
        missing={OTHER: (THIRD,), THIRD: (OTHER,), FOURTH: ()},
    )
    made = Standing(Place(ME, 0, 2, 8), UnsplitQuorum(ME, 0))
    observe(made, seen, (), 0.0)
    observe(made, seen, (), ANSWER_S)
    (loser,) = made.aside()
    for now in range(2, 8):
        observe(made, seen, (), float(now))
        assert made.aside() == {loser}, "neither of the two overrules us"


def test_a_judge_that_shares_one_of_their_stages_decides_for_the_other_at_once() -> None:
    """``OTHER`` and ``THIRD`` hold both stages, and dispute in the first."""
    first = held_by((OTHER, THIRD, FOURTH), (), missing={OTHER: (THIRD,)}).stages[0]
    seen = SwarmView.of([first, held_by((), (ME, OTHER, THIRD)).stages[1]])
    made = Standing(Place(ME, 1, 2, 8), UnsplitQuorum(ME, 1))
    observe(made, seen, (), 0.0)
    observe(made, seen, (), ANSWER_S)
    assert len(made.beside()) == 1, "those of the first stage follow"
