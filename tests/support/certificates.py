"""A matching world's published records of full epochs, and their signers."""

from __future__ import annotations

from collections import defaultdict

from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.matching.exchange import bodies, tally
from protocol.matching.exchange.bodies import COMMIT, Attest, Ballot, Epoch, Round
from tests.support.matching_world import World

DETECTED_S = 6.5
"""After a cut everybody has found out within this time."""


def published(world: World) -> list[tuple[float, PeerId, bodies.Spread]]:
    """Return the records of full epochs with their time and author."""
    found = []
    for at, who, effect in world.log:
        if isinstance(effect, Publish) and bodies.is_ours(effect.kind):
            body = bodies.decode(effect.kind, effect.body)
            assert isinstance(body, bodies.Spread)
            found.append((at, who, body))
    return found


def certificates(world: World) -> dict[tuple[Round, int, bool], set[bytes]]:
    """Return the digests that two have signed, by matter."""
    signers: dict[tuple[Round, int, bool, bytes], set[PeerId]] = defaultdict(set)
    for _, who, body in published(world):
        if isinstance(body, Epoch) and body.phase == COMMIT:
            signers[body.round, 0, True, body.digest].add(who)
        if isinstance(body, Ballot) and body.projection:
            signers[body.round, body.stage, False, tally.plan_of(body)].add(who)
        if isinstance(body, Attest):
            signers[body.round, body.stage, body.decision, body.digest].add(who)
    found: dict[tuple[Round, int, bool], set[bytes]] = defaultdict(set)
    for (round_, stage, decision, digest), names in signers.items():
        if len(names) > 1:
            found[round_, stage, decision].add(digest)
    return found
