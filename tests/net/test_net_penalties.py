"""Points for broken rules: they add up, fade, and end in a ban that ends as well."""

from client.net import penalties
from client.net.penalties import BAN_POINTS, BAN_S, FADE_POINTS_PER_S, PenaltyBox
from protocol.ids import PeerId
from tests.support.protocol_examples import peer

ONE, OTHER = peer(1), peer(2)


def test_points_add_up_and_fade() -> None:
    box, faded_at = PenaltyBox(), 10.0 + 30 / FADE_POINTS_PER_S
    assert not box.add(ONE, 70, 10.0)
    assert not box.add(OTHER, 70, 10.0)
    assert not box.add(ONE, 59, faded_at)
    assert not box.is_banned(ONE, faded_at)
    assert box.add(OTHER, 60, faded_at)


def test_who_has_enough_is_banned_for_a_while_and_begins_anew() -> None:
    box = PenaltyBox()
    assert not box.add(ONE, BAN_POINTS - 1, 0.0)
    assert box.add(ONE, 1, 0.0)
    assert box.is_banned(ONE, BAN_S - 1)
    assert not box.is_banned(OTHER, 1.0)
    assert not box.is_banned(ONE, BAN_S)
    assert not box.add(ONE, BAN_POINTS - 1, BAN_S)


def test_who_is_expelled_stays_out() -> None:
    box = PenaltyBox()
    box.expel(ONE)
    assert box.add(ONE, BAN_POINTS, 0.0)
    assert box.is_banned(ONE, 1e12)
    box.expel(OTHER)
    box.expel(ONE)
    for number in range(penalties.MAX_PEERS - 1):
        box.expel(PeerId(f"another {number}"))
    assert [box.is_banned(whose, 0.0) for whose in (ONE, OTHER)] == [True, False]


def test_the_score_of_the_one_that_is_quiet_longest_is_forgotten() -> None:
    box = PenaltyBox()
    box.add(ONE, 50, 0.0)
    box.add(OTHER, 50, 0.0)
    box.add(ONE, 1, 0.0)
    for number in range(penalties.MAX_PEERS - 1):
        box.add(PeerId(f"another {number}"), 1, 0.0)
    assert box.add(ONE, 50, 0.0)
    assert not box.add(OTHER, 50, 0.0)
