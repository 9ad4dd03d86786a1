"""Newcomers to a stage: admission, notification, and bounds."""

from __future__ import annotations

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.pace import FORGET_S
from protocol.pipeline.place import Place
from protocol.rounds.leader import RoundLeader
from protocol.rounds.reports import state_digest
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, decode_message, encode_message
from tests.support.round_leaders import (
    HALVES,
    IDS,
    ME,
    NEW,
    PER_STEP,
    SIZE,
    STAGE,
    STEP,
    B,
    leader,
    planned,
    plans,
    report,
    view,
)


def admits(effects: list[object]) -> list[tuple[PeerId, Admit]]:
    return [
        (effect.peer, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Admit)
    ]


def test_everybody_hears_of_an_admission() -> None:
    made = leader(ME, B)
    sent = admits(made.join(NEW, 0.0))
    assert {peer for peer, _ in sent} == {ME, B, NEW}
    assert sent[0][1].version == STEP
    assert set(sent[0][1].donors) == {ME, B}


def test_an_admission_says_what_state_the_donors_give() -> None:
    place = Place(ME, STAGE, 2, PER_STEP)
    made = RoundLeader(place, SIZE, STEP - 1)
    made.start_step(STEP, 0.0, state_digest("ab"))
    made.update_view(view(ME, B), True, 0.0)
    for _, admit in admits(made.join(NEW, 0.0)):
        assert admit.state == state_digest("ab")


def test_an_admitted_peer_observes_the_next_round() -> None:
    made = leader(ME)
    made.join(NEW, 0.0)
    sent = plans(made.report(ME, report(IDS), 1.0))
    assert set(sent) == {ME, NEW}
    assert sent[ME].observers == [NEW]


def test_nobody_is_admitted_while_a_plan_is_out() -> None:
    made, _ = planned(*HALVES)
    assert admits(made.join(NEW, 1.0)) == []
    made.update_view(view(ME, B, version=STEP + 1), True, 2.0)
    assert admits(made.start_step(STEP + 1, 2.0)) == []
    assert admits(made.tick(2.5))


def test_a_request_is_not_kept_for_ever() -> None:
    made, _ = planned(*HALVES)
    made.join(NEW, 0.0)
    made.update_view(view(ME, B, version=STEP + 1), True, 100.0)
    made.start_step(STEP + 1, 100.0)
    assert admits(made.tick(100.0)) == []


def test_who_is_still_applying_becomes_a_donor_too() -> None:
    made = leader()
    made.update_view(view(ME, B, B=STEP - 1), True, 0.0)
    assert admits(made.join(NEW, 0.0)) == []
    admitted = admits(made.update_view(view(ME, B), True, 0.5))
    assert {peer for peer, _ in admitted} == {ME, B, NEW}
    assert set(admitted[0][1].donors) == {ME, B}


def test_a_crowd_does_not_make_a_plan_that_nobody_can_read() -> None:
    joiners, fetching = (
        [peer_id_from_key(n.to_bytes(32, "big")) for n in range(first, first + 40)]
        for first in (1000, 2000)
    )
    made = leader(ME)
    for joiner in joiners:
        made.join(joiner, 0.0)
    crowd = [Replica(peer, STEP, False) for peer in [*fetching, joiners[0]]]
    made.update_view(SwarmView.of([[], [Replica(ME, STEP, True), *crowd]]), True, 1.0)
    sent = plans(made.report(ME, report(IDS), 1.0))
    assert decode_message(encode_message(sent[ME])) == sent[ME]
    assert joiners[0] in sent, "who was let in and fetches goes first"


def test_only_so_many_are_let_in_as_a_round_may_have() -> None:
    joiners = [peer_id_from_key(n.to_bytes(32, "big")) for n in range(1000, 1040)]
    made = leader(ME, B)
    admitted = [peer for peer in joiners if admits(made.join(peer, 0.0))]
    assert admitted == joiners[: MAX_REPLICAS_IN_ROUND - 2]
    assert admits(made.tick(FORGET_S)) == []
    assert admits(made.join(joiners[-1], FORGET_S + 0.1))


def test_who_serves_already_is_not_admitted() -> None:
    made = leader(ME, B)
    assert admits(made.join(B, 0.0)) == []
