"""Peers set aside where volunteers hold two stages."""

from __future__ import annotations

from collections.abc import Mapping

from client.lab.simulate.electing import UnsplitQuorum
from protocol.ids import PeerId
from protocol.membership.contacts import Contacts
from protocol.pace import ANSWER_S
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.standing import Standing
from protocol.verdicts import Verdicts
from protocol.view import Replica, SwarmView

ME, OTHER, THIRD, FOURTH = map(PeerId, ("me", "other", "third", "fourth"))


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


def observe(standing: Standing, seen: SwarmView, now: float) -> None:
    standing.update(seen, now)
    standing.observe((), now)


def test_what_a_seat_decides_holds_in_that_seat() -> None:
    """A peer that obstructs one stage that we hold may do its work in the other one."""
    both, contacts = view((ME, OTHER), (ME, OTHER)), Contacts()
    quorums = [Quorum(ME, stage, contacts, electors=(ME, OTHER, THIRD)) for stage in (0, 1)]
    first, second = (
        Standing(Place(ME, stage, 2, 8), quorum, Verdicts(), spoilers=lambda: {OTHER})
        for stage, quorum in enumerate(quorums)
    )
    contacts.said(1, 0.5)
    contacts.heard(OTHER, (0, 1), 1, 1.0)
    for standing in (first, second):
        observe(standing, both, 0.0)
    first._decide(OTHER, ME, 0, "it lies", 1.0)
    first.tick(1.0)
    for standing in (first, second):
        observe(standing, both, 2.0)
    assert (first.is_aside(OTHER), second.is_aside(OTHER)) == (True, False)
    assert not quorums[0].holds(2.0)
    assert quorums[1].holds(2.0)
    assert contacts.lost(2.0) == {OTHER}, "whoever votes for the first stage goes by that"
    contacts.vacated(0)
    assert contacts.lost(2.0) == frozenset()


def test_two_that_serve_beside_their_own_stage_do_not_judge_their_dispute() -> None:
    """``OTHER`` and ``THIRD`` hold both stages; each names the other one in both."""
    seen = view(
        (ME, OTHER, THIRD, FOURTH),
        (OTHER, THIRD),
        missing={OTHER: (THIRD,), THIRD: (OTHER,), FOURTH: ()},
    )
    made = Standing(Place(ME, 0, 2, 8), UnsplitQuorum(ME, 0), Verdicts())
    observe(made, seen, 0.0)
    observe(made, seen, ANSWER_S)
    (loser,) = made.aside()
    for now in range(2, 8):
        observe(made, seen, float(now))
        assert made.aside() == {loser}, "neither of the two overrules us"


def test_a_judge_that_shares_one_of_their_stages_decides_for_the_other_at_once() -> None:
    """``OTHER`` and ``THIRD`` hold both stages, and dispute in the first."""
    first = view((OTHER, THIRD, FOURTH), (), missing={OTHER: (THIRD,)}).stages[0]
    seen = SwarmView.of([first, view((), (ME, OTHER, THIRD)).stages[1]])
    made = Standing(Place(ME, 1, 2, 8), UnsplitQuorum(ME, 1), Verdicts())
    observe(made, seen, 0.0)
    observe(made, seen, ANSWER_S)
    assert len(made.beside()) == 1, "those of the first stage follow"
