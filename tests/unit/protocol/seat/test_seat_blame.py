"""Whom a seat names as holding its step up."""

from protocol.ids import PeerId, peer_id_from_key
from protocol.membership.contacts import Contacts
from protocol.pace import LOST_S
from protocol.pipeline.effects import Compute, Outcome
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.obstruction import FIRST_S, TIMES
from protocol.rounds.quorum import Quorum
from protocol.view import SwarmView, leaders
from protocol.wire.messages import LedgerReport, Plan, Reduced
from protocol.wire.parts import PlanMember
from tests.support.seats import alone, closes, seat_of, view_of

ME, SIBLING, *BEFORE = (peer_id_from_key(bytes([n]) * 32) for n in range(5))
STEP = 7
LONGEST_S = FIRST_S * max(TIMES.values())


class TestWithoutAMajority:
    """A step that cannot be closed for want of a majority is nobody's fault. Replicas that had
    set most others aside blamed those whom they still heard, at once when their time was over: in
    the end each had set all others aside, for longer each time, and none had a majority again.
    """

    def setup_method(self) -> None:
        self.contacts = Contacts()
        self.seat = seat_of(Place(ME, 1, 2, 4), STEP, quorum=Quorum(ME, 1, self.contacts))
        self.seat.quorum.settle([ME, SIBLING], [ME, SIBLING, *BEFORE], STEP, 0.0)
        self.view = view_of(STEP, BEFORE, [ME, SIBLING])

    def wait(self, since: float, until: float, there: list[PeerId]) -> bool:
        """Hear these until then; return whether the sibling, which says nothing of the step, is
        named."""
        named = False
        for second in range(round(since), round(until)):
            self.contacts.said(second, second)
            for peer in there:
                self.contacts.heard(peer, (1,), second, second)
            self.seat.update_view(self.view, second)
            named |= SIBLING in self.seat.status(1.0).missing
        return named

    def test_nobody_is_named(self) -> None:
        assert not self.wait(0, 2 * LONGEST_S, [SIBLING])

    def test_who_has_it_names_who_holds_the_step_up(self) -> None:
        assert self.wait(0, 2 * LONGEST_S, [SIBLING, *BEFORE])


def test_a_leader_whose_plan_we_follow_is_not_named_for_what_it_has_not_reported() -> None:
    """Its ledger is in its plan; the step waits for what another member contributes."""
    third = BEFORE[0]

    def view(step: int) -> SwarmView:
        return view_of(step, [ME, SIBLING, third], [BEFORE[1]])

    step = next(n for n in range(1, 99) if leaders(view(n), 0, n)[0] == SIBLING)
    place = Place(ME, 0, 2, 4)
    seat = seat_of(place, step, size=512)
    seat.update_view(view(step), 0.0)
    seat.quorum.designated = SIBLING
    nothing = to_bitmap(frozenset(), step, 4)
    seat.receive(third, LedgerReport(0, step, 1, nothing, nothing, 0), 0.0)
    members = [PlanMember(ME, b""), PlanMember(SIBLING, b"\x0c"), PlanMember(third, b"\x03")]
    plan = Plan(0, step, 1, members, [0, 0, 256, 512], [])
    [encode] = [e.task for e in seat.receive(SIBLING, plan, 0.0) if isinstance(e, Compute)]
    seat.computed(encode, Outcome(), 0.0)
    seat.receive(SIBLING, Reduced(0, step, 1, 1, 1.0), 0.0, bytes(32))
    named = set[PeerId]()
    until = TIMES["contribution"] * FIRST_S + LOST_S + TIMES["plan"] * FIRST_S
    assert until > TIMES["report"] * FIRST_S
    for second in range(round(until)):  # by then it should have planned anew without the third one
        seat.update_view(view(step), second)
        named |= set(seat.status(1.0).missing)
    assert named == {third}
    seat.update_view(view(step), 2 * until)
    assert SIBLING in seat.status(1.0).missing


def test_what_its_rounds_take_says_how_long_others_are_waited_for() -> None:
    seat, task_s = alone(ME, STEP), 0.01
    assert seat._obstruction.patience_s(task_s) == FIRST_S
    closes(seat)
    assert seat._obstruction.patience_s(task_s) < FIRST_S
