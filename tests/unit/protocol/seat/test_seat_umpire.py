"""A seat as umpire: what it looks into, what it believes of what is shown, and whom it charges."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from protocol.audit.charges import CHARGE, KIND, Charge, Charges
from protocol.audit.commitment import KIND as COMMITMENT
from protocol.audit.commitment import STATEMENT, Statement, contents, root_of
from protocol.audit.umpires import AT_ONCE_EACH
from protocol.effects import Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.effects import Outcome, RecomputeTask, WeighTask
from protocol.pipeline.place import Place
from protocol.seat.auditing import AuditTerms
from protocol.seat.effects import (
    CloseCase,
    JudgeTask,
    KeepShown,
    OpenCase,
    SeatEffect,
    SignCharge,
)
from protocol.seat.umpire import OPENING_S, PATIENCE_S, Umpire
from protocol.wire.envelope import sign
from protocol.wire.messages import Case, CaseReply, CaseRequest
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

OURS, THEIRS, STEP, ATTEMPT, PER_STEP = 0, 1, 7, 2, 4
ME, BESIDE_ME, AUTHOR, MEMBER = (peer(n) for n in (1, 2, 3, 4))
STATE = b"v" * 16
SEGMENTS = (b"s" * 32, b"", b"t" * 32)
BOUNDS = [0, 60, 60, 128]
COUNTED = (28, 30)
TENSORS = ("input", "tokens", "grad_out")
"""Of the last stage."""
DIGESTS = {m: tuple(bytes([m, i]) * 16 for i in range(len(TENSORS))) for m in COUNTED}
LIST = contents(DIGESTS, SEGMENTS)


def commitment(author: int = 4, swarm: str = SWARM, **changes: object):
    said = Statement(THEIRS, STEP, ATTEMPT, 0, root_of(LIST), SEGMENTS, STATE)
    return sign(signer(author), COMMITMENT, STATEMENT.encode(replace(said, **changes)), swarm)


def charge(author: int = 3, **changes: object):
    said = Charge(THEIRS, MEMBER, STEP, ATTEMPT, root_of(LIST), "lies")
    return sign(signer(author), KIND, CHARGE.encode(replace(said, **changes)), SWARM)


def case(**changes: object) -> Case:
    return replace(Case(OURS, charge(), commitment(), BOUNDS, 3.0), **changes)


@dataclass
class Hearing:
    """An umpire with the charges that its seat has heard."""

    umpire: Umpire
    charges: Charges

    def hears(self, message: Case, sender: PeerId = AUTHOR, now: float = 1.0) -> list[SeatEffect]:
        self.charges.take(message.charge, now)
        return self.umpire.on_case(sender, message, now)

    def shows(self, name: str, item: int, digest: bytes, sender: PeerId = AUTHOR):
        reply = CaseReply(OURS, STEP, ATTEMPT, MEMBER, name, item)  # type: ignore[arg-type]
        return self.umpire.on_case_reply(sender, reply, digest, 2.0)

    def tensors_of(self, m: int) -> list[SeatEffect]:
        effects: list[SeatEffect] = []
        for name, digest in zip(TENSORS, DIGESTS[m], strict=True):
            effects += self.shows(name, m, digest)
        return effects

    def to_the_end(self) -> WeighTask:
        """Show everything, honestly; return the last task."""
        self.hears(case())
        self.umpire.opened("", 1.5)
        self.shows("list", 0, LIST)
        for m in COUNTED:
            task = next(e.task for e in self.tensors_of(m) if isinstance(e, JudgeTask))
            asked = self.umpire.computed(task, Outcome(apart=(1e-8, 0.0)), 2.0)
        del asked
        self.shows("segment", 0, SEGMENTS[0])
        [*_, last] = self.shows("segment", 2, SEGMENTS[2])
        assert isinstance(last, JudgeTask)
        assert isinstance(last.task, WeighTask)
        return last.task


def hearing(
    there: Collection[PeerId] = (AUTHOR, MEMBER), me: PeerId = ME, budget: float = 0.03
) -> Hearing:
    charges = Charges(SWARM)
    terms = AuditTerms(budget, bytes(32), True, SWARM, charges)

    def members(stage: int) -> Collection[PeerId]:
        return there if stage == THEIRS else ()

    return Hearing(Umpire(Place(me, OURS, 2, PER_STEP), terms, 0, members), charges)


def asked(effects: list[SeatEffect]) -> list[tuple[str, int]]:
    sent = [e for e in effects if isinstance(e, Send)]
    assert all(e.peer == AUTHOR and isinstance(e.message, CaseRequest) for e in sent)
    return [(e.message.name, e.message.item) for e in sent]  # type: ignore[union-attr]


def charged(effects: list[SeatEffect]) -> list[tuple[str, str, bytes]]:
    bodies = [CHARGE.parse(e.body) for e in effects if isinstance(e, SignCharge)]
    return [(one.member, one.reason, one.root) for one in bodies]


class TestACase:
    def test_opens_the_version_that_the_charged_one_has_signed(self) -> None:
        of = hearing()
        assert of.umpire.looks_into == frozenset()
        *_, opened = of.hears(case())
        assert opened == OpenCase(THEIRS, STEP, STATE, AUTHOR)
        assert of.umpire.looks_into == {AUTHOR, MEMBER}

    def test_is_asked_for_when_the_version_is_here(self) -> None:
        of = hearing()
        of.hears(case())
        assert asked(of.umpire.opened("", 2.0)) == [("list", 0)]
        first, second = [(name, m) for m in COUNTED for name in TENSORS][:3], COUNTED[1]
        names = asked(of.shows("list", 0, LIST))
        assert names == [*first, *((name, second) for name in TENSORS)]

    def test_is_recomputed_from_what_has_the_digests_that_were_signed(self) -> None:
        task = hearing().to_the_end()
        assert (task.step, task.bounds, task.before) == (STEP, tuple(BOUNDS), 3.0)
        assert task.share == len(COUNTED) / PER_STEP
        assert [key and key.item for key in task.segments] == [0, None, 2]

    def test_each_payload_is_kept(self) -> None:
        of = hearing()
        of.hears(case())
        of.umpire.opened("", 1.5)
        of.shows("list", 0, LIST)
        kept = [e.key for e in of.tensors_of(28) if isinstance(e, KeepShown)]
        assert [(key.name, key.item, key.peer) for key in kept] == [
            (name, 28, MEMBER) for name in TENSORS
        ]

    def test_is_of_a_contribution_that_lies(self) -> None:
        of = hearing()
        effects = of.umpire.computed(
            of.to_the_end(), Outcome(apart=(11.0, -11.0), told=(11.0, -11.0)), 3.0
        )
        assert charged(effects) == [(MEMBER, "lies", root_of(LIST))]
        assert effects[-1] == CloseCase()

    def test_is_of_a_contribution_that_is_as_it_should_be(self) -> None:
        of = hearing()
        effects = of.umpire.computed(of.to_the_end(), Outcome(), 3.0)
        assert charged(effects) == [(AUTHOR, "accuses", root_of(LIST))]

    def test_is_in_doubt_where_only_rounding_of_an_unknown_sum_explains_it(self) -> None:
        of = hearing()
        outcome = Outcome(apart=(0.0, 0.0), told=(0.3, 0.2))
        assert not charged(of.umpire.computed(of.to_the_end(), outcome, 3.0))

    def test_is_free_for_the_next_one_afterwards(self) -> None:
        of = hearing()
        of.umpire.computed(of.to_the_end(), Outcome(), 3.0)
        later = replace(case(), charge=charge(step=8), commitment=commitment(step=8))
        assert isinstance(of.hears(later, now=4.0)[-1], OpenCase)


class TestWhatNobodyLooksInto:
    @pytest.mark.parametrize(
        "message",
        [
            case(charge=charge(reason="fails")),
            case(charge=charge(stage=0)),
            case(charge=charge(stage=2)),
            case(charge=charge(root=b"x" * 32)),
            case(charge=charge(step=8)),
            case(charge=charge(attempt=1)),
            case(commitment=commitment(3)),  # its own word in place of the other's
            case(commitment=commitment(state=b"")),
            case(commitment=commitment(era=1)),
            case(bounds=[0, 128]),
            case(bounds=[0, 60, 50, 128]),
            case(bounds=[1, 60, 60, 128]),
            case(bounds=[]),
        ],
    )
    def test_a_case_that_is_none(self, message: Case) -> None:
        assert hearing().hears(message) == []

    def test_what_the_charged_one_has_not_signed_here(self) -> None:
        with pytest.raises(RemoteProtocolError):
            hearing().hears(case(commitment=commitment(swarm=OTHER_SWARM)))

    def test_a_charge_of_somebody_else_there(self) -> None:
        assert hearing().hears(case(charge=charge(2))) == []

    @pytest.mark.parametrize(
        "there",
        [(AUTHOR,), (MEMBER,), (AUTHOR, MEMBER, peer(5)), (AUTHOR, MEMBER, ME)],
    )
    def test_a_stage_that_can_judge_itself_or_is_ours(self, there: tuple[PeerId, ...]) -> None:
        assert hearing(there).hears(case()) == []

    def test_somebody_elses_case(self) -> None:
        assert hearing().hears(case(), sender=BESIDE_ME) == []

    def test_one_case_at_a_time_and_none_twice(self) -> None:
        of = hearing()
        of.hears(case())
        later = replace(case(), charge=charge(step=8), commitment=commitment(step=8))
        assert of.hears(later, now=5.0) == []
        of.umpire.opened("", 6.0)
        of.umpire.tick(6.0 + PATIENCE_S)
        assert of.hears(case(), now=17.0) == []

    def test_a_charge_that_was_replaced(self) -> None:
        of = hearing()
        of.charges.take(charge(step=8), 0.0)
        assert of.umpire.on_case(AUTHOR, case(), 1.0) == []


class TestNoOpinion:
    @pytest.mark.parametrize("why", ["there is no memory for it", "no donor is left"])
    def test_the_version_cannot_be_opened(self, why: str) -> None:
        of = hearing()
        of.hears(case())
        said, closed = of.umpire.opened(why, 2.0)
        assert isinstance(said, Explain)
        assert why in said.words
        assert closed == CloseCase()

    def test_one_that_could_not_be_opened_is_taken_again_at_its_price(self) -> None:
        """Its author has no other case for a while: one without an umpire would convict nobody."""
        of = hearing()
        tries = 0
        while of.hears(case(), now=1.0 + tries):
            of.umpire.opened("there is no memory for it", 1.5 + tries)
            tries += 1
        assert tries == AT_ONCE_EACH

    def test_nothing_is_shown(self) -> None:
        of = hearing()
        of.hears(case())
        of.umpire.opened("", 2.0)
        assert asked(of.umpire.tick(5.0)) == [("list", 0)], "once more"
        assert not charged(ended := of.umpire.tick(2.0 + PATIENCE_S))
        assert ended[-1] == CloseCase()

    def test_nothing_is_opened(self) -> None:
        of = hearing()
        of.hears(case())
        assert of.umpire.tick(1.0 + OPENING_S)[-1] == CloseCase()

    def test_another_payload_is_shown(self) -> None:
        """Its author cannot make anything up, and the charged one is not blamed for it."""
        of = hearing()
        of.hears(case())
        of.umpire.opened("", 2.0)
        of.shows("list", 0, LIST)
        effects = of.shows("input", 28, b"x" * 32)
        assert not charged(effects)
        assert effects[-1] == CloseCase()

    def test_another_list_is_shown(self) -> None:
        of = hearing()
        of.hears(case())
        of.umpire.opened("", 2.0)
        assert of.shows("list", 0, contents({28: DIGESTS[28]}, SEGMENTS)) == []

    def test_somebody_else_shows_something(self) -> None:
        of = hearing()
        of.hears(case())
        of.umpire.opened("", 2.0)
        assert of.shows("list", 0, LIST, sender=MEMBER) == []

    @pytest.mark.parametrize("error", ["codec", "oom", "stale", "gone"])
    def test_it_cannot_be_computed(self, error: str) -> None:
        of = hearing()
        effects = of.umpire.computed(of.to_the_end(), Outcome(error=error), 3.0)
        assert not charged(effects)
        assert effects[-1] == CloseCase()

    def test_a_list_of_another_step_is_nobodys_fault(self) -> None:
        foreign = contents({m + PER_STEP: DIGESTS[m] for m in COUNTED}, SEGMENTS)
        of = hearing()
        said = commitment(root=root_of(foreign))
        of.hears(case(charge=charge(root=root_of(foreign)), commitment=said))
        of.umpire.opened("", 2.0)
        effects = of.shows("list", 0, foreign)
        assert not charged(effects)
        assert effects[-1] == CloseCase()

    @pytest.mark.parametrize("out", [AUTHOR, MEMBER])
    def test_one_of_the_two_is_out_already(self, out: PeerId) -> None:
        of = hearing()
        of.to_the_end()
        assert of.umpire.expelled(BESIDE_ME) == []
        assert of.umpire.expelled(out) == [CloseCase()]


def test_a_run_without_audits_has_no_umpires() -> None:
    umpire = Umpire(Place(ME, OURS, 2, PER_STEP), None, 0, lambda _: (AUTHOR, MEMBER))
    assert umpire.on_case(AUTHOR, case(), 1.0) == []
    assert umpire.next_deadline() is None


def test_recomputed_tensors_that_differ_are_a_lie_as_well() -> None:
    of = hearing()
    of.hears(case())
    of.umpire.opened("", 1.5)
    of.shows("list", 0, LIST)
    for m in COUNTED:
        [task] = [e.task for e in of.tensors_of(m) if isinstance(e, JudgeTask)]
        assert isinstance(task, RecomputeTask)
        of.umpire.computed(task, Outcome(apart=(0.0, 11.0)), 2.0)
    of.shows("segment", 0, SEGMENTS[0])
    [*_, last] = of.shows("segment", 2, SEGMENTS[2])
    assert isinstance(last, JudgeTask)
    effects = of.umpire.computed(last.task, Outcome(), 3.0)
    assert charged(effects) == [(MEMBER, "lies", root_of(LIST))]
