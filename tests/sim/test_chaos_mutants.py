"""Every invariant of the chaos world notices a machine that breaks it: one rule is left out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.replay import run_once
from protocol.answer import YES
from protocol.audit.charges import Charges, verdict_of
from protocol.decree import elector
from protocol.evidence.word import OwnWord
from protocol.pipeline.delivery import Deliveries
from protocol.pipeline.effects import ApplyTask, Compute, DropStep, PayloadKey
from protocol.pipeline.pipeline import Pipeline
from protocol.recovery import trouble
from protocol.recovery.evidence import Evidence
from protocol.recovery.following import Following
from protocol.recovery.knowledge import Knowledge
from protocol.recovery.trouble import Trouble
from protocol.rounds import member
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import RoundMember
from protocol.rounds.quorum import Quorum
from protocol.verdicts import Verdict
from protocol.wire.parts import VotedOut
from tests.support.cases import usual

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """A broken rule and how to break it."""

    apply: Callable[[Patch], None]
    first_seed: int
    """One that notices it; tests begin there, for seeds take time."""
    breaks: str
    """The beginning of the violation's message."""
    lies: tuple[str, ...] = ()
    """The liar's lies, if the mutant needs one."""
    audits: float = 0.0
    """Share of the contributions that is audited."""

    def __str__(self) -> str:
        return self.apply.__name__.replace("_", " ")


def follow_unsound_plans(patch: Patch) -> None:
    """Members do not look whether a plan counts every id once."""
    patch.setattr(member, "counts_all_once", lambda members, per_step: True)


def closes_an_incomplete_step(patch: Patch) -> None:
    """The leader plans although ids are missing, and the members follow it."""
    follow_unsound_plans(patch)
    patch.setattr(RoundLeader, "_is_complete", lambda *_: True)


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


def keeps_every_step(patch: Patch) -> None:
    """Microbatches of steps that are long over are kept."""
    original = Pipeline.update_view

    def update_view(self: Pipeline, *view: Any) -> Any:
        kept = list(self._microbatches)
        effects = original(self, *view)
        for state in kept:
            self._microbatches.add(state)
        return [effect for effect in effects if not isinstance(effect, DropStep)]

    patch.setattr(Pipeline, "update_view", update_view)


def forgets_deadlines(patch: Patch) -> None:
    """Nothing that was lost on its way is sent again."""
    patch.setattr(Deliveries, "tick", lambda self, now: [])
    patch.setattr(RoundLeader, "tick", lambda self, now: [])
    patch.setattr(Trouble, "_stuck_s", lambda self: math.inf)
    patch.setattr(trouble, "IN_VAIN_S", math.inf)


def closes_without_a_quorum(patch: Patch) -> None:
    """Every side of a split goes on."""
    patch.setattr(Quorum, "holds", lambda self, now: YES)
    patch.setattr(Quorum, "may_go_on_without", lambda self, missing, now: YES)
    patch.setattr(Quorum, "suffice", lambda self, peers: True)
    patch.setattr(elector, "is_majority", lambda *_: True)


def forgets_its_word(patch: Patch) -> None:
    """A process knows nothing of what the one before it has signed, and asks nobody."""
    patch.setattr(OwnWord, "promise", lambda self, stage, era: (0, 0))
    patch.setattr(OwnWord, "may_say", lambda self, kind, said: True)
    patch.setattr(elector.Elector, "load", lambda self, terms: None)


def believes_adverts(patch: Patch) -> None:
    """Members that only records tell of have a voice, and any version may be a lineage's beginning:
    a volunteer follows what most of those say."""
    patch.setattr(Evidence, "proves", lambda self, peer: True)
    patch.setattr(Knowledge, "linked", lambda self: self.context.live - {self.me})
    patch.setattr(Following, "_would_choose", lambda self, lineage: True)


def expels_on_one_word(patch: Patch) -> None:
    """One member of a stage that charges another one expels it."""

    def verdicts(self: Charges, judges_of: object, now: float) -> list[Verdict]:
        return [
            verdict_of(VotedOut(one.charge.stage, one.charge.member, (one.envelope,)))
            for one in self.all(now)
        ]

    patch.setattr(Charges, "verdicts", verdicts)


MUTANTS = (
    Mutant(closes_an_incomplete_step, 0, "I1"),
    Mutant(applies_its_own_bytes, 0, "I1"),
    Mutant(keeps_every_step, 0, "I8"),
    Mutant(forgets_deadlines, 9, "no progress"),
    Mutant(closes_without_a_quorum, 163, "I5"),
    Mutant(believes_adverts, 0, "L1", lies=("records",)),
    Mutant(expels_on_one_word, 0, "A1", lies=("audits",), audits=0.2),
    Mutant(forgets_its_word, 100, "I9"),
)
"""The last one shows in one seed of many: ``make long`` looks for it."""
SEEDS_EACH = 40


@pytest.mark.parametrize("mutant", usual(len(MUTANTS) - 1, MUTANTS), ids=str)
def test_a_broken_machine_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    seeds = range(mutant.first_seed, mutant.first_seed + SEEDS_EACH)
    configs = (drawn(seed, mutant.lies, mutant.audits) for seed in seeds)
    caught = next((found for config in configs if (found := run_once(config)[1])), "")
    assert caught, f"{SEEDS_EACH} seeds do not notice that it {mutant}"
    assert mutant.breaks in caught.splitlines()[0]
