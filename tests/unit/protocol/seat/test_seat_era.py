"""After a roll-back, messages of the time before change nothing."""

from protocol.ids import peer_id_from_key
from protocol.pipeline.effects import Keep
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.wire.messages import Forward, LedgerReport, Receipt
from tests.support.effects import sent
from tests.support.seats import seat_of, view_of

ME, UPSTREAM = (peer_id_from_key(bytes([n]) * 32) for n in range(2))
ERA = 7 << 32


def seat() -> Seat:
    made = seat_of(Place(ME, 1, 2, 4), 3, steps=9, era=ERA)
    made.update_view(view_of(3, [UPSTREAM], [ME]), 0.0)
    return made


def forward(era: int) -> Forward:
    return Forward(1, 3, 12, 1, False, era=era)


def receipts(effects: list[object]) -> list[Receipt]:
    return [receipt for _, receipt in sent(effects, Receipt)]


def test_a_forward_of_another_era_is_not_run() -> None:
    made = seat()
    for era in (0, ERA - 1, ERA + 1):
        effects = list[object](made.receive(UPSTREAM, forward(era), 1.0))
        (receipt,) = receipts(effects)
        assert (receipt.verdict, receipt.era) == ("stale", era), "so that its sender hears it"
        assert not any(isinstance(e, Keep) for e in effects)
    assert not made.pipeline.in_flight()


def test_one_of_ours_is() -> None:
    made = seat()
    (receipt,) = receipts(made.receive(UPSTREAM, forward(ERA), 1.0))
    assert (receipt.verdict, receipt.era) == ("accepted", ERA)
    assert made.pipeline.in_flight() == {12}


def test_a_report_of_another_era_does_not_reach_the_leader() -> None:
    made = seat()
    sibling = LedgerReport(1, 3, 5, b"\x0f", b"\0", 0, era=0)
    made.update_view(view_of(3, [UPSTREAM], [ME, UPSTREAM]), 1.0)
    assert made.receive(UPSTREAM, sibling, 1.0) == []
    assert UPSTREAM not in made.leader.reports
