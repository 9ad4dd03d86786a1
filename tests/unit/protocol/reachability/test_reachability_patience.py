"""How many messages about reachability a peer may send."""

from __future__ import annotations

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.reachability.patience import BURST, EVERY_S, MAX_PEERS, PENALTY, Patience

A, B = PeerId("a"), PeerId("b")


def test_who_says_more_than_an_honest_peer_is_blamed_and_nobody_else() -> None:
    patience = Patience()
    blamed = [patience.hears(A, 0.0) for _ in range(BURST + 20)]
    assert blamed[:BURST] == [None] * BURST
    assert blamed[BURST:] == [Penalise(A, "reach-flood", PENALTY)] * 20
    assert patience.hears(B, 0.0) is None


def test_it_is_forgiven_in_time() -> None:
    patience = Patience()
    for _ in range(BURST + 1):
        patience.hears(A, 0.0)
    assert patience.hears(A, EVERY_S / 2) is not None
    assert patience.hears(A, EVERY_S) is None
    assert patience.hears(A, EVERY_S) is not None


def test_what_is_remembered_of_peers_is_bounded() -> None:
    patience = Patience()
    for number in range(2 * MAX_PEERS):
        patience.hears(PeerId(str(number)), 0.0)
    assert len(patience._spent) == MAX_PEERS
