"""Deliveries of one stage with replicas A, B and C, and what their effects say."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.delivery import Deliveries
from protocol.pipeline.effects import Rerouted, SendPayload
from protocol.wire.messages import Forward, Have, Receipt, Verdict

A, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, M = 2, 25
STAGE = 1


def receipt(verdict: Verdict, attempt: int, *, step: int = STEP, microbatch: int = M) -> Receipt:
    return Receipt(STAGE, step, microbatch, attempt, verdict)


def rated(live: Iterable[PeerId]) -> dict[PeerId, float]:
    """Replicas that have not said how fast they are."""
    return dict.fromkeys(live, 0.0)


def deliveries(*live: PeerId) -> Deliveries:
    made = Deliveries(STAGE, lambda m: 10)
    made.update(rated(live), STEP, 0.0)
    return made


def offers(effects: list[object]) -> list[tuple[PeerId, int]]:
    """The target of the boundary, and the attempt."""
    return [
        (effect.peer, effect.message.attempt)
        for effect in effects
        if isinstance(effect, SendPayload) and isinstance(effect.message, Forward)
    ]


def questions(effects: list[object]) -> list[tuple[PeerId, int]]:
    return [
        (effect.peer, effect.message.attempt)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Have)
    ]


def reroutes(effects: list[object]) -> list[tuple[PeerId, PeerId | None]]:
    return [(e.lost_peer, e.to) for e in effects if isinstance(e, Rerouted)]


def offered(made: Deliveries, now: float = 0.0) -> tuple[PeerId, int]:
    """Start a delivery; where it went."""
    [offer] = offers(made.start(STEP, M, again=False, now=now))
    return offer


def held(made: Deliveries, now: float = 0.0) -> PeerId:
    peer, attempt = offered(made, now)
    assert made.receipt(peer, receipt("accepted", attempt), now) == []
    return peer


def held_by(made: Deliveries) -> PeerId | None:
    return made._open[M].peer


def load(made: Deliveries) -> int:
    """The microbatches that all replicas are charged with."""
    accounts = made.next_hop._accounts.values()
    return sum(account.charged for account in accounts)
