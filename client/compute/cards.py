"""The devices of a worker, each with the whole stage: one volunteer, all of its cards.

Microbatches are dealt out: a microbatch belongs to one card from its first request on, because its
graph and its gradient are there. Each card computes in a thread of its own.

The first card leads. It makes the versions, takes part in rounds, audits and saves; before a
contribution the gradient sums are moved to it, and after an update it gives the parameters to the
others. So all have the same bits, and the node sees one worker with one ledger.

Passes of different microbatches overlap and may be answered in another order; everything that moves
a sum or makes a version waits until all before it are answered, and what comes after waits for it.
A single card computes in the thread that asks, one request at a time.

State: the cards; which microbatch belongs to which.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from client.compute.errors import StaleRequest
from client.compute.replica import Replica
from client.compute.requests import AnyRequest
from protocol.pipeline.effects import (
    BackwardTask,
    CompareTask,
    DecodeTask,
    ForwardTask,
    KeepVersionTask,
    LossTask,
    PassTask,
    ReduceTask,
)

MOST_ASKED: Final = 4
"""Requests that a card has at a time, with all that they carry: one is computed, others wait."""

PASSES = ForwardTask | LossTask | BackwardTask | PassTask
_LED = ReduceTask | DecodeTask | KeepVersionTask | CompareTask
"""Requests that the first card executes beside passes of the others."""


class Card:
    """A device with a replica, once a stage is opened; ``place`` names it to the owner, of
    several."""

    def __init__(self, place: str = "") -> None:
        self.place = place
        self.held: Replica | None = None
        self.computing = self.answers = ThreadPoolExecutor(1, "answers")
        self.asked = 0
        """Requests that are not answered."""

    @property
    def replica(self) -> Replica:
        """The stage; raises `StaleRequest` where there is none."""
        if self.held is None:
            raise StaleRequest("no stage is open")
        return self.held

    def begin_thread(self, device: torch.device) -> None:
        """Have a thread compute on this card, with as many threads as the caller's; raises what it
        raises."""
        self.computing = ThreadPoolExecutor(1, "computing")
        self.computing.submit(_prepare, device, torch.get_num_threads()).result()


def _prepare(device: torch.device, threads: int) -> None:
    """Prepare a card's thread."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)


class Cards:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.leader, self.others = Card(), list[Card]()
        self._homes: dict[int, Card] = {}
        self._changed = threading.Condition()

    @property
    def all(self) -> list[Card]:
        """The cards, the one that leads first."""
        return [self.leader, *self.others]

    def emptied(self, devices: Sequence[torch.device]) -> list[Card]:
        """Give up all replicas, which frees their memory; return a card for each of these
        devices."""
        self._homes.clear()
        self.leader.held = None
        self.leader.place = f"{devices[0]}: " if len(devices) > 1 else ""
        self.others = [Card(f"{device}: ") for device in devices[1:]]
        return self.all

    def begin(self, request: AnyRequest) -> tuple[Card, bool]:
        """Wait until a request may begin; return its card, and whether this one computes it in its
        own thread, beside others."""
        beside = bool(self.others) and isinstance(request, PASSES | _LED)
        with self._changed:
            if beside:
                self._changed.wait_for(lambda: self._card_of(request).asked < MOST_ASKED)
            elif self.others:
                self._changed.wait_for(self._is_quiet)
            card = self._card_of(request)
            card.asked += 1
            if isinstance(request, PASSES):
                self._homes.setdefault(request.microbatch, card)
        return card, beside

    def answered(self, card: Card) -> None:
        """A request of a card is answered."""
        with self._changed:
            card.asked -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when all requests are answered."""
        with self._changed:
            self._changed.wait_for(self._is_quiet)

    def _is_quiet(self) -> bool:
        return not any(card.asked for card in self.all)

    def _card_of(self, request: AnyRequest) -> Card:
        if not self.others or not isinstance(request, PASSES):
            return self.leader
        if isinstance(request, PassTask) and request.into == "audit":
            return self.leader
        if (home := self._homes.get(request.microbatch)) is not None:
            return home
        held = Counter(self._homes.values())
        return min(self.all, key=lambda card: (card.asked, held[card]))

    def gather(self) -> None:
        """Move what the other cards have counted to the first one, in their order, by its scratch.

        Raises:
            SystemExit: a card has failed: what is counted is not known any more.
        """
        leader = self.leader.replica
        for card in self.others:
            theirs = card.replica
            if not theirs.counted:
                continue
            leader.sums.clear()
            with _all_or_none(card):
                leader.gradient_sum.add_(leader.flat.gradients.copy_(theirs.gradient_sum))
                theirs.gradient_sum.zero_()
            leader.counted.update(theirs.counted)
            self._homes.update(dict.fromkeys(theirs.counted, self.leader))
            theirs.counted.clear()

    def share(self, *, base: bool = False) -> None:
        """Give all cards the first one's version; ``base``: with what is frozen beside adapters.

        Raises:
            SystemExit: a card has failed, or got other numbers.
        """
        self._homes.clear()
        leader = self.leader.replica
        for card in self.others:
            own = card.replica
            with _all_or_none(card):
                own.begin(leader.version)
                own.flat.values.copy_(leader.parameters)
                if _checksum(own.flat.values) != _checksum(leader.parameters):
                    raise ArithmeticError("its parameters are not the first card's")
                if base:
                    named = leader.module.named_parameters()
                    frozen = {name: each.data for name, each in named if not each.requires_grad}
                    own.load_base({name: each.to(own.wire.device) for name, each in frozen.items()})


@contextmanager
def _all_or_none(card: Card) -> Iterator[None]:
    """End the process where an exchange with a card fails halfway."""
    try:
        yield
    except Exception as error:
        raise SystemExit(f"{card.place}it failed beside other cards: {error}") from error


def _checksum(values: Tensor) -> int:
    """Sum of the bits of numbers in fp32."""
    return int(values.view(torch.int32).sum(dtype=torch.int64))
