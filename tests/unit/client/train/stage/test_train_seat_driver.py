"""What a seat asks for is done by the worker, the network or its owner, and comes back to it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, call

import pytest
import trio

from client.compute.payload import Encoding, seal
from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Failed
from client.config import Settings
from client.control.snapshot import TimeView
from client.store.boundaries import BoundaryStore
from client.train.machine.time_spent import TimeSpent
from client.train.stage import seat_driver
from client.train.stage.seat_driver import SeatDriver
from client.train.workers.patience import UNKNOWN_S
from client.train.workers.task_scheduler import TaskScheduler
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED
from protocol.audit.commitment import CONTENTS, contents, root_of
from protocol.effects import Explain, Penalise
from protocol.ids import PeerId
from protocol.limits import MAX_MICROBATCHES_PER_STEP, MAX_STEP
from protocol.manifest import Manifest
from protocol.pipeline.effects import (
    BackwardTask,
    Committed,
    Compute,
    ContributeTask,
    DropStep,
    Fault,
    ForwardTask,
    Keep,
    LossTask,
    Outcome,
    PayloadKey,
    Rerouted,
    SendPayload,
    Task,
)
from protocol.pipeline.place import Place
from protocol.rounds.effects import CommitTo
from protocol.seat.effects import HeldOutLoss, Snapshot, StatusChanged
from protocol.verdicts import Verdict
from protocol.view import Replica, SwarmView
from protocol.wire.messages import (
    AuditReply,
    Commitment,
    Forward,
    Goodbye,
    Reduced,
    Segment,
)
from tests.support.protocol_examples import manifest, peer
from tests.support.seats import seat_of

ME, OTHER = peer(1), peer(2)
SIZE, STEP = 300, 3
KEY = PayloadKey(STEP, "input", 12)


FAULT = Fault("behind", "another version")
TOLD = (
    (Verdict(OTHER, "it lies", None), lambda driven: driven.ports.seat_tells, True),
    (HeldOutLoss(4, 2.0), lambda driven: driven.ports.seat_tells, True),
    (FAULT, lambda driven: driven.owner.fault, True),
    (StatusChanged(), lambda driven: driven.owner.seat_changed, False),
)
"""Whom an effect concerns, and whether it is told what it is."""


def seat_context(terms_of_run: Manifest, ports: Any) -> Any:
    """A ``StageContext`` whose engine is ``ports``; the rest writes down what it is asked for."""
    context = Mock(engine=ports, scheduler=TaskScheduler(), time_spent=TimeSpent())
    context.view = SwarmView(((),) * terms_of_run.stage_count)
    context.settings, context.history.is_kept.return_value = Settings(), False
    ports.manifest, ports.amendments.steps = terms_of_run, terms_of_run.steps
    return context


class Driven:
    """A driver of a seat; the owner, the network and the seat's answers are written down."""

    def __init__(
        self,
        stage: int = 1,
        stages: int = 3,
        nursery: trio.Nursery | None = None,
        **terms: Any,
    ) -> None:
        self.store, self.ports, self.worker = BoundaryStore(2**20, 0, Path()), Mock(), Mock(pid=0)
        self.ports.now.return_value = 100.0
        self.owner = Mock(spec=["seat_changed", "fault", "worker_lost", "look"])
        self.nursery = nursery or Mock()
        seat = seat_of(Place(ME, stage, stages, 4), STEP, size=SIZE, steps=9)
        self.around = seat_context(manifest(stages=stages, **terms), self.ports)
        self.of = SeatDriver(self.around, self.owner, seat, self.worker, self.nursery)
        self.of._payloads, self.of._samples = self.store, None
        self.saver = Mock(saved_version=0, problem="")
        self.of.saver = self.saver
        self.computed = Mock(return_value=[])
        seat.computed = self.computed  # type: ignore[method-assign]

    def see(self, *stages: Sequence[PeerId]) -> None:
        """Let those serve each stage."""
        self.of.update_view(
            SwarmView.of([[Replica(one, STEP, True) for one in held] for held in stages])
        )

    def blamed(self) -> list[Penalise]:
        effects = [one.args[0] for one in self.ports.perform.mock_calls]
        return [effect for effect in effects if isinstance(effect, Penalise)]

    def outcomes(self) -> list[Outcome]:
        return [one.args[1] for one in self.computed.mock_calls]


@pytest.mark.parametrize(("effect", "of", "whole"), TOLD, ids=lambda one: type(one).__name__)
def test_what_happens_in_a_seat_is_told_to_whom_it_concerns_while_it_is_open(
    effect: Any, of: Callable[[Driven], Mock], whole: bool
) -> None:
    driven = Driven()
    driven.of._perform([effect])
    of(driven).assert_called_once_with(*[effect] * whole)
    told = [driven.ports.seat_tells, driven.owner.fault, driven.owner.seat_changed]
    assert sum(one.call_count for one in told) == 1
    assert not driven.ports.perform.called
    driven.of.close()
    driven.of._perform([effect])
    assert of(driven).call_count == 1


def test_what_is_sent_elsewhere_is_counted_until_its_gradient_comes() -> None:
    driven = Driven()
    lost = Rerouted(STEP, 12, OTHER, "it is lost", False)
    keys = PayloadKey(STEP, "input", 11), PayloadKey(STEP, "grad_in", 12)
    for key in keys:
        driven.of._perform([lost, Keep((key,))], (b"tensor",))
    counters = driven.around.counting
    assert counters.note_rerouted.mock_calls == [call(1, lost)] * 2
    assert counters.note_gradient.mock_calls == [call(1, STEP, 12)]


@pytest.mark.parametrize(
    ("version", "due"), [(100, True), (101, False), (1000, True), (1001, True)]
)
def test_versions_are_written_when_they_are_due(version: int, due: bool) -> None:
    driven = Driven()
    driven.ports.amendments.steps = 1000
    every = driven.ports.manifest.policy.checkpoint_every
    version = every if version == 100 else version + (version == 101) * every
    done = Committed(1, version, "", None, 0.0, 4, 1)
    driven.of._perform([done])
    assert driven.saver.checkpoint.called is due
    driven.around.counting.note_committed.assert_called_once_with(done)
    driven.ports.seat_tells.assert_called_once_with(done)


def test_a_snapshot_for_a_newcomer_is_written() -> None:
    driven = Driven()
    driven.of._perform([Snapshot(4)])
    driven.saver.snapshot.assert_called_once_with(4)


def test_where_a_stage_is_about_to_end_the_others_save_where_they_stand() -> None:
    driven, ours = Driven(stages=2), [Replica(ME, STEP, True)]
    lasts = SwarmView.of([[Replica(OTHER, STEP, True)], ours])
    ends = SwarmView.of([[Replica(OTHER, STEP, True, leaving=True)], ours])
    driven.of.update_view(lasts)
    assert not driven.saver.checkpoint.called
    for _ in range(2):
        driven.of.update_view(ends)
    driven.saver.checkpoint.assert_called_once_with(STEP)
    driven.of._perform([Committed(1, 8, "", None, 0.0, 4, 1)])
    driven.saver.checkpoint.assert_called_with(8)


@pytest.mark.parametrize(
    ("others", "saved", "kept", "lost"),
    [
        ((), 2, False, True),
        ((), STEP, False, False),
        ((), 0, True, False),
        ((Replica(OTHER, STEP, True),), 0, False, False),
        ((Replica(OTHER, 2, True),), 0, False, True),
        ((Replica(OTHER, STEP, True, leaving=True),), 0, False, True),
    ],
)
def test_a_version_is_at_stake_that_nobody_else_has(
    others: tuple[Replica, ...], saved: int, kept: bool, lost: bool
) -> None:
    driven = Driven(stages=2)
    driven.saver.saved_version = saved
    driven.around.history.is_kept.return_value = kept
    stage = [Replica(ME, STEP, True), *others]
    driven.of.update_view(SwarmView.of([[], stage]))
    assert driven.of.at_stake() == (STEP if lost else None)
    driven.of.seat.member = Mock(is_left_out=True)
    assert driven.of.at_stake() is None, "others have gone on from it"
    driven.of.seat.member.is_left_out = False
    driven.of.seat.serving = False
    assert driven.of.at_stake() is None


def test_why_a_complete_step_stays_open_is_said_once() -> None:
    driven, leader = Driven(), SimpleNamespace(refused="too few electors")
    driven.of.seat.leader = cast(Any, leader)
    for _ in range(2):
        driven.of._perform([])
    words = "stage 1, step 3 stays open: too few electors"
    driven.ports.perform.assert_called_once_with(Explain("round", words))
    leader.refused = ""
    driven.of._perform([])
    leader.refused = "too few electors"
    driven.of._perform([])
    assert driven.ports.perform.call_count == 2, "it is open again"


class TestPayloads:
    def test_they_are_kept_sent_and_dropped_with_their_step(self) -> None:
        driven, other = Driven(), PayloadKey(STEP, "input", 13)
        driven.of._perform([Keep((KEY, other))], (b"one", b"two"))
        driven.of._perform([SendPayload(OTHER, Goodbye(""), (KEY, other))])
        driven.ports.send.assert_called_once_with(OTHER, Goodbye(""), b"onetwo")
        driven.of._perform([DropStep(STEP)])
        driven.of._perform([SendPayload(OTHER, Goodbye(""), (KEY,))])
        assert driven.ports.send.call_count == 1, "its step is over"
        assert driven.store._memory_bytes == 0

    def test_without_room_the_seat_is_at_fault(self) -> None:
        driven = Driven()
        driven.store.close()
        driven.of._payloads = BoundaryStore(2, 0, Path())
        driven.of._perform([Keep((KEY,))], (b"too much",))
        fault = driven.owner.fault.call_args.args[0]
        assert fault.kind == "internal"
        assert fault.words.startswith("no room for boundary tensors: ")

    def test_a_contribution_is_signed_with_all_that_it_is_made_of(self) -> None:
        driven = Driven()
        driven.ports.notary.signed.side_effect = lambda message: message
        driven.of.seat.committed = Mock(return_value=[])  # type: ignore[method-assign]
        shard = bytearray(Encoding("fp32", "average", (1,)).size_bytes)
        seal(shard)
        segment = PayloadKey(STEP, "segment", 0, 1, ME)
        driven.of._perform([Keep((segment,))], (bytes(shard),))
        gone = PayloadKey(STEP, "input", 13)
        commit = CommitTo((OTHER,), Commitment(1, STEP, 1), {13: (gone,)}, (segment, None))
        driven.of._perform([commit])
        (signed,) = [one.args[1] for one in driven.of.seat.committed.mock_calls]
        listed = driven.of._payloads.get(PayloadKey(STEP, "list", 0, 1, ME))
        assert signed.root == root_of(listed)
        found = CONTENTS.parse(listed)
        assert [row.digests for row in found.microbatches] == [()], "an auditor will see that"
        assert [bool(one) for one in signed.segments] == [True, False]
        driven.of.seat.committed.reset_mock()
        driven.ports.notary.signed.side_effect = lambda message: None
        driven.of._perform([commit])
        driven.of._perform([DropStep(STEP), commit])
        assert not driven.of.seat.committed.called


TASK, LOSS = ForwardTask(STEP, 12), LossTask(STEP, 12)


def driven_drops(driven: Driven) -> Callable[[], None]:
    return lambda: driven.of._perform([DropStep(STEP)])


class TestTasks:
    @pytest.mark.parametrize(
        ("kind", "error"),
        [("codec", "codec"), ("shape", "codec"), ("poisoned", "poisoned"), ("stale", "stale")],
    )
    def test_a_task_that_fails_is_the_seats_to_judge(self, kind: Any, error: str) -> None:
        driven = Driven()
        failed = RequestFailed(Failed(kind=kind, message="no", part=1))
        driven.of._failed(TASK, failed)
        assert driven.outcomes() == [Outcome(error=error, part=1)]
        assert not driven.owner.fault.called

    def test_a_pass_without_memory_is_a_fault_and_a_round_is_not(self) -> None:
        driven, failed = Driven(), RequestFailed(Failed(kind="oom", message="no memory"))
        driven.of._failed(TASK, failed)
        assert driven.owner.fault.call_args.args[0].kind == "memory"
        assert driven.outcomes() == []
        driven.of._failed(cast(Any, Mock(spec=ContributeTask)), failed)
        assert driven.outcomes() == [Outcome(error="oom")]

    def test_a_task_whose_payloads_are_gone_is_over(self) -> None:
        driven = Driven()
        assert driven.of._start(TASK) is False
        assert driven.outcomes() == [Outcome(error="gone")]
        assert not driven.worker.submit.called

    def test_no_input_is_sent_where_the_worker_keeps_the_graph(self) -> None:
        driven = Driven()
        given, back = b"i" * 1000, b"g" * 1000
        gradient = PayloadKey(STEP, "grad_in", 12)
        driven.of._perform([Keep((KEY, gradient))], (given, back))
        backward = BackwardTask(STEP, 12)

        def moved(task: Task) -> int:
            """Bytes that go to the worker."""
            assert driven.of._start(task)
            return sum(map(len, driven.worker.submit.call_args.args[1]))

        assert moved(backward) == 2000
        driven.of._note_graph(TASK, Outcome(graph_kept=True))
        assert moved(backward) == 1000
        dropped = RequestFailed(Failed(kind="graph", message="it was not kept"))
        driven.of._failed(backward, dropped)
        assert driven.worker.submit.call_args.args == (backward, [back, given])
        assert driven.outcomes() == []
        driven.of._failed(backward, dropped)
        assert driven.outcomes() == [Outcome(error="graph")], "it has all that there is"
        for over in (lambda: driven.of._note_graph(backward, Outcome()), driven_drops(driven)):
            driven.of._note_graph(TASK, Outcome(graph_kept=True))
            over()
            assert not driven.of._has_graph(backward)

    def test_a_worker_that_died_is_reported(self) -> None:
        driven, death = Driven(), WorkerDied(-9, ())
        driven.of._perform([Keep((KEY,))], (b"tensor",))
        driven.worker.submit.side_effect = death
        assert driven.of._start(TASK) is False
        driven.owner.worker_lost.assert_called_once_with(death)

    @pytest.mark.parametrize(
        ("attempt", "count", "planned"), [(2, 4, True), (2, 3, False), (1, 3, True)]
    )
    def test_what_is_contributed_is_what_the_plan_counts(
        self, attempt: int, count: int, planned: bool
    ) -> None:
        driven = Driven()
        driven.of.seat.member = cast(Any, SimpleNamespace(promised=2, counted=frozenset(range(4))))
        task = Mock(spec=ContributeTask, attempt=attempt)
        reply = Outcome(counted=tuple(range(count)))
        assert driven.of._as_planned(cast(Any, task), reply) is planned

    def test_passes_back_are_counted_for_the_rate_but_for_the_first_which_is_slow(self) -> None:
        driven, key = Driven(stage=0), PayloadKey(STEP, "output", 12)
        assert driven.of.rate() == 0.0
        driven.of.busy_s = 30.0
        driven.of._store(TASK, [b"output"])
        assert (driven.of.rate(), driven.of._payloads.get(key)) == (0.0, b"output")
        driven.of._store(LOSS, [])
        assert driven.of.rate() == 0.0
        driven.of.busy_s += 0.5
        driven.of._store(LOSS, [])
        assert driven.of.rate() == 2.0


class TestTheWorker:
    @pytest.mark.parametrize("closed", [False, True])
    @pytest.mark.parametrize("ends", ["dies", "fails"])
    async def test_what_becomes_of_a_task_is_told_while_the_seat_is_there(
        self, closed: bool, ends: str
    ) -> None:
        driven = Driven()
        errors = {
            "dies": WorkerDied(-9, ()),
            "fails": RequestFailed(Failed(kind="codec", message="")),
        }

        async def wait(within_s: float) -> None:
            assert within_s == UNKNOWN_S
            if closed:
                driven.of._closed = True
            raise errors[ends]

        await driven.of._take_outcome(TASK, cast(Any, SimpleNamespace(wait=wait)))
        assert driven.owner.worker_lost.called is (ends != "fails" and not closed)
        assert bool(driven.outcomes()) is (ends == "fails" and not closed)
        assert driven.of.answers_by > 100.0

    async def test_what_its_time_is_spent_on_is_noted(self) -> None:
        driven = Driven(stage=0)
        driven.of.tell(driven.of.seat.tick)
        driven.ports.now.return_value += 1.0
        assert driven.of._start(LOSS)
        driven.ports.now.return_value += 2.0
        [(finish, *task)] = [one.args for one in driven.nursery.start_soon.mock_calls]
        task[-1].wait = AsyncMock(side_effect=RequestFailed(Failed(kind="codec", message="")))
        await finish(*task)
        driven.of.seat.member.plan_followed = Mock()
        driven.of._note_time()
        driven.ports.now.return_value += 5.0
        shares = driven.around.time_spent.shares(driven.ports.now())
        assert shares == TimeView(computing=2 / 8, averaging=5 / 8, waiting=1 / 8, resting=0.0)
        driven.of.close()
        assert driven.around.time_spent.shares(driven.ports.now()) is None


class Samples:
    """Samples that come after a while."""

    def __init__(self) -> None:
        self.come, self.told = trio.Event(), list[tuple[str, int]]()

    def here(self, microbatch: int) -> bool:
        return self.come.is_set()

    async def wait(self, microbatch: int, over: Callable[[], bool]) -> None:
        while not (self.come.is_set() or over()):
            await trio.sleep(0.5)

    def begin(self, microbatch: int) -> None:
        self.told.append(("begin", microbatch))

    def end(self, microbatch: int) -> None:
        self.told.append(("end", microbatch))


@pytest.mark.parametrize("over", [False, True])
async def test_a_task_waits_for_its_samples_unless_its_step_is_over(
    nursery: trio.Nursery, over: bool
) -> None:
    driven, samples = Driven(stage=0, nursery=nursery), Samples()
    driven.of._samples = cast(Any, samples)
    entered = list[object]()
    enter = Mock(side_effect=lambda task, in_round: entered.append(in_round))
    driven.of._gate = Mock(enter=enter)
    driven.of._perform([Compute(TASK)])
    await trio.sleep(2.0)
    assert entered == []
    if over:
        driven.of.seat.step = STEP + 1
    else:
        samples.come.set()
    await trio.sleep(1.0)
    assert entered == [False]
    assert samples.told == [("begin", 12)]
    driven.of._has_read(TASK)
    assert samples.told == [("begin", 12), ("end", 12)]


# --- payloads of others ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize(
    ("message", "points"), [(Segment(1, STEP, 1, 0), 0), (Reduced(1, STEP, 1, 1, 0.5), 20)]
)
def test_a_shard_longer_than_the_stage_is_not_kept(
    codec: str, message: Segment | Reduced, points: int
) -> None:
    """Of a contribution only its receiver knows, so nobody could tell which of the two is banned
    by the other."""
    driven = Driven(stages=2, averaging_codec=codec)
    driven.see([], [ME, OTHER])
    whole = Encoding(cast(Any, codec), "average", (SIZE,)).size_bytes
    driven.of.receive(OTHER, message, bytes(whole + 1))
    assert driven.store._memory_bytes == 0
    assert driven.blamed() == [Penalise(OTHER, "shard-of-wrong-size", points)]
    driven.of.receive(OTHER, message, bytes(whole))
    assert driven.store._memory_bytes == whole
    assert len(driven.blamed()) == 1


def test_tensors_in_transit_go_to_the_disk_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``join`` says; the system's temporary folder is often in memory."""
    driven = Driven()
    monkeypatch.setattr(seat_driver, "BOUNDARY_MEMORY_BYTES", 2**20)
    driven.around.snapshots = working = tmp_path / "working"
    of = SeatDriver(driven.around, driven.owner, driven.of.seat, driven.worker, driven.nursery)
    for key in (KEY, replace(KEY, step=KEY.step + 1)):
        of._payloads.put(key, bytes(2**20))
    assert working.is_dir()
    of._payloads.close()


def test_no_sibling_fills_the_store_in_which_our_own_work_lies() -> None:
    driven = Driven(stages=2, averaging_codec="fp32")
    driven.see([], [ME, OTHER, peer(3)])
    shard = bytes(Encoding("fp32", "average", (SIZE,)).size_bytes)
    driven.of._payloads = BoundaryStore(6 * len(shard), 0, Path())
    for attempt in range(1, 9):
        driven.of.receive(OTHER, Segment(1, STEP, attempt, 0), shard)
        driven.of.receive(OTHER, Reduced(1, STEP + 1, attempt, 0, 0.5), shard)
    assert driven.of._payloads.bytes_of(OTHER) == 3 * len(shard)
    assert set(driven.blamed()) == {Penalise(OTHER, "too-many-shards", 0)}
    driven.of.receive(peer(3), Segment(1, STEP, 1, 0), shard)
    assert driven.of._payloads.bytes_of(peer(3)) == len(shard)
    assert not driven.owner.fault.called


def test_a_token_outside_the_vocabulary_is_blamed_on_who_sent_it() -> None:
    """A stage in the middle has no use for tokens: passed on, they would be its own fault."""
    driven, terms = Driven(), manifest()
    count = terms.sequences_per_microbatch * (terms.model.context + 1)
    highest = (terms.model.vocab - 1).to_bytes(2, "little")
    driven.see([OTHER], [ME], [peer(3)])
    message = Forward(1, STEP + 1, 4 * (STEP + 1), again=False)  # not run yet
    outside = highest * (count - 1) + terms.model.vocab.to_bytes(2, "little")
    driven.of.receive(OTHER, message, outside + b"tensor")
    assert driven.store._memory_bytes == 0
    assert driven.blamed() == [Penalise(OTHER, "malformed-forward", 20)]
    driven.of.receive(OTHER, message, highest * count + b"tensor")
    assert driven.store._memory_bytes == 2 * count + len(b"tensor")
    assert len(driven.blamed()) == 1


def test_a_large_boundary_is_acknowledged_when_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    driven, terms = Driven(), manifest()
    tokens = bytes(2 * terms.sequences_per_microbatch * (terms.model.context + 1))
    driven.see([OTHER], [ME], [peer(3)])
    monkeypatch.setattr(seat_driver, "MIN_PAYLOAD_BYTES", len(tokens) + 9)
    for step, n, size in ((STEP + 1, 0, 8), (STEP + 1, 1, 9), (STEP + 9, 0, 9)):
        message = Forward(1, step, 4 * step + n, again=False)
        driven.of.receive(OTHER, message, tokens + bytes(size))
    said = [one.args[0].message for one in driven.ports.perform.mock_calls]
    assert [(receipt.microbatch, receipt.verdict) for receipt in said] == [
        (4 * (STEP + 1) + 1, "known"),
        (4 * (STEP + 9), "busy"),
    ]


def test_borders_that_the_data_cannot_have_are_blamed_on_who_sent_them() -> None:
    terms = manifest()
    context, size = terms.model.context, 4 * (40 * terms.model.context + 1)
    data = DataSpec("talk", size, "0" * 64, answers=Answers(context, 100))
    driven = Driven(stages=3, data=data)
    driven.see([OTHER], [ME], [peer(3)])
    count = terms.sequences_per_microbatch * (context + 1)
    message = Forward(1, STEP + 1, 4 * (STEP + 1), again=False)
    learned, border = BEGINS.to_bytes(4, "little"), (BEGINS | NOT_LEARNED).to_bytes(4, "little")
    driven.of.receive(OTHER, message, learned + bytes(4 * count - 4) + b"tensor")
    assert len(driven.blamed()) == 1  # a border whose token is learned is never one
    driven.of.receive(OTHER, message, border + bytes(4 * count - 4) + b"tensor")
    assert len(driven.blamed()) == 1
    assert driven.store._memory_bytes


def longest_list(microbatches: int) -> bytes:
    """The list of one who has counted all of a late step, at a stage that shows most of each."""
    first = (MAX_STEP - 1) * microbatches
    digests = {first + m: (b"d" * 32,) * 5 for m in range(microbatches)}
    return contents(digests)


def test_the_longest_list_of_an_audit_is_taken_and_no_longer_one() -> None:
    many = MAX_MICROBATCHES_PER_STEP
    driven = Driven(stages=3, microbatches_per_step=many, audit_percent=3)
    driven.see([], [ME, OTHER], [])
    shown = longest_list(many)
    driven.of.receive(OTHER, AuditReply(1, STEP, 1, "list", 0), shown)
    assert not driven.blamed()
    driven.of.receive(OTHER, AuditReply(1, STEP, 1, "list", 0), shown + bytes(2**16))
    assert driven.blamed() == [Penalise(OTHER, "audit-of-wrong-size", 20)]
