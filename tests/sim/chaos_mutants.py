"""Machines that are broken on purpose, one way each: a test has to notice every one.

A mutant patches a machine's class for as long as a test runs, and names the rule that it breaks.
The chaos world notices ``MUTANTS`` within some seeds. What breaks ``RARE`` happens in one seed of
many hundred, so every change of behaviour moves it to another seed: named unit tests notice those.
As a plugin (``-p tests.sim.chaos_mutants``) this breaks, in a pytest of its own, the rule that
``BROKEN_RULE`` in the environment names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from client.lab.simulate.chaos import schedule
from protocol import limits
from protocol.answer import YES
from protocol.audit.charges import Charges, verdict_of
from protocol.evidence.word import OwnWord
from protocol.ids import PeerId
from protocol.membership.contacts import CONTACT_S, Contacts
from protocol.pipeline.effects import ApplyTask, Compute, DropStep, PayloadKey, SubtractTask
from protocol.pipeline.microbatches import MicrobatchState, Phase
from protocol.pipeline.pipeline import Pipeline
from protocol.recovery.evidence import Evidence
from protocol.recovery.machine import Recovery
from protocol.rounds import leader, member, plans
from protocol.rounds.beginnings import Beginnings, Met
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import RoundMember
from protocol.rounds.quorum import Quorum
from protocol.seat.probation import Probation
from protocol.seat.seat import Seat
from protocol.verdicts import Verdict
from protocol.wire.parts import VotedOut

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A broken rule and how to break it."""

    apply: Callable[[Patch], None]
    first_seed: int
    """One that notices it; tests begin there, for seeds take time."""
    breaks: str
    """The beginning of the violation's message."""
    delayed: bool = False
    """Whether the run uses the one-step-delayed update."""
    lies: tuple[str, ...] = ()
    """The liar's lies, if the mutant needs one."""
    audits: float = 0.0
    """Share of the contributions that is audited."""
    hashes_later: bool = False
    """Whether workers compute a version's hash beside the next step's passes."""

    def __str__(self) -> str:
        return self.apply.__name__.replace("_", " ")


def counts_a_retry_twice(patch: Patch) -> None:
    """A repeated Forward is run again though its microbatch is counted already."""
    original = Pipeline._repeat

    def repeat(self: Pipeline, state: MicrobatchState, sender: PeerId, message: Any) -> Any:
        effects = original(self, state, sender, message)
        if state.phase is Phase.DONE and state.step == self.step and not self._closed:
            self._microbatches.move(state, Phase.QUEUED)
        return effects

    patch.setattr(Pipeline, "_repeat", repeat)


def closes_without_a_quorum(patch: Patch) -> None:
    """Every side of a split goes on."""
    patch.setattr(Quorum, "holds", lambda self, now: True)
    patch.setattr(Quorum, "may_go_on_without", lambda self, missing, now: True)


def takes_what_it_hears_for_contact(patch: Patch) -> None:
    """Messages that waited while a volunteer was paused count as new, and it does not check its
    peers when it wakes up. It is noticed in one run of a hundred, with many pauses in one of
    fifteen."""

    def present(self: Contacts, peer: PeerId, now: float) -> bool:
        contact = self._contacts.get(peer)
        fine = contact is not None and not contact.closed and not contact.left
        return contact is not None and fine and now < contact.heard + CONTACT_S

    patch.setattr(Contacts, "present", present)
    patch.setattr(Contacts, "hears", lambda self, peer, now: True)
    patch.setattr(Contacts, "awake_since", lambda self, now: -math.inf)
    patch.setitem(schedule.WEIGHTS, "pause", 100.0)


def does_not_subtract_doubles(patch: Patch) -> None:
    """Microbatches that another member counts stay in the accumulator."""
    original = RoundMember.advance

    def advance(self: RoundMember) -> Any:
        return [
            effect
            for effect in original(self)
            if not (isinstance(effect, Compute) and isinstance(effect.task, SubtractTask))
        ]

    patch.setattr(RoundMember, "advance", advance)


def follow_unsound_plans(patch: Patch) -> None:
    """Members do not look whether a plan counts every id once."""
    patch.setattr(member, "counts_all_once", lambda members, per_step: True)


def counts_doubles_for_both(patch: Patch) -> None:
    """The leader's plan counts an id for every member that has it, and they follow it."""
    follow_unsound_plans(patch)
    original = plans.split

    def split(reports: Any, members: list[PeerId], *of_step: int) -> Any:
        return [original(reports, [peer], *of_step)[0] for peer in members]

    patch.setattr(leader, "split", split)


def closes_an_incomplete_step(patch: Patch) -> None:
    """The leader plans although ids are missing, and the members follow it."""
    follow_unsound_plans(patch)
    patch.setattr(RoundLeader, "_is_complete", lambda self, members, now, own: True)


def applies_its_own_bytes(patch: Patch) -> None:
    """A member applies its own contribution to each segment, not what its owner broadcast."""
    original = RoundMember.try_apply

    def with_its_own(self: RoundMember, effect: Any) -> Any:
        if not isinstance(effect, Compute) or not isinstance(effect.task, ApplyTask):
            return effect
        task, me = effect.task, self._place.me
        own = (k and PayloadKey(k.step, "segment", k.item, k.attempt, me) for k in task.reduced)
        return Compute(replace(task, reduced=tuple(own)))

    def try_apply(self: RoundMember) -> Any:
        return [with_its_own(self, effect) for effect in original(self)]

    patch.setattr(RoundMember, "try_apply", try_apply)


def takes_a_lease_twice(patch: Patch) -> None:
    """An id that is leased again begins again, though it is counted already."""
    original = Pipeline.lease

    def lease(self: Pipeline, ids: list[int], **words: Any) -> Any:
        for microbatch in ids:
            state = self._microbatches.get(microbatch)
            if state is not None and state.phase is Phase.DONE and not self._closed:
                self._microbatches.move(state, Phase.QUEUED)
        return original(self, ids, **words)

    patch.setattr(Pipeline, "lease", lease)


def forgets_deadlines(patch: Patch) -> None:
    """Nothing that was lost on its way is sent again."""
    patch.setattr(Pipeline, "tick", lambda self, now: [])
    patch.setattr(RoundLeader, "next_deadline", lambda self: None)
    patch.setattr(Recovery, "_stuck_s", lambda self: math.inf)


def forgets_the_return_address(patch: Patch) -> None:
    """A request for a known microbatch does not get its gradient."""
    patch.setattr(Pipeline, "_repeat", lambda self, state, sender, message: [])
    patch.setattr(Recovery, "_stuck_s", lambda self: math.inf)


def keeps_every_step(patch: Patch) -> None:
    """Microbatches of steps that are long over are kept."""
    original = Pipeline.update_view

    def update_view(self: Pipeline, view: Any, now: float) -> Any:
        kept = list(self._microbatches)
        effects = original(self, view, now)
        for state in kept:
            self._microbatches.add(state)
        return [effect for effect in effects if not isinstance(effect, DropStep)]

    patch.setattr(Pipeline, "update_view", update_view)


def forgets_what_it_did_ahead(patch: Patch) -> None:
    """The counts of a step before it is the current one are lost then."""
    original = Pipeline.start_step

    def start_step(self: Pipeline, step: int, now: float) -> Any:
        for state in self._microbatches:
            if state.step == step and state.phase is Phase.DONE:
                self._microbatches.move(state, Phase.QUEUED)
        return original(self, step, now)

    patch.setattr(Pipeline, "start_step", start_step)


def puts_nobody_on_probation(patch: Patch) -> None:
    """Replicas count before they have worked with us. By itself it breaks nothing here, where
    everybody works; but probation keeps some of the faults below from coming up."""
    patch.setattr(Probation, "is_proven", lambda self, peer: True)


def believes_adverts(patch: Patch) -> None:
    """Members that only records tell of have a voice, and any version may be a lineage's beginning:
    a volunteer follows what most of those say."""
    patch.setattr(Evidence, "proves", lambda self, peer: True)
    patch.setattr(Evidence, "reach", lambda self, now: limits.MAX_STEP)
    patch.setattr(Recovery, "_linked", lambda self: self._context.live - {self._me})
    patch.setattr(Recovery, "_would_choose", lambda self, lineage: True)


def blames_without_a_majority(patch: Patch) -> None:
    """Who could not close the step anyway names those who hold it up: when a time aside is over the
    next one begins before there is a majority again, for longer each time."""
    puts_nobody_on_probation(patch)
    original = Seat._watch

    def watch(self: Seat, now: float) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(Quorum, "holds", lambda self, now: YES)
            return original(self, now)

    patch.setattr(Seat, "_watch", watch)


def counts_who_has_left(patch: Patch) -> None:
    """Electors that follow a later lineage help to close a step of ours."""
    puts_nobody_on_probation(patch)
    patch.setattr(Recovery, "has_left", lambda self, peer: False)


def forgets_its_siblings(patch: Patch) -> None:
    """A seat that is taken anew closes its first step before it has looked for those that were in
    its stage before: they begin there as well, and the same electors help both."""
    patch.setattr(Contacts, "remembered", lambda self, stage: frozenset())


def forgets_who_began(patch: Patch) -> None:
    """Who starts again where a lineage has just begun counts as electors only those that it meets
    then: others that it knew may have closed the first step, and left for a later lineage."""
    patch.setattr(Beginnings, "met", lambda self, stage, era, afresh=False: Met(stage, era))


def rolls_back_like_it_closes(patch: Patch) -> None:
    """A peer that is set aside does not count for a roll-back either: two survivors of three
    electors that have set each other aside wait for a majority without end, as long as they also
    blame each other without one."""
    blames_without_a_majority(patch)
    patch.setattr(Quorum, "may_roll_back", Quorum.holds)


def forgets_its_word(patch: Patch) -> None:
    """A process knows nothing of what the one before it has signed, and asks nobody."""
    patch.setattr(OwnWord, "promise", lambda self, stage, era: (0, 0))
    patch.setattr(OwnWord, "may_say", lambda self, kind, said: True)


def believes_what_a_decision_names(patch: Patch) -> None:
    """Copies that are named only along with the decision to begin at them are reason enough. It is
    noticed where electors that have left still vote, so that two lineages go on side by side."""
    counts_who_has_left(patch)
    patch.setattr(Recovery, "_said_before", lambda self, lineage: self.stored_live())


def follows_one_when_nothing_goes_on(patch: Patch) -> None:
    """Half of those that it meets are reason enough for a volunteer that has made no progress for
    long, also where nobody else has the version that they name."""
    may = Recovery._may_follow_half
    patch.setattr(
        Recovery,
        "_may_follow_half",
        lambda self, lineage, now: self._is_stalled(now) or may(self, lineage, now),
    )


def expels_on_one_word(patch: Patch) -> None:
    """One member of a stage that charges another one expels it."""

    def verdict(
        self: Charges, stage: int, member: PeerId, judges_of: object, now: float
    ) -> Verdict | None:
        about = stage, member
        said = [one for one in self.all(now) if (one.charge.stage, one.charge.member) == about]
        charges = tuple(one.envelope for one in said)
        return verdict_of(VotedOut(stage, member, charges)) if charges else None

    patch.setattr(Charges, "verdict", verdict)


MUTANTS = (
    Mutant(counts_a_retry_twice, 0, "I1"),
    Mutant(closes_an_incomplete_step, 0, "I1"),
    Mutant(applies_its_own_bytes, 0, "I1"),
    Mutant(keeps_every_step, 0, "I8"),
    Mutant(forgets_what_it_did_ahead, 0, "I1", delayed=True),
    Mutant(forgets_deadlines, 4, "no progress"),
    Mutant(forgets_the_return_address, 2, "no progress"),
    Mutant(closes_without_a_quorum, 15, "I5"),
    Mutant(counts_doubles_for_both, 10, "I1"),
    Mutant(does_not_subtract_doubles, 12, "I1"),
    Mutant(takes_a_lease_twice, 18, "I1"),
    Mutant(forgets_its_word, 100, "I9"),
    Mutant(takes_what_it_hears_for_contact, 132, "I5"),
    Mutant(counts_who_has_left, 1306, "I5"),
    Mutant(believes_adverts, 5, "L1", lies=("records",)),
    Mutant(expels_on_one_word, 0, "A1", lies=("audits",), audits=0.2),
)

RARE: dict[Callable[[Patch], None], str] = {
    forgets_who_began: "rounds/test_rounds_quorum.py"
    "::TestStartingAgainWhereALineageBegins::test_those_that_it_knew_are_still_electors",
    rolls_back_like_it_closes: "rounds/test_rounds_quorum.py"
    "::TestRollingBack::test_those_who_set_each_other_aside_are_within_reach",
    forgets_its_siblings: "rounds/test_rounds_quorum.py"
    "::test_a_seat_that_is_taken_anew_looks_around_for_siblings_of_the_last_one",
    believes_what_a_decision_names: "recovery/test_recovery_evidence.py"
    "::TestHealth::test_what_is_named_only_with_the_decision_is_no_reason_for_it",
    follows_one_when_nothing_goes_on: "recovery/test_recovery_evidence.py"
    "::TestLongAbsence::test_one_of_two_that_it_meets_then_does_not_name_a_version_that_nobody_has",
}
"""Rules, and the unit test of each, below ``tests/unit/protocol``."""

BROKEN_RULE = "BROKEN_RULE"
"""The variable of the environment that names a rule of ``RARE``."""


def pytest_configure(config: pytest.Config) -> None:
    """Break the rule that the environment names until this pytest ends."""
    if name := os.environ.get(BROKEN_RULE):
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        next(rule for rule in RARE if rule.__name__ == name)(patch)
