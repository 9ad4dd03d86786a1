"""Machines that are broken on purpose, one way each: the chaos world has to notice every one.

A mutant patches a machine's class for as long as a test runs. Each names the rule that it breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.membership.contacts import CONTACT_S, Contacts
from protocol.pipeline.effects import Compute, PayloadKey, SubtractTask
from protocol.pipeline.hop import Hop, Phase
from protocol.pipeline.pipeline import Pipeline
from protocol.restore.machine import Restore
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import Progress, RoundMember
from protocol.rounds.quorum import Quorum
from protocol.seat.seat import Seat

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A broken rule and how to break it."""

    name: str
    apply: Callable[[Patch], None]

    def __str__(self) -> str:
        return self.name


def counts_a_retry_twice(patch: Patch) -> None:
    """A repeated Forward is run again though its microbatch is counted already."""
    original = Pipeline._repeat

    def repeat(self: Pipeline, hop: Hop, sender: PeerId, message: Any) -> Any:
        effects = original(self, hop, sender, message)
        if hop.phase is Phase.DONE and hop.step == self.step and not self.closed:
            hop.phase = Phase.QUEUED
        return effects

    patch.setattr(Pipeline, "_repeat", repeat)


def commits_without_all_ready(patch: Patch) -> None:
    """One member's Ready is enough for the leader."""
    original = RoundLeader._try_decide

    def try_decide(self: RoundLeader, now: float) -> Any:
        if self._plan is not None and self._ready:
            known = next(iter(self._ready.values()))
            for member in self._plan.members:
                self._ready.setdefault(PeerId(member.peer), known)
        return original(self, now)

    patch.setattr(RoundLeader, "_try_decide", try_decide)


def closes_without_a_quorum(patch: Patch) -> None:
    """Every side of a split goes on."""
    patch.setattr(Quorum, "holds", lambda self, now: True)
    patch.setattr(Quorum, "may_go_on_without", lambda self, missing, now: True)


def takes_what_it_hears_for_contact(patch: Patch) -> None:
    """What waited while a volunteer was paused counts as if it had been said now."""

    def present(self: Contacts, peer: PeerId, now: float) -> bool:
        contact = self._contacts.get(peer)
        fine = contact is not None and not contact.closed and not contact.left
        return contact is not None and fine and now < contact.heard + CONTACT_S

    patch.setattr(Contacts, "present", present)


def does_not_subtract_doubles(patch: Patch) -> None:
    """What another member counts stays in the accumulator."""
    original = RoundMember.advance

    def advance(self: RoundMember) -> Any:
        return [
            effect
            for effect in original(self)
            if not (isinstance(effect, Compute) and isinstance(effect.task, SubtractTask))
        ]

    patch.setattr(RoundMember, "advance", advance)


def counts_doubles_for_both(patch: Patch) -> None:
    """The leader's plan counts an id for every member that has it."""
    original = RoundLeader._split

    def split(self: RoundLeader, members: list[PeerId]) -> Any:
        return [original(self, [peer])[0] for peer in members]

    patch.setattr(RoundLeader, "_split", split)


def closes_an_incomplete_step(patch: Patch) -> None:
    """The leader plans although ids are missing."""
    patch.setattr(RoundLeader, "_is_complete", lambda self, members, now: True)


def takes_a_stale_forward(patch: Patch) -> None:
    """A Forward of a step that is over is run in the current one."""
    original = Pipeline.forward

    def forward(self: Pipeline, sender: PeerId, message: Any, now: float) -> Any:
        if message.step < self.step:
            shift = (self.step - message.step) * self._place.per_step
            step, microbatch = self.step, message.microbatch + shift
            message = _moved(message, step, microbatch)
        return original(self, sender, message, now)

    patch.setattr(Pipeline, "forward", forward)


def _moved(message: Any, step: int, microbatch: int) -> Any:
    fields = {f: getattr(message, f) for f in message.__struct_fields__}
    return type(message)(**{**fields, "step": step, "microbatch": microbatch})


def applies_its_own_bytes(patch: Patch) -> None:
    """A member applies its own contribution to each shard, not what its owner broadcast."""
    original = RoundMember._apply_task

    def apply_task(self: RoundMember, plan: Any) -> Any:
        task, me = original(self, plan), self._place.me
        keys = [PayloadKey(k.step, "shard", k.item, k.attempt, me) if k else k for k in task.reduced]
        return replace(task, reduced=tuple(keys))

    patch.setattr(RoundMember, "_apply_task", apply_task)


def goes_back_to_a_lower_attempt(patch: Patch) -> None:
    """A member follows whichever plan came last, and applies whatever is committed."""
    original, committed = RoundMember.plan, RoundMember.committed

    def plan(self: RoundMember, sender: PeerId, plan: Any) -> Any:
        if self.progress is not Progress.APPLYING and self.promised != plan.attempt:
            self.promised = min(self.promised, plan.attempt - 1)
        return original(self, sender, plan)

    def learn(self: RoundMember, attempt: int, digest: bytes) -> Any:
        self.promised = min(self.promised, attempt)
        return committed(self, attempt, digest)

    patch.setattr(RoundMember, "plan", plan)
    patch.setattr(RoundMember, "committed", learn)


def takes_a_lease_twice(patch: Patch) -> None:
    """An id that is leased again begins again, though it is counted already."""
    original = Pipeline.lease

    def lease(self: Pipeline, ids: list[int], **words: Any) -> Any:
        for microbatch in ids:
            hop = self._hops.get(microbatch)
            if hop is not None and hop.phase is Phase.DONE and not self.closed:
                hop.phase = Phase.QUEUED
        return original(self, ids, **words)

    patch.setattr(Pipeline, "lease", lease)


def applies_what_it_does_not_hold(patch: Patch) -> None:
    """A commit is applied though its digest is not that of what is held."""
    original = RoundMember.try_apply

    def try_apply(self: RoundMember) -> Any:
        if self._commit is not None and self._plan is not None and self._digest:
            self._commit = (self._plan.attempt, self._digest)
        return original(self)

    patch.setattr(RoundMember, "try_apply", try_apply)


def does_not_fence_eras(patch: Patch) -> None:
    """What was said before a roll-back counts after it."""
    patch.setattr("protocol.seat.seat.era_of", lambda message, otherwise: otherwise)


def begins_where_others_have_long_been(patch: Patch) -> None:
    """Who comes back without a state believes the first one it sees."""
    patch.setattr(Restore, "may_begin", lambda self, now: self.open)


def forgets_deadlines(patch: Patch) -> None:
    """Nothing that was lost on its way is sent again."""
    patch.setattr(Pipeline, "tick", lambda self, now: [])
    patch.setattr(RoundLeader, "next_deadline", lambda self: None)
    patch.setattr(Restore, "_stuck_s", lambda self: math.inf)


def forgets_the_return_address(patch: Patch) -> None:
    """Who asks for a known microbatch does not get its gradient."""
    patch.setattr(Pipeline, "_repeat", lambda self, hop, sender, message: [])
    patch.setattr(Restore, "_stuck_s", lambda self: math.inf)


def serves_before_it_has_caught_up(patch: Patch) -> None:
    """A newcomer takes part as soon as it is let in, whatever it has missed."""
    original = Seat.state_loaded

    def state_loaded(self: Seat, now: float) -> Any:
        self.serving = True
        return original(self, now)

    patch.setattr(Seat, "state_loaded", state_loaded)


def tells_itself_first(patch: Patch) -> None:
    """The leader applies before anybody else knows the commit."""
    original = RoundLeader._decide

    def decide(self: RoundLeader, *words: Any) -> Any:
        effects = original(self, *words)
        own = self._tell_self()
        return [*own, *(e for e in effects if isinstance(e, Send) or True)]

    patch.setattr(RoundLeader, "_decide", decide)


def all_mutants() -> list[Mutant]:
    return [
        Mutant(f.__name__.replace("_", " "), f)
        for f in globals().values()
        if callable(f) and getattr(f, "__annotations__", {}).get("patch") == "Patch"
    ]
