"""Peers set aside where volunteers hold two stages: they share one link, and fall silent in both.

Two volunteers that hold both stages of a run, and of which one's worker stood still for some
seconds, came to a stop for as long as it was set aside: in one stage only, while the link was
ignored for both.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from protocol.ids import PeerId
from protocol.membership.contacts import CONTACT_S, Contacts
from protocol.pace import ANSWER_S, ASIDE_S
from protocol.pipeline.place import Place
from protocol.seat.standing import Standing
from protocol.verdicts import Verdicts
from protocol.view import Needs, Replica, SwarmView

ME, OTHER, THIRD, FOURTH, FIFTH = map(PeerId, ("me", "other", "third", "fourth", "fifth"))


def nobody(*_: object) -> bool:
    return False


def seats(contacts: Contacts, *, needs: Mapping[int, Needs] | None = None) -> list[Standing]:
    """Our seats in stages 0 and 1 of two; ``needs``: by stage."""
    by_stage = needs or {}
    return [
        Standing(Place(ME, stage, 2, 8), contacts, Verdicts(), needs=by_stage.get(stage, nobody))
        for stage in (0, 1)
    ]


def view(
    *stages: tuple[PeerId, ...],
    versions: tuple[Mapping[PeerId, int], ...] = ({}, {}),
    missing: Mapping[PeerId, tuple[PeerId, ...]] | None = None,
) -> SwarmView:
    return SwarmView.of(
        [
            Replica(peer, at.get(peer, 5), True, missing=(missing or {}).get(peer, ()))
            for peer in there
        ]
        for there, at in zip(stages, versions, strict=True)
    )


def observe(made: list[Standing], seen: SwarmView, now: float) -> None:
    for standing in made:
        standing.observe(seen, (), now)


BOTH = view((ME, OTHER), (ME, OTHER))


def serving(standing: Standing, seen: SwarmView) -> list[list[PeerId]]:
    left = standing.without(seen)
    return [[replica.peer for replica in left.serving(stage)] for stage in (0, 1)]


def test_one_dispute_takes_a_peer_out_of_all_its_stages() -> None:
    made = seats(Contacts())
    observe(made, BOTH, 0.0)
    for now in (1.0, 1.0 + ANSWER_S):
        made[1].observe(BOTH, [OTHER], now)
    assert made[1].is_aside(OTHER)
    assert serving(made[1], BOTH) == [[ME], [ME]]
    assert made[1].beside() == [], "it is our sibling: our claim says it"
    made[0].observe(BOTH, (), 2.5)
    assert made[0].is_aside(OTHER)
    assert serving(made[0], BOTH) == [[ME], [ME]]


def test_both_seats_let_a_peer_back_together_and_its_time_counts_once() -> None:
    contacts = Contacts()
    made = seats(contacts)
    observe(made, BOTH, 0.0)
    made[0].accuse(OTHER, "it sleeps", 1.0)
    observe(made, BOTH, 2.0)
    assert all(standing.is_aside(OTHER) for standing in made)
    assert contacts.is_shunned(OTHER)
    observe(made, BOTH, 0.9 + ASIDE_S)
    assert all(standing.is_aside(OTHER) for standing in made)
    observe(made, BOTH, 1.0 + ASIDE_S)
    assert not any(standing.is_aside(OTHER) for standing in made)
    assert not contacts.is_shunned(OTHER)
    made[1].accuse(OTHER, "it sleeps", 100.0)
    observe(made, BOTH, 100.0 + ASIDE_S)
    assert not made[1].is_aside(OTHER), "the first time for this seat"


@pytest.mark.parametrize("how", ["accused", "disputed"])
def test_a_seat_sets_nobody_aside_whom_our_other_seat_needs(how: str) -> None:
    made = seats(Contacts(), needs={1: lambda peer, _aside, _now: peer == OTHER})
    observe(made, BOTH, 0.0)
    for now in range(1, 10):
        if how == "accused":
            made[0].accuse(OTHER, "it sleeps", float(now))
        else:
            made[0].observe(BOTH, [OTHER], float(now))
        assert not made[0].is_aside(OTHER)


def test_a_seat_that_has_ended_needs_nobody_and_ignores_nobody() -> None:
    contacts = Contacts()
    made = seats(contacts, needs={1: lambda peer, _aside, _now: peer == OTHER})
    observe(made, BOTH, 0.0)
    made[1].accuse(THIRD, "it is not there", 1.0)
    assert not contacts.is_shunned(THIRD)
    seen = view((ME, OTHER, THIRD), (ME, OTHER, THIRD))
    observe(made, seen, 2.0)
    made[1].accuse(THIRD, "it sleeps", 2.0)
    assert contacts.is_shunned(THIRD)
    contacts.vacated(1)
    assert not contacts.is_shunned(THIRD)
    contacts.said(1, 2.0)
    contacts.heard(THIRD, (), 1, 2.5)
    assert contacts.present(THIRD, 2.0 + CONTACT_S / 2)
    made[0].accuse(OTHER, "it sleeps", 3.0)
    assert made[0].is_aside(OTHER)


def test_two_that_serve_beside_their_own_stage_do_not_judge_their_dispute() -> None:
    """``OTHER`` and ``THIRD`` hold both stages; each names the other one in both."""
    seen = view(
        (ME, OTHER, THIRD, FOURTH),
        (OTHER, THIRD),
        missing={OTHER: (THIRD,), THIRD: (OTHER,), FOURTH: ()},
    )
    made = Standing(Place(ME, 0, 2, 8), Contacts(), Verdicts())
    made.observe(seen, (), 0.0)
    made.observe(seen, (), ANSWER_S)
    (loser,) = made.aside()
    for now in range(2, 8):
        made.observe(seen, (), float(now))
        assert made.aside() == {loser}, "neither of the two overrules us"


def test_a_judge_that_shares_one_of_their_stages_decides_for_the_other_at_once() -> None:
    """``OTHER`` and ``THIRD`` hold both stages, and dispute in the first."""
    first = view((OTHER, THIRD, FOURTH), (), missing={OTHER: (THIRD,)}).stages[0]
    seen = SwarmView.of([first, view((), (ME, OTHER, THIRD)).stages[1]])
    made = Standing(Place(ME, 1, 2, 8), Contacts(), Verdicts())
    made.observe(seen, (), 0.0)
    made.observe(seen, (), ANSWER_S)
    assert len(made.beside()) == 1, "those of the first stage follow"


def test_whom_most_of_our_stage_name_in_the_stage_before_goes_though_it_is_our_sibling() -> None:
    seen = view(
        (OTHER, FOURTH),
        (ME, OTHER, THIRD, FOURTH),
        missing={ME: (), OTHER: (), THIRD: (OTHER,), FOURTH: (OTHER,)},
    )
    made = Standing(Place(ME, 1, 2, 8), Contacts(), Verdicts())
    made.observe(seen, (), 0.0)
    assert made.is_aside(OTHER) is False, "two of four"
    seen = view(
        (OTHER, FOURTH),
        (ME, OTHER, THIRD, FOURTH, FIFTH),
        missing={
            THIRD: (OTHER,),
            FOURTH: (OTHER,),
            FIFTH: (OTHER,),
        },
    )
    made.observe(seen, (), 0.1)
    assert made.is_aside(OTHER)


def test_our_seat_far_away_keeps_as_many_as_a_secret_sum_needs() -> None:
    contacts = Contacts()
    first, third = (Standing(Place(ME, s, 3, 8), contacts, Verdicts(), least=3) for s in (0, 2))
    ours = (ME, OTHER, THIRD, FOURTH)

    def seen(*last: PeerId) -> SwarmView:
        return SwarmView.of([[Replica(p, 5, True) for p in there] for there in (ours, ours, last)])

    for standing in (first, third):
        standing.observe(seen(*ours), (), 0.0)
    first.accuse(OTHER, "it sleeps", 1.0)
    for now in range(2, 10):
        for standing in (first, third):
            standing.observe(seen(*ours[:-1]), (), float(now))
    assert not first.is_aside(OTHER), "one left the last stage"
    assert not third.is_aside(OTHER)
    first.accuse(THIRD, "it sleeps", 10.0)
    assert not first.is_aside(THIRD)
