"""Points for broken rules: they add up, fade, and end in a ban that ends as well."""

from client.net import penalties
from client.net.penalties import BAN_POINTS, BAN_S, FADE_POINTS_PER_S, PenaltyBox
from tests.support.protocol_examples import peer

ONE, OTHER = peer(1), peer(2)


def test_points_add_up_and_fade() -> None:
    box = PenaltyBox()
    assert box.points(ONE, 5.0) == 0
    assert not box.add(ONE, 30, 10.0)
    assert not box.add(ONE, 30, 10.0)
    assert (box.points(ONE, 10.0), box.points(OTHER, 10.0)) == (60, 0)
    assert box.points(ONE, 10.0 + 10 / FADE_POINTS_PER_S) == 50
    assert box.points(ONE, 10.0 + 70 / FADE_POINTS_PER_S) == 0, "never below none"


def test_who_has_enough_is_banned_for_a_while_and_begins_anew() -> None:
    box = PenaltyBox()
    assert not box.add(ONE, BAN_POINTS - 1, 0.0)
    assert not box.is_banned(ONE, 0.0)
    assert box.add(ONE, 1, 0.0)
    assert box.is_banned(ONE, BAN_S - 1)
    assert not box.is_banned(OTHER, 1.0)
    assert not box.is_banned(ONE, BAN_S)
    assert box.points(ONE, 1.0) == 0


def test_who_is_expelled_stays_out() -> None:
    box = PenaltyBox()
    box.expel(ONE)
    assert box.is_banned(ONE, 1e12)


def test_the_score_of_the_one_that_is_quiet_longest_is_forgotten() -> None:
    box = PenaltyBox()
    box.add(ONE, 50, 0.0)
    box.add(OTHER, 50, 0.0)
    box.add(ONE, 1, 0.0)
    for number in range(penalties.MAX_PEERS - 2):
        box.add(f"another {number}", 1, 0.0)  # type: ignore[arg-type]
    assert (box.points(ONE, 0.0), box.points(OTHER, 0.0)) == (51, 50)
    box.add(peer(3), 1, 0.0)
    assert (box.points(ONE, 0.0), box.points(OTHER, 0.0)) == (51, 0)
