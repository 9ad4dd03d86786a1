"""Delivery of boundary activations to the next stage: the outgoing half of a hop.

Per microbatch: idle -> asking (only if it was sent before: which replica holds it?) -> held (it was
sent to a replica, or one has said that it has it). When its holder is lost, the boundary, which the
driver still has, goes to another replica, *even if its gradient has already come back*.

Who takes a microbatch says nothing. A late one (``next_hop``) is asked for, and also goes to
another replica that is idle, or, if its holder brings nothing at all, to one that brings results
meanwhile; the first gradient counts. Such a holder is struck.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.effects import Explain, Send
from protocol.ids import PeerId, short
from protocol.pace import ANSWER_S, LOOK_S, LOST_S, TICK_S
from protocol.pipeline.effects import PayloadKey, PipelineEffect, Rerouted, SendPayload
from protocol.pipeline.next_hop import Account, NextHop
from protocol.wire.messages import Forward, Have, Receipt

ABSENT = 3
"""So many times a holder may say that it has not got yet what we sent; then it was lost."""


@dataclass(slots=True)
class Holder:
    """A replica that was sent a microbatch."""

    peer: PeerId
    account: Account
    sent_at: float
    queue: int = 1
    """Microbatches that it had of us then, this one included."""
    charged: bool = False
    """Whether it counts as work that the replica has of us."""
    alone: bool = False
    """No replica had the microbatch before: its time is worth a sample (Karn)."""
    accepted: bool = False
    """It has said that it has it, when it was asked."""
    absent: int = 0
    """How often it has said that it has not, though it never said that it had."""


@dataclass(slots=True)
class Delivery:
    """The state of one microbatch at the next stage."""

    step: int
    microbatch: int
    holders: list[Holder] = field(default_factory=list)
    """The replica that answers for it, or is expected to, and others that run it too; whichever
    brings the gradient first is the first."""
    asked: set[PeerId] | None = None
    """Replicas that have not yet answered our Have; None: no question for its holder is out."""
    sent_to: set[PeerId] = field(default_factory=set)
    unfit: set[PeerId] = field(default_factory=set)
    """Replicas that gave a malformed gradient of it, and would give the same again, or gave it
    back."""
    again: bool = False
    """Somebody else of our stage, or we, sent it before to a replica that is gone."""
    returned: bool = False
    """Its gradient is here; only the holder's ledger matters from now on."""
    at: float | None = None
    """When to ask or send, in monotonic seconds; None: only on an event."""
    asked_at: float = -math.inf
    """When its holders were last asked whether they have it."""

    @property
    def rests(self) -> bool:
        """Whether nothing is to be done about it before its holder is lost."""
        return self.returned and bool(self.holders)

    def held_by(self, peer: PeerId) -> Holder | None:
        """Return a replica's part in it."""
        return next((holder for holder in self.holders if holder.peer == peer), None)

    def helpful(self, live: set[PeerId], committed: int) -> set[PeerId]:
        """Return the replicas of the next stage, at version ``committed``, that may bring its
        gradient. An unfit one is left out, unless the step is closed there: then no other one can
        compute it."""
        others = live - self.unfit
        return others if others and self.step >= committed else set(live)


class Deliveries:
    """All deliveries of one replica, of the current step and of steps the next stage lacks. ``now``
    is monotonic seconds.

    Args:
        next_stage: where they go.
    """

    def __init__(self, next_stage: int) -> None:
        self._stage = next_stage
        self._open: dict[int, Delivery] = {}
        self._awake: dict[int, Delivery] = {}
        """Deliveries that may need action, few of a large step; touching another one wakes it."""
        self.next_hop = NextHop()
        self._live: set[PeerId] = set()
        self._committed = self._slowest = 0
        self._begun_at = self._fair_since = 0.0
        """When all stages behind us had begun the step, and since when we could have heard of
        results as well."""

    # --- what the replica tells us ---------------------------------------------------------

    def start(self, step: int, microbatch: int, *, again: bool, now: float) -> list[PipelineEffect]:
        """Deliver a boundary whose bytes the driver now holds.

        ``again``: a replica sent it before us, so the next stage may hold it.
        """
        delivery = self._open[microbatch] = Delivery(step, microbatch, again=again)
        return self._route(delivery, now)

    def update(
        self,
        rates: Mapping[PeerId, float],
        committed: int,
        now: float,
        *,
        slowest: int | None = None,
    ) -> list[PipelineEffect]:
        """Take a new view of the next stage.

        Args:
            rates: its live replicas with their rates, microbatches per second.
            committed: its newest version.
            slowest: newest version that it and all stages behind it have; None: ``committed``.
        """
        before, self._slowest = self._slowest, committed if slowest is None else slowest
        self._committed = max(self._committed, committed)
        if self._slowest > before:
            self._begun_at = self._fair_since = now
        lost = self._live - rates.keys()
        self._live = set(rates)
        self.next_hop.update(rates)
        effects: list[PipelineEffect] = []
        if lost:
            self._awake.update(self._open)
        for delivery in list(self._awake.values()):
            while holder := next((h for h in delivery.holders if h.peer in lost), None):
                effects += self._without(delivery, holder, now, f"lost {short(holder.peer)}")
            if delivery.asked is not None:
                delivery.asked -= lost
            elif not delivery.holders:
                effects += self._route(delivery, now)
        return effects

    def receipt(self, sender: PeerId, receipt: Receipt, now: float) -> list[PipelineEffect]:
        """Take the answer of a replica of the next stage to a Forward or a Have; an unexpected one
        is ignored."""
        delivery = self._open.get(receipt.microbatch)
        if delivery is None or delivery.step != receipt.step:
            return []
        self._awake[receipt.microbatch] = delivery
        holder = delivery.held_by(sender)
        if holder is None:
            return self._asked_answer(delivery, sender, receipt, now)
        holder.account.heard_at = now
        match receipt.verdict:
            case "known":
                holder.accepted = True
                return []
            case "declined":
                delivery.unfit.add(holder.peer)
                return self._without(delivery, holder, now)
            case "absent":
                return self._absent(delivery, holder, now)
            case "busy":
                holder.account.refused(now)
                self._release(delivery, holder)
                return [] if delivery.holders else self._offer(delivery, now)

    def gradient(self, sender: PeerId, step: int, microbatch: int, now: float) -> bool:
        """Note at ``now`` the gradient of ``microbatch`` in ``step``; False if ``sender`` was not
        sent it, or another replica of our stage answers for it."""
        delivery = self._open.get(microbatch)
        if delivery is None or delivery.step != step or sender not in delivery.sent_to:
            return False
        self._awake[microbatch] = delivery
        if account := self.next_hop.accounts.get(sender):
            account.brought(now)
        if not delivery.returned:
            self._learn(delivery, sender, now)
        self._settle_on(delivery, sender, now)
        return True

    def redo(
        self, microbatch: int, now: float, *, malformed_by: PeerId | None
    ) -> list[PipelineEffect]:
        """Fetch a gradient again, because the received one was corrupt.

        A replica that gave a malformed gradient would give the same again, so another one must
        compute it; if no other can, the same replica is asked again.

        Args:
            microbatch: its id.
            now: monotonic seconds.
            malformed_by: the replica that gave a malformed one, if any.
        """
        delivery = self._awake[microbatch] = self._open[microbatch]
        delivery.returned = False
        if malformed_by:
            delivery.unfit.add(malformed_by)
        if delivery.holders:
            return self._without(delivery, delivery.holders[0], now, "corrupt gradient")
        delivery.again = True
        return self._route(delivery, now)

    def forget(self, step: int) -> None:
        """Drop the deliveries of a step that the next stage has committed."""
        for delivery in [d for d in self._open.values() if d.step == step]:
            self.discard(delivery.microbatch)

    def discard(self, microbatch: int) -> None:
        """Drop one delivery: another replica of our stage answers for the microbatch."""
        delivery = self._open.pop(microbatch, None)
        self._awake.pop(microbatch, None)
        if delivery is not None:
            self._clear(delivery)

    # --- time ------------------------------------------------------------------------------

    def tick(self, now: float) -> list[PipelineEffect]:
        """Act on deadlines that have passed; call it every ``LOOK_S``."""
        effects: list[PipelineEffect] = []
        for delivery in self._wakeful():
            if delivery.at is None or delivery.at > now:
                continue
            if now > delivery.at + 2 * TICK_S:  # we were suspended: what others sent is unread
                self._fair_since = now
            if delivery.holders:
                effects += self._late(delivery, now)
            elif delivery.asked is not None:
                effects += self._nobody_has(delivery, now)
            else:
                effects += self._route(delivery, now)
        return effects

    def _wakeful(self) -> list[Delivery]:
        """Return the deliveries about which something may be to be done."""
        for delivery in [d for d in self._awake.values() if d.rests]:
            del self._awake[delivery.microbatch]
        return list(self._awake.values())

    def _late(self, delivery: Delivery, now: float) -> list[PipelineEffect]:
        """A microbatch may be late: ask its holders, and let another replica help the newest. One
        that cannot be late yet may be lost: that shows when no answer comes."""
        newest = delivery.holders[-1]
        usual_s = self.next_hop.late_s(newest.peer, newest.queue)
        late_s = usual_s if newest.accepted else min(usual_s, LOST_S)  # however slow the line
        since, early = max(newest.sent_at, self._fair_since), delivery.step > self._slowest
        if now < since + late_s or (early and newest.accepted):
            delivery.at = max(now, since) + late_s if early else since + late_s
            return []
        if delivery.step < self._committed:
            return self._route(delivery, now)  # whoever counts it still has its gradient
        delivery.at, effects = now + LOOK_S, list[PipelineEffect]()
        if now >= delivery.asked_at + late_s:
            delivery.asked_at = now
            for holder in delivery.holders:
                asks = Have(self._stage, delivery.step, delivery.microbatch)
                effects.append(Send(holder.peer, asks))
        if (early or now < since + usual_s) and now < delivery.asked_at + ANSWER_S:
            return effects
        return [*effects, *self._help(newest, delivery.step, since, now)]

    def _help(self, late: Holder, step: int, since: float, now: float) -> list[PipelineEffect]:
        """Give to a spare replica as well what another one is late with: the last that it was sent,
        because it has already begun the first."""
        early, slow = step > self._slowest, late.peer
        nothing = late.account.shown_at(early=early) <= since
        spare = self.next_hop.spare(since if nothing else math.inf, now, early=early)
        out = [
            delivery
            for delivery in self._wakeful()
            if delivery.step == step and not delivery.returned and delivery.holders
            if delivery.holders[-1].peer == slow and not (early and delivery.holders[-1].accepted)
            if spare - delivery.sent_to - delivery.unfit
        ]
        if not out:
            return []
        delivery = max(out, key=lambda each: each.holders[-1].sent_at)
        holder = delivery.holders[-1]
        others = self._live - (spare - delivery.sent_to - delivery.unfit)
        if (chosen := self.next_hop.choose(now, others, tried=True)) is None:
            return []
        usual_s = late.account.gradient.expected_s(holder.queue)
        words = (
            f"microbatch {delivery.microbatch}: {short(slow)} has had it for "
            f"{now - holder.sent_at:.1f} s, usually {usual_s:.1f}; {short(chosen)} gets it too"
        )
        said = Explain("pipeline", words, members=(slow, chosen))
        if nothing:
            late.account.struck(now)
        return [self._send(delivery, chosen, now), said]

    # --- finding a holder ------------------------------------------------------------------

    def _route(self, delivery: Delivery, now: float) -> list[PipelineEffect]:
        """any -> asking, if a replica of the next stage may hold it already; else held."""
        self._clear(delivery)
        self._awake[delivery.microbatch] = delivery
        closed = delivery.step < self._committed
        if not self._live or (closed and delivery.returned):
            return []  # nobody to ask, or nothing missing there
        return self._ask(delivery, now) if delivery.again or closed else self._offer(delivery, now)

    def _nobody_has(self, delivery: Delivery, now: float) -> list[PipelineEffect]:
        """asking -> held; a step that is closed there cannot be run again, only asked for."""
        delivery.asked = None
        if delivery.step >= self._committed:
            return self._offer(delivery, now)
        delivery.at = now + ANSWER_S
        return []

    def _offer(self, delivery: Delivery, now: float) -> list[PipelineEffect]:
        """idle | asking -> held, or idle until a replica appears or takes work."""
        unfit = self._live - delivery.helpful(self._live, self._committed)
        # what was lost once does not wait for another replica that has shown nothing yet
        if (chosen := self.next_hop.choose(now, unfit, tried=delivery.again)) is None:
            delivery.at = now if self._live else None
            return []
        return [self._send(delivery, chosen, now)]

    def _send(self, delivery: Delivery, peer: PeerId, now: float) -> SendPayload:
        """Make a replica, charged already, a holder, and return what does."""
        step, microbatch, account = delivery.step, delivery.microbatch, self.next_hop.accounts[peer]
        again = delivery.again or bool(delivery.holders)
        delivery.sent_to.add(peer)
        holder = Holder(peer, account, now, account.charged, charged=True, alone=not again)
        delivery.holders.append(holder)
        delivery.at = now + min(self.next_hop.late_s(peer, holder.queue), LOST_S)
        message = Forward(self._stage, step, microbatch, again)
        keys = (PayloadKey(step, "tokens", microbatch), PayloadKey(step, "output", microbatch))
        return SendPayload(peer, message, keys)

    def _ask(self, delivery: Delivery, now: float) -> list[PipelineEffect]:
        """idle -> asking: does a replica of the next stage hold it already?"""
        delivery.asked = delivery.helpful(self._live, self._committed)
        delivery.sent_to |= delivery.asked  # a gradient in the bulk lane may overtake the answer
        delivery.at = now + ANSWER_S
        question = Have(self._stage, delivery.step, delivery.microbatch)
        return [Send(peer, question) for peer in sorted(delivery.asked)]

    def _asked_answer(
        self, delivery: Delivery, sender: PeerId, receipt: Receipt, now: float
    ) -> list[PipelineEffect]:
        """asking -> held by a replica that knows it, or by a new one once all have said no."""
        asked = delivery.asked
        if asked is None or sender not in asked:
            return []
        asked.discard(sender)
        if receipt.verdict == "known":
            self._hold(delivery, sender, now)
            return []
        return [] if asked else self._nobody_has(delivery, now)

    def _hold(self, delivery: Delivery, peer: PeerId, now: float) -> None:
        """any -> held by a replica that has it already."""
        self._clear(delivery)
        account = self.next_hop.accounts[peer]
        delivery.holders = [Holder(peer, account, now, accepted=True)]
        delivery.at = None if delivery.returned else now + self.next_hop.late_s(peer, 1)

    # --- what holders answer ---------------------------------------------------------------

    def _absent(self, delivery: Delivery, holder: Holder, now: float) -> list[PipelineEffect]:
        """Handle a holder without the microbatch, which may not have arrived yet."""
        holder.absent += 1
        if not holder.accepted and holder.absent < ABSENT:
            return []
        return self._without(delivery, holder, now)

    def _learn(self, delivery: Delivery, bringer: PeerId, now: float) -> None:
        """Learn from a first gradient about the holders; after Karn, only from those that had no
        predecessor."""
        for holder in delivery.holders:
            took = now - max(holder.sent_at, self._begun_at), holder.queue, now
            if holder.alone and holder.peer == bringer:
                holder.account.settle(*took)
            elif holder.alone:
                holder.account.overtaken(*took)

    def _settle_on(self, delivery: Delivery, sender: PeerId, now: float) -> None:
        """Make the replica that brought the gradient first the holder, even if it had been given
        up, unless it is dead. A replica whose result is no longer needed stays charged until it is
        done."""
        first, delivery.returned = not delivery.returned, True
        bringer = delivery.held_by(sender)
        if bringer is not None:
            self._discharge(bringer)
            if first:
                delivery.holders.sort(key=lambda holder: holder is not bringer)
        elif sender in self._live and (first or not delivery.holders):
            self._hold(delivery, sender, now)
        if delivery.holders:
            delivery.at = None

    # --- losing a holder -------------------------------------------------------------------

    def _without(
        self, delivery: Delivery, holder: Holder, now: float, cause: str = ""
    ) -> list[PipelineEffect]:
        """A holder has lost the microbatch, by a ``cause`` that is reported: its backup becomes the
        holder, or another is searched."""
        effects, first = list[PipelineEffect](), holder is delivery.holders[0]
        delivery.again |= first
        self._release(delivery, holder)
        if not delivery.holders or (first and delivery.returned):
            effects = self._route(delivery, now)
        elif delivery.at is None and not delivery.returned:  # it seemed to run in vain
            delivery.at = now + self.next_hop.late_s(delivery.holders[0].peer, 1)
        if first and cause:
            lost = delivery.step, delivery.microbatch, holder.peer
            effects.append(Rerouted(*lost, cause, replayed=delivery.returned))
        return effects

    def _clear(self, delivery: Delivery) -> None:
        """any -> idle, with nothing to wait for."""
        for holder in list(delivery.holders):
            self._release(delivery, holder)
        delivery.asked = delivery.at = None

    def _release(self, delivery: Delivery, holder: Holder) -> None:
        self._discharge(holder)
        delivery.holders.remove(holder)

    def _discharge(self, holder: Holder) -> None:
        """The holder need not compute the microbatch any more."""
        if holder.charged:
            holder.account.release()
            holder.charged = False
