"""After a roll-back, messages of the time before change nothing."""

import pytest

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
    made = seat_of(Place(ME, 1, 2, 4, era=ERA), 3, steps=9)
    made.update_view(view_of(3, [UPSTREAM], [ME]), 0.0)
    return made


@pytest.mark.parametrize("era", [0, ERA - 1, ERA, ERA + 1])
def test_a_forward_of_another_era_is_not_run_and_its_sender_hears_it(era: int) -> None:
    made = seat()
    effects = made.receive(UPSTREAM, Forward(1, 3, 12, False, era=era), 1.0)
    said = [(receipt.verdict, receipt.era) for _, receipt in sent(effects, Receipt)]
    assert said == ([] if era == ERA else [("busy", era)])
    assert any(isinstance(e, Keep) for e in effects) == (era == ERA)
    assert made.pipeline.in_flight() == ({12} if era == ERA else set())
    made.update_view(view_of(3, [UPSTREAM], [ME, UPSTREAM]), 1.0)
    made.receive(UPSTREAM, LedgerReport(1, 3, 5, b"\x0f", b"\0", 0, era=era), 1.0)
    assert (UPSTREAM in made.leader.reports) == (era == ERA)
