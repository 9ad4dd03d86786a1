"""Delivery of boundary activations to the next stage: the outgoing half of a hop.

Per microbatch: idle -> asking (only if it was sent before: which replica holds it?) -> offered
(sent, no receipt yet) -> held (a replica is responsible for it). When its holder is lost, the
boundary, which the driver still has, goes to another replica, *even if its gradient has already
come back*: the holder's ledger died with it, and the next stage's round needs the microbatch
counted again. This one rule covers all cases in which a replica dies before its stage has
committed.

A late replica is asked before it is given up (a Have for a microbatch it holds). A replica that
does not answer is given up. One that answers is slow, not dead, and keeps its work, unless it
brings nothing for long. An idle replica may get a backup of late work (``backups``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.effects import Effect, Explain, Penalise, Send
from protocol.ids import PeerId, short
from protocol.pipeline.backups import Backup, BackupBudget, next_backup
from protocol.pipeline.effects import Obstructs, Rerouted, SendPayload
from protocol.pipeline.holding import (
    BUSY_RETRY_MAX_S,
    BUSY_RETRY_S,
    Delivery,
    Holder,
    forward,
    fresh_delivery,
)
from protocol.pipeline.next_hop import NextHop
from protocol.pipeline.stalling import LOOK_S, OVERSLEPT_S, stalling
from protocol.pipeline.suspicion import PATIENCE, SILENT_POINTS, judge, late_words
from protocol.wire.messages import Have, Receipt

ASK_S = 1.0
"""How long we wait for the next stage to say who holds a microbatch; then we send it again."""

DeliveryEffect = Effect | SendPayload | Rerouted | Obstructs
Rates = Mapping[PeerId, float]


class Deliveries:
    """All deliveries of one replica, of the current step and of steps the next stage lacks.

    Args:
        next_stage: where they go.
        tokens_bytes: size of a microbatch's tokens.
        hops_left: stages from the next one to the last, both included: a holder that answers but
            waits for stages behind it is given that much longer, so that the stage next to the
            fault acts first.
    """

    def __init__(
        self, next_stage: int, tokens_bytes: Callable[[int], int], *, hops_left: int = 1
    ) -> None:
        self._stage = next_stage
        self._tokens_bytes = tokens_bytes
        self._patience, self._hops_left = PATIENCE + hops_left, hops_left
        self._to_the_last = hops_left == 1
        self._open: dict[int, Delivery] = {}
        self._awake: dict[int, Delivery] = {}
        """Deliveries that may need action, few of a large step; touching another one wakes it."""
        self._given_away: dict[int, Delivery] = {}
        """Discarded while replicas may still send their gradients: they are not to blame."""
        self.next_hop = NextHop()
        self._rates: Rates = {}
        self._live: set[PeerId] = set()
        self._committed = self._slowest = 0
        self._now = 0.0
        self._looked_at = self._fair_since = 0.0
        """Before then no replica could bring results of the step, or we could not have heard of
        them."""
        self.backups = BackupBudget(1)
        self.rerouted = 0

    # --- what the replica tells us ---------------------------------------------------------

    def start(self, step: int, microbatch: int, *, again: bool, now: float) -> list[DeliveryEffect]:
        """Deliver a boundary whose bytes the driver now holds.

        Args:
            step: the step.
            microbatch: its id.
            again: a replica sent it before us, so the next stage may hold it.
            now: monotonic seconds.
        """
        self._now = now
        old = self._given_away.pop(microbatch, None)
        delivery = self._open.setdefault(microbatch, fresh_delivery(step, microbatch, old))
        if delivery.state != "idle":
            return []
        self._awake[microbatch] = delivery
        delivery.again |= again
        return self._route(delivery, now)

    def update(
        self, rates: Rates, committed: int, now: float, *, slowest: int | None = None
    ) -> list[DeliveryEffect]:
        """Take a new view of the next stage.

        Args:
            rates: its live replicas with their rates, microbatches per second.
            committed: its newest version.
            now: monotonic seconds.
            slowest: newest version that it and all stages behind it have; None: ``committed``.
        """
        before, self._slowest = self._slowest, committed if slowest is None else slowest
        self._now = now
        if self._slowest > before:
            self._fair_since = now
        lost = self._live - rates.keys()
        self._live = set(rates)
        if committed > self._committed:
            self._reached(committed, now)
        if rates != self._rates:
            self._rates = dict(rates)
            self.next_hop.update(rates)
        effects: list[DeliveryEffect] = []
        if lost:
            self._awake.update(self._open)
        for delivery in list(self._awake.values()):
            for holder in [h for h in delivery.holders() if h.peer in lost]:
                effects += self._redo(delivery, holder, f"lost {short(holder.peer)}", now)
            if delivery.asked is not None:
                delivery.asked -= lost
            if delivery.state == "idle":
                effects += self._route(delivery, now)
        return effects

    def _wakeful(self) -> list[Delivery]:
        """Return the deliveries about which something may be to be done."""
        for delivery in [d for d in self._awake.values() if d.rests]:
            del self._awake[delivery.microbatch]
        return list(self._awake.values())

    def _reached(self, step: int, now: float) -> None:
        """The next stage begins a step: what it took early is being worked on from now on."""
        self._committed = step
        for delivery in [d for d in self._open.values() if d.step == step and not d.returned]:
            for holder in [h for h in delivery.holders() if h.held_since is not None]:
                holder.held_since, holder.answers = now, 0
                self._await_gradient(delivery, holder, now)

    def receipt(self, sender: PeerId, receipt: Receipt, now: float) -> list[DeliveryEffect]:
        """Take ``sender``'s answer to a Forward or a Have; an unexpected one is ignored.

        Args:
            sender: a replica of the next stage.
            receipt: its answer.
            now: monotonic seconds.
        """
        self._now = now
        delivery = self._open.get(receipt.microbatch)
        if delivery is None or delivery.step != receipt.step:
            return []
        self._awake[receipt.microbatch] = delivery
        holder = delivery.held_by(sender)
        if holder is None:
            return self._asked_answer(delivery, sender, receipt, now)
        if receipt.verdict == "absent":
            return self._absent(delivery, holder, now)
        if receipt.attempt != holder.attempt:
            return []
        self.next_hop.told(sender, receipt.queue, now)
        if receipt.verdict in ("accepted", "known"):
            self._accepted(delivery, holder, now)
            return []
        return self._refused(delivery, holder, now)

    def gradient(self, sender: PeerId, step: int, microbatch: int, now: float) -> bool:
        """Note at ``now`` the gradient of ``microbatch`` in ``step``; False if we never sent it to
        ``sender``."""
        self._now = now
        delivery = self._open.get(microbatch) or self._given_away.get(microbatch)
        if delivery is None or delivery.step != step or sender not in delivery.sent_to:
            return False
        if microbatch not in self._open:
            return True
        self._awake[microbatch] = delivery
        self.next_hop.brought(sender, now)
        if not delivery.returned:
            self.next_hop.learn(delivery.holders(), sender, now)
        self._settle_on(delivery, sender, now)
        return True

    def redo(
        self, microbatch: int, cause: str, now: float, *, malformed_by: PeerId | None = None
    ) -> list[DeliveryEffect]:
        """Fetch a gradient again, because the received one was corrupt.

        A replica that gave a malformed gradient would give the same again, so another one must
        compute it; if no other can, the same replica is asked again after a pause.

        Args:
            microbatch: its id.
            cause: why, in words.
            now: monotonic seconds.
            malformed_by: the replica that gave a malformed one, if any.
        """
        if (delivery := self._open.get(microbatch)) is None:
            return []
        self._awake[microbatch] = delivery
        delivery.returned = False
        if malformed_by:
            delivery.spoil(malformed_by, self._live, self._committed, now)
        return self._redo(delivery, delivery.holder, cause, now)

    def forget(self, step: int) -> None:
        """Drop the deliveries of a step that the next stage has committed."""
        for delivery in [d for d in self._open.values() if d.step == step]:
            self.discard(delivery.microbatch)
        self._given_away = {m: d for m, d in self._given_away.items() if d.step > step}

    def discard(self, microbatch: int) -> None:
        """Drop one delivery: another replica of our stage answers for the microbatch."""
        delivery = self._open.pop(microbatch, None)
        self._awake.pop(microbatch, None)
        if delivery is not None:
            self._clear(delivery)
            self._given_away[microbatch] = delivery

    def was_rerouted(self, microbatch: int) -> bool:
        """Return whether a microbatch has been sent more than once."""
        return (delivery := self._open.get(microbatch)) is not None and delivery.again

    def tick(self, now: float) -> list[DeliveryEffect]:
        """Act on deadlines that have passed."""
        self._now = now
        effects: list[DeliveryEffect] = []
        for delivery in self._wakeful():
            if delivery.deadline is not None and delivery.deadline <= now:
                asking = delivery.state == "asking"
                effects += self._nobody_has(delivery, now) if asking else self._route(delivery, now)
            for holder in list(delivery.holders()):
                if holder.deadline is not None and holder.deadline <= now:
                    effects += self._late(delivery, holder, now)
        return [*effects, *self._back_up(now), *self._stalling(now)]

    def owed_for(self, now: float) -> dict[PeerId, float]:
        """Return by replica for how many seconds it has had something and brought nothing."""
        since, fair = self._awaited_since(), self._fair_since
        return {p: now - max(at, fair, self.next_hop.brought_at(p)) for p, at in since.items()}

    def _awaited_since(self) -> dict[PeerId, float]:
        """Return since when each replica has had the oldest that is awaited of it."""
        since: dict[PeerId, float] = {}
        for delivery in self._wakeful():
            if delivery.returned or delivery.step > self._slowest:
                continue
            for holder in delivery.holders():
                at = holder.held_since or holder.sent_at
                since[holder.peer] = min(at, since.get(holder.peer, at))
        return since

    def _stalling(self, now: float) -> list[Obstructs]:
        """Name the replicas that hold our work for long and bring nothing, unlike their
        siblings."""
        if now > self._looked_at + LOOK_S + OVERSLEPT_S:
            self._fair_since = now
        self._looked_at = now
        words = "it has had our microbatches for {:.1f} s and brings nothing"
        found = self._overdue(now, shown=True)
        return [Obstructs(peer, words.format(seconds)) for peer, seconds in found]

    def overdue(self, now: float) -> list[PeerId]:
        """Return the replicas that bring nothing for longer than their siblings ever need. That
        alone proves nothing: all of them may wait for the same stage behind."""
        return [peer for peer, _ in self._overdue(now, shown=False)]

    def _overdue(self, now: float, *, shown: bool) -> list[tuple[PeerId, float]]:
        return stalling(
            self._awaited_since(),
            *self.next_hop.brought_and_expected(),
            now,
            fair_since=self._fair_since,
            times=self._hops_left,
            slower=self.next_hop.slower(),
            shown=shown,
        )

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do, in monotonic seconds."""
        deadlines = [d for x in self._wakeful() if (d := x.next_deadline()) is not None]
        if found := self._next_backup(self._now):
            deadlines.append(found.at)
        return min(deadlines, default=None)

    # --- finding a holder ------------------------------------------------------------------

    def _route(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """any -> asking, if a replica of the next stage may hold it already; else offered."""
        self._clear(delivery)
        closed = delivery.step < self._committed
        if not self._live or (closed and delivery.returned):
            return []  # nobody to ask, or nothing missing there
        if now < delivery.not_before:
            delivery.deadline = delivery.not_before
            return []
        return self._ask(delivery, now) if delivery.again or closed else self._offer(delivery, now)

    def _nobody_has(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """asking -> offered; a step that is closed there cannot be run again, only asked for."""
        delivery.asked = None
        if delivery.step >= self._committed:
            return self._offer(delivery, now)
        delivery.deadline = now + ASK_S
        return []

    def _offer(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """idle | asking -> offered, or idle until a replica appears or is free."""
        delivery.deadline = None
        if (chosen := self._choose(delivery, now)) is None:
            delivery.deadline = now + BUSY_RETRY_MAX_S if self._live else None
            return []
        delivery.holder, effect = self._send(delivery, *chosen, now)
        return [effect]

    def _choose(self, delivery: Delivery, now: float) -> tuple[PeerId, float] | None:
        """Return who gets it, and the charge. If it has waited in vain once, it does not wait for
        another replica that has shown nothing yet, as long as one that has is open."""
        helpful = delivery.helpful(self._live, self._committed)
        free = helpful - delivery.busy
        exclude = self._live - (free - self.next_hop.resting(now) or free or helpful)
        if delivery.again and (
            tried := self.next_hop.choose(now, exclude | self.next_hop.untried())
        ):
            return tried
        return self.next_hop.choose(now, exclude)

    def _send(
        self, delivery: Delivery, peer: PeerId, charge_s: float, now: float
    ) -> tuple[Holder, SendPayload]:
        """Return a new holder, charged already, and what makes it one."""
        queue = self.next_hop.charged(peer)
        delivery.attempt += 1
        delivery.sent_to.add(peer)
        again = delivery.again or delivery.backed_up
        holder = Holder(peer, delivery.attempt, now, queue, charge_s, alone=not again)
        holder.deadline = now + self.next_hop.receipt_wait_s(peer, queue)
        size_bytes = self._tokens_bytes(delivery.microbatch)
        return holder, forward(delivery, holder, self._stage, size_bytes, again=again)

    def _ask(self, delivery: Delivery, now: float) -> list[DeliveryEffect]:
        """idle -> asking: does a replica of the next stage hold it already?"""
        delivery.attempt += 1
        delivery.asked = delivery.helpful(self._live, self._committed)
        delivery.sent_to |= delivery.asked  # a gradient in the bulk lane may overtake the answer
        delivery.deadline = now + ASK_S
        question = Have(self._stage, delivery.step, delivery.microbatch, delivery.attempt)
        return [Send(peer, question) for peer in sorted(delivery.asked)]

    def _asked_answer(
        self, delivery: Delivery, sender: PeerId, receipt: Receipt, now: float
    ) -> list[DeliveryEffect]:
        """asking -> held by a replica that knows it, or offered once all have said no."""
        asked = delivery.asked
        if asked is None or sender not in asked or receipt.attempt != delivery.attempt:
            return []
        asked.discard(sender)
        if receipt.verdict == "known":
            self._hold(delivery, sender, now)
            return []
        return [] if asked else self._nobody_has(delivery, now)

    def _hold(self, delivery: Delivery, peer: PeerId, now: float) -> None:
        """any -> held by a replica that has it already."""
        delivery.asked = delivery.deadline = None
        delivery.sent_to.add(peer)
        delivery.holder = Holder(peer, delivery.attempt, now, alone=False)
        self._await_gradient(delivery, delivery.holder, now)

    def _await_gradient(self, delivery: Delivery, holder: Holder, now: float) -> None:
        holder.held_since, holder.asked_at = holder.held_since or now, None
        wait_s = self.next_hop.gradient_wait_s(holder.peer, holder.queue)
        holder.deadline = None if delivery.returned else now + wait_s

    # --- what holders answer ---------------------------------------------------------------

    def _accepted(self, delivery: Delivery, holder: Holder, now: float) -> None:
        """offered -> held; held and asked: it still has it; otherwise a repetition."""
        if holder.held_since is None:
            delivery.backoff_s, delivery.busy = BUSY_RETRY_S, set()
            if holder.asked_at is None:
                self.next_hop.acknowledged(holder.peer, now - holder.sent_at, holder.queue)
            self._await_gradient(delivery, holder, now)
        elif holder.asked_at is not None:
            holder.answers += delivery.step <= self._slowest  # nothing can come before
            self._await_gradient(delivery, holder, now)

    def _absent(self, delivery: Delivery, holder: Holder, now: float) -> list[DeliveryEffect]:
        """Handle a holder without the microbatch: either it has not arrived yet, or the holder left
        its count to another replica, which is then searched."""
        if holder.held_since is None and holder.asked_at is not None:
            holder.answers += delivery.step <= self._slowest
            holder.asked_at = None
            holder.deadline = now + self.next_hop.receipt_wait_s(holder.peer, holder.queue)
            return []
        delivery.again = True
        return self._without(delivery, holder, now)

    def _refused(self, delivery: Delivery, holder: Holder, now: float) -> list[DeliveryEffect]:
        """offered | held -> another replica at once, or the same after a pause."""
        delivery.busy.add(holder.peer)
        if holder.held_since is None:
            self.next_hop.refused(holder.peer, now)
        if delivery.backup is not None:
            return self._without(delivery, holder, now)
        self._discharge(holder)
        delivery.holder = None
        free = delivery.helpful(self._live, self._committed) - delivery.busy
        if free - self.next_hop.resting(now):
            return self._offer(delivery, now)
        delivery.busy, delivery.deadline = set(), now + delivery.backoff_s
        delivery.backoff_s = min(2 * delivery.backoff_s, BUSY_RETRY_MAX_S)
        return []

    def _settle_on(self, delivery: Delivery, sender: PeerId, now: float) -> None:
        """Make the replica that brought the gradient first the holder, even if it had been given
        up, unless it is dead. A replica whose result is no longer needed stays charged until it is
        done."""
        first, delivery.returned = not delivery.returned, True
        bringer = delivery.held_by(sender)
        for holder in delivery.holders():
            holder.deadline = None
        if bringer is not None:
            self._discharge(bringer)
            bringer.held_since = bringer.held_since or now
            if bringer is delivery.backup:
                slow = delivery.holder if first else None
                delivery.holder, delivery.backup = (bringer if first else delivery.holder), slow
        elif sender in self._live and (first or delivery.holder is None):
            self._clear(delivery)
            self._hold(delivery, sender, now)

    # --- losing a holder -------------------------------------------------------------------

    def _without(self, delivery: Delivery, holder: Holder, now: float) -> list[DeliveryEffect]:
        """A holder has lost the microbatch: its backup becomes the holder, or another is
        searched."""
        self._discharge(holder)
        if holder is delivery.backup:
            delivery.backup = None
            return []
        if delivery.backup is None or delivery.returned:
            return self._route(delivery, now)
        delivery.holder, delivery.backup = (left := delivery.backup), None
        if left.deadline is None:  # it seemed to run in vain
            self._await_gradient(delivery, left, now)
        return []

    def _redo(
        self, delivery: Delivery, holder: Holder | None, cause: str, now: float
    ) -> list[DeliveryEffect]:
        """any -> asking or offered; a backup is the holder now."""
        if holder is not None and holder is delivery.backup:
            return self._without(delivery, holder, now)
        self.rerouted += 1
        delivery.again = True
        if holder is None:
            return self._route(delivery, now)
        effects = self._without(delivery, holder, now)
        lost = (delivery.step, delivery.microbatch, holder.peer)
        return [*effects, Rerouted(*lost, delivery.peer, cause, replayed=delivery.returned)]

    def _late(self, delivery: Delivery, holder: Holder, now: float) -> list[DeliveryEffect]:
        """A deadline has passed: ask the holder; if it is silent, or answers and brings nothing,
        give the work to another."""
        verdict = judge(holder, self.next_hop.brought_at(holder.peer), self._patience, now)
        if verdict == "ask":
            holder.asked_at, holder.deadline = now, now + self.next_hop.answer_s(holder.peer)
            have = Have(self._stage, delivery.step, delivery.microbatch, holder.attempt)
            return [Send(holder.peer, have)]
        effects: list[DeliveryEffect]
        effects = [Explain("pipeline", late_words(delivery, holder), "warning", (holder.peer,))]
        struck = self.next_hop.timed_out(holder.peer, now, holder.sent_at)
        if struck and verdict == "silent":
            effects.append(Penalise(holder.peer, "late-and-silent", SILENT_POINTS))
        if struck and len(self._live) > 1:
            effects.append(Obstructs(holder.peer, "it is late with our microbatches and silent"))
        delivery.busy.add(holder.peer)
        return [*effects, *self._redo(delivery, holder, "late", now)]

    def _clear(self, delivery: Delivery) -> None:
        """any -> idle, with nothing to wait for."""
        for holder in delivery.holders():
            self._discharge(holder)
        delivery.holder = delivery.backup = delivery.asked = delivery.deadline = None

    def _discharge(self, holder: Holder) -> None:
        """The holder need not compute the microbatch any more."""
        if holder.charge_s is not None:
            self.next_hop.release(holder.peer, holder.charge_s)
            holder.charge_s = None

    # --- backups ---------------------------------------------------------------------------

    def _next_backup(self, now: float) -> Backup | None:
        awaited = [d for d in self._wakeful() if d.step == self._committed and not d.returned]
        # in the last stage it is one task, which is begun and cannot be taken back
        least = 2 if self._to_the_last else 1
        return next_backup(awaited, self.next_hop, self.backups, now, least_charged=least)

    def _back_up(self, now: float) -> list[DeliveryEffect]:
        """Give late work to an idle replica as well, one microbatch at a time."""
        backup = self._next_backup(now)
        if backup is None or backup.at > now:
            return []
        delivery, peer = backup.delivery, backup.peer
        self.backups.spend()
        delivery.backed_up = True
        delivery.backup, effect = self._send(delivery, peer, self.next_hop.charge(peer), now)
        return [effect, Explain("pipeline", backup.words(now), members=(backup.holder.peer, peer))]
