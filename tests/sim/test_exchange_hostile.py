"""Forged and repeated letters and records of full epochs change nothing and are counted."""

from __future__ import annotations

import msgspec

from protocol.effects import Publish, SendSigned
from protocol.ids import PeerId
from protocol.matching.bodies import encode_body
from protocol.matching.exchange import bodies
from protocol.matching.exchange.bodies import COMMIT, Ballot, Epoch
from tests.support.exchange_world import ExchangeWorld, counted, swarm
from tests.support.matching_world import CALM


class HostileWorld(ExchangeWorld):
    """Every message is sent again, by a liar also in its own name."""

    liar: PeerId

    def _send(self, who: PeerId, effect: SendSigned) -> None:
        super()._send(who, effect)
        if who != self.liar:
            super()._send(who, effect)
            super()._send(self.liar, effect)

    def _publish(self, who: PeerId, effect: Publish) -> None:
        super()._publish(who, effect)
        body = bodies.decode(effect.kind, effect.body)
        if who == self.liar or isinstance(body, bodies.Attest):
            return
        forged: bodies.Spread | None = None
        if isinstance(body, Epoch):
            forged = msgspec.structs.replace(body, phase=COMMIT, digest=b"x" * 32)
        if isinstance(body, Ballot):
            forged = msgspec.structs.replace(body, cutoff=body.cutoff + 10**17, changes=0)
        if forged is not None:
            encoded = encode_body(forged)
            last = self.last_word
            super()._publish(self.liar, Publish(effect.kind, effect.key, effect.seq, encoded))
            self.last_word = last


def test_forgeries_change_nothing_and_are_counted() -> None:
    reasons = set()
    moved = 0
    for seed in range(40):
        some = swarm(seed, workers=(4, 8))
        HostileWorld.liar = sorted(set(some.population.members) - set(some.homes))[-1]
        world = HostileWorld(some, seed, CALM)
        if HostileWorld.liar in world.stewards.values():
            continue  # a steward's claim about its own stage is no forgery
        world.run(50)
        assert world.moves() == world.outcome().moves, f"seed {seed}"
        moved += bool(world.moves())
        reasons |= set(counted(world))
    assert moved > 5
    assert {"matching-not-elector", "matching-call-by-stranger", "matching-other-round"} <= reasons
