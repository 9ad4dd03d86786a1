"""Seats of a test, and views in which everybody serves one version."""

from collections.abc import Collection, Iterable
from typing import Any

from client.lab.simulate.electing import UnsplitElector, UnsplitQuorum
from client.lab.simulate.unamended import Unamended
from protocol.decree.elector import Elector
from protocol.ids import PeerId
from protocol.pipeline.effects import ApplyTask, Compute, Outcome
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Plan
from protocol.wire.parts import Decree, PlanMember
from tests.support.decrees import commit_of


def view_of(
    version: int, *stages: Iterable[PeerId], returned: Collection[PeerId] = ()
) -> SwarmView:
    """All these serve their stage at one version; some say that they have all gradients."""
    return SwarmView.of(
        [
            [Replica(peer, version, True, returned=peer in returned) for peer in peers]
            for peers in stages
        ]
    )


def seat_of(
    place: Place,
    step: int,
    *,
    size: int = 64,
    steps: int = 1000,
    serving: bool = True,
    quorum: Quorum | None = None,
    elector: Elector | None = None,
    **parts: Any,
) -> Seat:
    """A seat that has just opened at the beginning of a step, in a world without partitions unless
    a quorum and an elector are given."""
    usual = {
        "promise": (0, 0),
        "proves": None,
        "audits": None,
        "evaluation": None,
        "amendments": Unamended(steps),
        "at_once": 1,
        "number_bytes": 0.0,
    }
    return Seat(
        place,
        size=size,
        tokens_per_step=2,
        step=step,
        serving=serving,
        quorum=quorum or UnsplitQuorum(place.me, place.stage),
        elector=elector or UnsplitElector(),
        **(usual | parts),
    )


def alone(me: PeerId, step: int, **parts: Any) -> Seat:
    """The seat of the only replica of a run of one stage."""
    made = seat_of(Place(me, 0, 1, 4), step, **parts)
    made.leasing.ask = lambda *_: []  # it is to close its step at once
    made.update_view(view_of(step, [me]), 0.0)
    made.quorum.settle([me], [me], step, 0.0)
    return made


def applied(seat: Seat, outcome: Outcome, now: float) -> list[SeatEffect]:
    """The worker has applied a decree that names nobody."""
    member, where = seat.member, (seat.place.stage, seat.step, 1)
    member.decree, member.plan_followed = Decree(1, b"", (), (), 0.0), Plan(*where, [], [0], [])
    return list(seat.computed(ApplyTask(seat.step), outcome, now))


def closes(seat: Seat, amended: bytes = b"") -> tuple[ApplyTask, list[SeatEffect]]:
    """A replica that is alone follows its own plan and applies it."""
    me = seat.place.me
    mine = [PlanMember(me, b"\x0f")]
    seat.pipeline.done = lambda: {*range(4 * seat.step, 4 * seat.step + 4)}
    effects = seat.receive(me, Plan(0, seat.step, 1, mine, [0, 64], [], amended=amended), 1.0)
    effects += seat.receive(
        me, commit_of(0, seat.step, 1, seat.member.ready, [me], loss_sum=1.0), 1.0
    )
    [task] = [e.task for e in effects if isinstance(e, Compute) and isinstance(e.task, ApplyTask)]
    return task, list(seat.computed(task, Outcome(hash="00" * 32), 1.0))
