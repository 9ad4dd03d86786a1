"""A leader of a round with the reports that a test gives it."""

from __future__ import annotations

import msgspec

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.leader import (
    RoundLeader,
)
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Commit, LedgerReport, Plan, Ready

ME, B, C, NEW = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, PER_STEP, SIZE, STAGE = 2, 8, 1024, 1
IDS = frozenset(range(16, 24))
DIGEST = b"\7" * 32


def view(*peers: PeerId, version: int = STEP, **versions: int) -> SwarmView:
    """Serving replicas of our stage; ``B=1`` gives B another version than the rest."""
    names = {"ME": ME, "B": B, "C": C}
    others = {names[name]: v for name, v in versions.items()}
    ours = [Replica(peer, others.get(peer, version), True) for peer in peers]
    return SwarmView.of([[], ours])


def leader(*peers: PeerId) -> RoundLeader:
    made = RoundLeader(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP)
    made.update_view(view(*peers), True, 0.0)
    return made


def report(
    done: object = (), *, seq: int = 1, step: int = STEP, promised: int = 0, in_flight: object = ()
) -> LedgerReport:
    bits = [to_bitmap(ids, step, PER_STEP) for ids in (done, in_flight)]  # type: ignore[arg-type]
    return LedgerReport(STAGE, step, seq, bits[0], bits[1], promised)


def ready_report(attempt: int, digest: bytes = DIGEST) -> LedgerReport:
    """The report of a replica that holds everything that an attempt would apply."""
    return msgspec.structs.replace(report(range(16, 20), promised=attempt), ready=digest)


def plans(effects: list[object]) -> dict[PeerId, Plan]:
    return {
        effect.peer: effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Plan)
    }


def commits(effects: list[object]) -> list[PeerId]:
    return [e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Commit)]


def planned(*shares: tuple[PeerId, object]) -> tuple[RoundLeader, Plan]:
    """A leader whose plan is out."""
    made = leader(*(peer for peer, _ in shares))
    effects: list[object] = []
    for peer, done in shares:
        effects += made.report(peer, report(done), 0.0)
    sent = plans(effects)
    assert set(sent) == {peer for peer, _ in shares}
    return made, sent[shares[0][0]]


HALVES = ((ME, range(16, 20)), (B, range(20, 24)))


def ready(attempt: int = 1, digest: bytes = DIGEST, loss: float = 1.5) -> Ready:
    return Ready(STAGE, STEP, attempt, digest, loss)
