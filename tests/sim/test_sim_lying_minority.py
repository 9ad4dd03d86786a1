"""Replicas that spoil the rounds of their stage.

Of eight three lie at once: the others go on without them. Of two nobody can say who lies, so what
one sees of the other alone has to cost the stage nothing.
"""

from collections import Counter

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.multisets import ABSURD, POISON, decode_ids, encode_ids
from client.lab.simulate.seats import Parts
from client.net.penalties import PenaltyBox
from protocol.effects import Penalise
from protocol.ids import PeerId, short
from protocol.seat.effects import SeatEffect
from protocol.wire.messages import Message, Reduced, Segment
from tests.support.cases import usual
from tests.support.obstructed_world import ObstructedWorld

LIES_FROM = 10
LIES = ("unsigned contributions", "absurd sums")
WITHIN_S = 15.0
"""From the first lie until honest ones close steps: two attempts, the dispute, and the 5 s until
the electors have lost the liars."""
ON_THE_WIRE: dict[str, tuple[type[Segment | Reduced], int]] = {
    "unsigned contributions": (Segment, POISON),
    "absurd contributions": (Segment, ABSURD),
    "absurd sums": (Reduced, ABSURD),
}
"""What a liar sends instead of what it has computed: which message, and what is added to it."""


class LyingMinority(ObstructedWorld):
    """A minority lies in what it contributes or sums; a member with 100 points is banned, as in a
    node.

    Args:
        config: of the world; its liars lie from step ``lies_from`` on.
        sends: one of ``ON_THE_WIRE``, or nothing.
    """

    def __init__(self, config: ChaosConfig, sends: str = "") -> None:
        self._boxes: dict[PeerId, PenaltyBox] = {}
        self._instead = ON_THE_WIRE.get(sends)
        self.wrongly: Counter[tuple[PeerId, PeerId]] = Counter()
        """Honest ones that honest ones had set aside when we looked."""
        super().__init__(config)

    def works_without(self, liar: Volunteer) -> int:
        """Return how many honest ones have closed their last step without a liar."""
        return sum(
            v.seat is not None and liar.peer not in v.seat.quorum.roll for v in self.honest()
        )

    def watch(self, seconds: float) -> None:
        """Go on for a while, and note which honest ones are set aside by honest ones."""
        until = self.agenda.now + seconds
        while self.agenda.now < until:
            self.advance_to(min(until, self.agenda.now + 0.5))
            for volunteer in self.honest():
                for peer in volunteer.seat.standing.aside() if volunteer.seat else ():
                    self.wrongly[volunteer.peer, peer] += not self.volunteers[peer].lies

    def send(self, peer: Volunteer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        begun = peer.lies and peer.seat is not None and peer.seat.step >= self.config.lies_from
        if begun and self._instead and isinstance(message, self._instead[0]):
            parts = (encode_ids(decode_ids(parts[0]) + Counter([self._instead[1]])),)
        super().send(peer, to, message, parts)

    def _perform_one(self, peer: Volunteer, effect: SeatEffect, parts: Parts) -> None:
        super()._perform_one(peer, effect, parts)
        if isinstance(effect, Penalise):
            box = self._boxes.setdefault(peer.peer, PenaltyBox())
            if box.add(effect.peer, effect.points, self.agenda.now):
                self.note(peer, f"bans {short(effect.peer)}: {effect.reason}")
                self.part(peer, self.volunteers[effect.peer])


def world(seed: int, lie: str) -> LyingMinority:
    config = ChaosConfig(
        seed=seed,
        stages=1,
        replicas=5,
        per_step=16,
        lies=(lie,),
        liars=3,
        lies_from=LIES_FROM,
        audits=0.03,
    )
    return LyingMinority(config, lie)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", usual(1, range(1, 5)))
def test_the_stage_goes_on_and_only_liars_are_out(seed: int, lie: str) -> None:
    made = world(seed, lie)
    while made.versions()[0] < LIES_FROM:
        made.watch(1.0)
    made.watch(WITHIN_S)
    gone_on = made.versions()[0]
    assert gone_on > LIES_FROM + 1, "\n".join(made.log[-60:])
    assert [made.works_without(v) for v in made.volunteers.values() if v.lies] == [5, 5, 5]
    if (seed, lie) == (1, "unsigned contributions"):
        assert made.audits.lasted == [0, 0, 0], "charges of several do not wait for each other"
    made.watch(20.0)
    assert made.versions()[0] > gone_on + 15
    assert not +made.wrongly, "an honest one was set aside for what it has reported"


@pytest.mark.parametrize("seed", usual(4, range(12)))
def test_of_two_nobody_is_blamed_for_contributions_that_the_other_cannot_use(seed: int) -> None:
    lie = "absurd contributions"
    made = LyingMinority(
        ChaosConfig(seed=seed, stages=3, replicas=1, lies=(lie,), lies_from=LIES_FROM), lie
    )
    while min(made.versions()) < LIES_FROM:
        made.watch(1.0)
    made.watch(3 * made.agenda.now)
    assert min(made.versions()) > 3 * LIES_FROM, "no slower than before"
    [liar] = [v for v in made.volunteers.values() if v.lies]
    assert made.works_without(liar) == 2, "those of the other stages"
    assert not made.wrongly
    assert not made.set_aside()
