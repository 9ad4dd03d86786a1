"""Averaging that takes far longer than computing: large models on slow lines, in virtual time."""

from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.ids import PeerId
from protocol.pace import FORGET_S
from protocol.wire.messages import Forward, Message, Segment

LIMIT_S = 400.0


class SlowLines(TrainingWorld):
    """Contributions of some stages are on their way for so many seconds more."""

    def __init__(self, config: WorldConfig, late_s: dict[int, float]) -> None:
        self._late_s = late_s
        self.forwards = 0
        super().__init__(config)

    def send(self, peer: SimPeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        self.forwards += isinstance(message, Forward)
        late_s = self._late_s.get(message.stage, 0.0) if isinstance(message, Segment) else 0.0
        if not late_s:
            super().send(peer, to, message, parts)
            return
        self.averages(peer, message)
        arrive = super().send
        self.after(late_s, lambda: arrive(peer, to, message, parts) if peer.alive else None)

    def averages(self, peer: SimPeer, message: Segment) -> None:
        """A replica has sent a contribution that is late."""


class DeathInARound(SlowLines):
    """The first replica that sends a contribution to step 2 dies before it has come."""

    victim: SimPeer | None = None

    def averages(self, peer: SimPeer, message: Segment) -> None:
        if message.step == 2 and self.victim is None:
            self.victim = peer
            self.after(self._late_s[message.stage] / 2, lambda: self.kill(peer))


def run(world: SlowLines) -> None:
    world.start_clock()
    world.run(limit_s=LIMIT_S)
    steps = {version for _, version in world.hashes}
    assert steps == set(range(1, world.config.steps + 1))


def test_a_round_that_takes_longer_than_its_time_closes() -> None:
    """A leader may give up its first round; later ones get the measured time."""
    config = WorldConfig(stages=1, replicas=2, per_step=4, steps=4)
    late_s = 1.2 * FORGET_S
    world = SlowLines(config, {0: late_s})
    run(world)
    given_up = sum("nothing came any more" in line for line in world.log)
    assert given_up <= config.replicas, "once by each of those who lead in turn, at most"


def test_early_work_does_not_keep_out_what_a_dead_sibling_held() -> None:
    """While one stage averages, what the stage before it sends of the next step fills its queue;
    then a replica dies, and what it had counted has to be run again before the step can close."""
    config = WorldConfig(stages=2, replicas=2, per_step=64, steps=4, seed=0)
    world = DeathInARound(config, {1: 3.0})
    for number in range(6):
        world._open_seat(world.add_peer(0, f"more/{number}"), step=0, serving=True)
    run(world)
    assert world.victim is not None
    assert not world.victim.alive


def test_boundaries_are_not_sent_before_they_can_be_taken() -> None:
    """A stage averages while the one before it sends of the next step."""
    config = WorldConfig(stages=2, replicas=4, per_step=16, steps=5)
    world = SlowLines(config, {1: 10.0})
    run(world)
    assert world.forwards <= 1.3 * config.per_step * config.steps
