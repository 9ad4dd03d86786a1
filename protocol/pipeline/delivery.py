"""Delivery of boundary activations to the next stage: the outgoing half of a hop.

Per microbatch: idle -> asking (only when it was sent before: who holds it?) -> offered (sent, no
receipt yet) -> held (a replica answers for it). When its holder is lost the boundary, which the
driver still has, goes to another one, *also when its gradient has already come back*: the holder's
ledger died with it, and the round of the next stage needs it counted again. That one rule mends
every row of DESIGN.md section 8 in which a replica dies before its stage has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from protocol.effects import Effect, Explain, Send
from protocol.ids import PeerId, short
from protocol.pipeline.effects import PayloadKey, Rerouted, SendPayload
from protocol.pipeline.next_hop import NextHop
from protocol.wire.messages import Forward, Have, Receipt

ASK_S = 1.0
"""How long we wait for the next stage to say who holds a microbatch; then we send it again."""
BUSY_RETRY_S = 0.02
BUSY_RETRY_MAX_S = 1.0
OFFER_FLOOR_S = 10.0
GRADIENT_FLOOR_S = 20.0
DEADLINE_FACTOR = 6.0
"""A gradient is late after this many expected hop times (or the floor, whichever is longer)."""

DeliveryEffect = Effect | SendPayload | Rerouted


@dataclass(slots=True)
class Delivery:
    """Where one microbatch is on its way through the next stage."""

    step: int
    microbatch: int
    state: Literal["idle", "asking", "offered", "held"] = "idle"
    attempt: int = 0
    peer: PeerId | None = None
    asked: set[PeerId] = field(default_factory=set)
    """Replicas that have not yet answered our Have."""
    sent_to: set[PeerId] = field(default_factory=set)
    busy: set[PeerId] = field(default_factory=set)
    again: bool = False
    """Somebody else of our stage, or we, sent it before to a replica that is gone."""
    returned: bool = False
    """Its gradient is here; only the holder's ledger matters from now on."""
    since: float = 0.0
    deadline: float | None = None
    """Monotonic seconds; None: nothing to wait for."""
    backoff_s: float = BUSY_RETRY_S
    charge: tuple[PeerId, float] | None = None
    """Whose account carries it, and how much of it."""


class Deliveries:
    """All deliveries of one replica, of the current step and of steps the next stage lacks."""

    def __init__(self, next_stage: int, tokens_bytes: Callable[[int], int]) -> None:
        self._stage = next_stage
        self._tokens_bytes = tokens_bytes
        self._open: dict[int, Delivery] = {}
        self._hops = NextHop()
        self._rates: dict[PeerId, float] = {}
        self._live: set[PeerId] = set()
        self._committed = 0
        self.rerouted = 0

    # --- what the replica tells us ---------------------------------------------------------

    def start(self, step: int, microbatch: int, *, again: bool, now: float) -> list[DeliveryEffect]:
        """Deliver a boundary whose bytes the driver now holds.

        ``again`` says that some replica sent it before us, so the next stage may hold it.
        """
        delivery = self._open.setdefault(microbatch, Delivery(step, microbatch))
        if delivery.state != "idle":
            return []
        delivery.again |= again
        return self._route(delivery, now)

    def update(
        self, rates: Mapping[PeerId, float], committed: int, now: float
    ) -> list[DeliveryEffect]:
        """Take the next stage's live replicas with their rates, and its newest version."""
        lost = self._live - rates.keys()
        self._live = set(rates)
        self._committed = max(self._committed, committed)
        if rates != self._rates:
            self._rates = dict(rates)
            self._hops.update(rates)
        effects: list[DeliveryEffect] = []
        for delivery in list(self._open.values()):
            if delivery.peer in lost:
                effects += self._redo(delivery, f"lost {short(delivery.peer or '')}", now)
            elif delivery.state == "idle":
                effects += self._route(delivery, now)
            delivery.asked -= lost
        return effects

    def receipt(self, sender: PeerId, receipt: Receipt, now: float) -> list[DeliveryEffect]:
        """Take the answer to a Forward or a Have."""
        delivery = self._open.get(receipt.microbatch)
        if delivery is None or delivery.step != receipt.step:
            return []
        if delivery.state == "asking":
            return self._asked_answer(delivery, sender, receipt, now)
        if sender != delivery.peer:
            return []
        if receipt.verdict == "absent":  # it gave up its count to another replica: find out who
            delivery.again = True
            return self._route(delivery, now)
        if receipt.attempt != delivery.attempt:
            return []
        if receipt.verdict in ("accepted", "known"):
            delivery.state, delivery.since = "held", now
            delivery.backoff_s, delivery.busy = BUSY_RETRY_S, set()
            delivery.deadline = None if delivery.returned else self._gradient_deadline(sender, now)
            return []
        return self._refused(delivery, sender, now)

    def gradient(self, sender: PeerId, step: int, microbatch: int, now: float) -> bool:
        """Note a gradient; False if we never sent that microbatch to ``sender``."""
        delivery = self._open.get(microbatch)
        if delivery is None or delivery.step != step or sender not in delivery.sent_to:
            return False
        if not delivery.returned and delivery.peer == sender and delivery.state == "held":
            self._hops.settle(sender, now - delivery.since)
        self._discharge(delivery)
        if delivery.peer != sender and sender in self._live:
            delivery.peer, delivery.state = sender, "held"  # the slow one came through after all
        delivery.returned = True
        if delivery.state == "held":
            delivery.deadline = None
        return True

    def redo(self, microbatch: int, cause: str, now: float) -> list[DeliveryEffect]:
        """Fetch a gradient again (the one that came was corrupt)."""
        delivery = self._open.get(microbatch)
        if delivery is None:
            return []
        delivery.returned = False
        return self._redo(delivery, cause, now)

    def forget(self, step: int) -> None:
        """Drop the deliveries of a step that the next stage has committed."""
        for delivery in [d for d in self._open.values() if d.step == step]:
            self.discard(delivery.microbatch)

    def discard(self, microbatch: int) -> None:
        """Drop one delivery: another replica of our stage answers for the microbatch."""
        delivery = self._open.pop(microbatch, None)
        if delivery is not None:
            self._discharge(delivery)

    def was_rerouted(self, microbatch: int) -> bool:
        """Return whether a microbatch has been sent more than once."""
        delivery = self._open.get(microbatch)
        return delivery is not None and delivery.again

    def tick(self, now: float) -> list[DeliveryEffect]:
        """Act on deadlines that have passed."""
        effects: list[DeliveryEffect] = []
        for delivery in list(self._open.values()):
            if delivery.deadline is None or delivery.deadline > now:
                continue
            if delivery.state == "idle":
                effects += self._route(delivery, now)
            elif delivery.state == "asking":
                effects += self._nobody_has(delivery, now)
            else:
                effects += self._late(delivery, now)
        return effects

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do, in monotonic seconds."""
        return min(
            (d.deadline for d in self._open.values() if d.deadline is not None), default=None
        )

    # --- transitions -----------------------------------------------------------------------

    def _route(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """any -> asking, if a replica of the next stage may hold it already; else offered."""
        self._discharge(delivery)
        delivery.state, delivery.peer, delivery.deadline = "idle", None, None
        closed = delivery.step < self._committed
        if not self._live or (closed and delivery.returned):
            return []  # nobody to ask, or nothing missing there
        return self._ask(delivery, now) if delivery.again or closed else self._offer(delivery, now)

    def _nobody_has(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """asking -> offered; a step that is closed there cannot be run again, only asked for."""
        if delivery.step >= self._committed:
            return self._offer(delivery, now)
        delivery.state, delivery.deadline = "idle", now + ASK_S
        return []

    def _offer(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """idle | asking -> offered, or stay idle until a replica appears or is free again."""
        exclude = delivery.busy if self._live - delivery.busy else set()
        self._discharge(delivery)
        chosen = self._hops.choose(now, exclude)
        if chosen is None:
            delivery.state, delivery.peer = "idle", None
            delivery.deadline = now + BUSY_RETRY_MAX_S if self._live else None
            return []
        peer, delivery.charge = chosen[0], chosen
        delivery.attempt += 1
        delivery.state, delivery.peer, delivery.since = "offered", peer, now
        delivery.sent_to.add(peer)
        delivery.deadline = now + max(OFFER_FLOOR_S, DEADLINE_FACTOR * self._hops.expected_s(peer))
        message = Forward(
            stage=self._stage,
            step=delivery.step,
            microbatch=delivery.microbatch,
            attempt=delivery.attempt,
            tokens_bytes=self._tokens_bytes(delivery.microbatch),
            again=delivery.again,
        )
        keys = (
            PayloadKey(delivery.step, "tokens", delivery.microbatch),
            PayloadKey(delivery.step, "output", delivery.microbatch),
        )
        return [SendPayload(peer, message, keys)]

    def _ask(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """idle -> asking: does a replica of the next stage hold it already?"""
        delivery.attempt += 1
        delivery.state, delivery.peer = "asking", None
        delivery.asked = set(self._live)
        delivery.sent_to |= self._live  # a gradient in the bulk lane may overtake the answer
        delivery.deadline = now + ASK_S
        question = Have(self._stage, delivery.step, delivery.microbatch, delivery.attempt)
        return [Send(peer, question) for peer in sorted(self._live)]

    def _asked_answer(
        self, delivery: Delivery, sender: PeerId, receipt: Receipt, now: float
    ) -> list[DeliveryEffect]:
        """asking -> held by whoever knows it, or offered once everybody said no."""
        if sender not in delivery.asked or receipt.attempt != delivery.attempt:
            return []
        delivery.asked.discard(sender)
        if receipt.verdict == "known":
            delivery.state, delivery.peer, delivery.since = "held", sender, now
            delivery.sent_to.add(sender)
            delivery.deadline = None if delivery.returned else self._gradient_deadline(sender, now)
            return []
        return [] if delivery.asked else self._nobody_has(delivery, now)

    def _refused(self, delivery: Delivery, sender: PeerId, now: float) -> list[DeliveryEffect]:
        """offered | held -> another replica at once, or the same after a pause."""
        self._discharge(delivery)
        delivery.busy.add(sender)
        if self._live - delivery.busy:
            return self._offer(delivery, now)
        delivery.busy = set()
        delivery.state, delivery.peer = "idle", None
        delivery.deadline = now + delivery.backoff_s
        delivery.backoff_s = min(2 * delivery.backoff_s, BUSY_RETRY_MAX_S)
        return []

    def _redo(self, delivery: Delivery, cause: str, now: float) -> list[DeliveryEffect]:
        """any -> asking or offered, because the holder is gone or useless."""
        lost = delivery.peer
        self.rerouted += 1
        delivery.again = True
        effects = self._route(delivery, now)
        if lost is not None:
            effects.append(
                Rerouted(
                    step=delivery.step,
                    microbatch=delivery.microbatch,
                    lost_peer=lost,
                    to=delivery.peer,
                    cause=cause,
                    replayed=delivery.returned,
                )
            )
        return effects

    def _late(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """The holder missed its deadline: count it, and try another one where there is one."""
        peer = delivery.peer
        if peer is None:
            return self._route(delivery, now)
        self._hops.timed_out(peer, now)
        words = (
            f"microbatch {delivery.microbatch}: no "
            f"{'receipt' if delivery.state == 'offered' else 'gradient'} from {short(peer)} in time"
        )
        delivery.busy.add(peer)
        return [Explain("pipeline", words, "warning"), *self._redo(delivery, "late", now)]

    def _discharge(self, delivery: Delivery) -> None:
        """Its holder, if there is one, has it no longer to do."""
        if delivery.charge is not None:
            self._hops.release(*delivery.charge)
            delivery.charge = None

    def _gradient_deadline(self, peer: PeerId, now: float) -> float:
        return now + max(GRADIENT_FLOOR_S, DEADLINE_FACTOR * self._hops.expected_s(peer))
