"""One held stage between its machine and everything else, event by event."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, call

import pytest
import trio

from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Failed, Ping
from client.control.snapshot import Counters
from client.errors import UserError
from client.train.stage.held_stage import MAX_WORKER_RESTARTS, HeldStageDriver
from client.train.stage.stage_context import StageContext
from client.train.workers.patience import AT_LEAST_S
from protocol.effects import Explain
from protocol.held_stage.machine import Do, Phase, State
from protocol.ids import PeerId
from protocol.pace import LOOK_S
from protocol.pipeline.effects import Fault
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, Goodbye
from protocol.wire.parts import SeatStatus
from tests.support.decrees import commit_of
from tests.support.protocol_examples import manifest, peer

ME, OTHER = peer(1), peer(2)
STAGE = 0


def view(*replicas: Replica) -> SwarmView:
    return SwarmView.of([replicas, [Replica(OTHER, 7, True)]])


class Held:
    """A held stage whose surroundings write down what they are asked for."""

    def __init__(self, stage: int = STAGE, *, state: State = State.ACQUIRING) -> None:
        self.around = Mock()
        self.around.engine.now.return_value = 100.0
        self.around.engine.notary.promised.return_value = (0, 0)
        self.around.engine.me = ME
        self.around.engine.manifest = manifest(peer(1))
        self.around.settings.devices = ("cpu",)
        self.around.history.is_kept.return_value = False
        self.around.let_go = trio.Event()
        self.around.history.lineage = SimpleNamespace(version=5, era=9, electors=(OTHER,))
        self.around.engine.amendments = SimpleNamespace(steps=1000)
        self.around.counting.seen = Counters()
        context = cast(StageContext, self.around)
        self.of = HeldStageDriver(context, stage)
        self.of.assign()
        if state is not State.ACQUIRING:
            self.serves()
        if state is State.DRAINING:
            self.of.drain()
        self.around.reset_mock()
        self.seat.reset_mock()

    seat: Any = Mock()

    def serves(self) -> None:
        """A seat stands."""
        self.seat = Mock()
        self.seat.seat.leader.restarts = Counter(late=1)
        self.seat.seat.place.era, self.seat.seat.member.promise = 9, (7, 3)
        self.seat.seat.member.is_left_out = False
        self.seat.seat.step, self.seat.seat.serving, self.seat.answers_by = 7, True, 130.0
        self.seat.seat.status.return_value = SeatStatus(STAGE, 7, "serving", 0, 1.0)
        self.seat.at_stake.return_value = 7
        self.saver = self.seat.saver = Mock(saved_version=0, problem="")
        self.of.driver = self.seat
        self.of._perform(self.of.machine.opened(100.0, serving=True))

    def told(self) -> list[Explain]:
        return [one.args[0] for one in self.around.engine.perform.mock_calls]


def serving(**options: Any) -> Held:
    return Held(state=State.SERVING, **options)


class TestServing:
    def test_it_is_announced_and_a_process_is_kept_warm_where_there_is_room(self) -> None:
        for room in (True, False):
            held = serving()
            held.around.memory_budget.has_room.return_value = room
            held.of._perform((Do.ANNOUNCE,))
            held.around.engine.serving.assert_called_once_with(STAGE)
            assert held.around.workers.warm.called is room

    def test_a_stage_that_drains_says_so_and_may_stay_after_all(self) -> None:
        held = serving()
        held.of.drain()
        held.seat.tell.assert_called_once_with(held.seat.seat.drain)
        assert held.around.engine.seats_changed.called
        held.around.reset_mock()
        held.of.assign()
        held.around.memory_budget.look.assert_called_once_with()
        held.seat.seat.stay.assert_called_once_with()
        assert held.around.engine.seats_changed.called

    @pytest.mark.parametrize("knows_where", [True, False])
    def test_a_new_lineage_ends_an_attempt_that_fetches_another_ones_state(
        self, knows_where: bool
    ) -> None:
        held = Held()
        held.of._acquisition = Mock(knows_where=knows_where)
        held.of.begin_anew()
        assert held.of._retake.is_set() == knows_where

    def test_what_heartbeats_say(self) -> None:
        held = serving()
        held.around.engine.seat_of.return_value = 1
        status = held.of.status()
        assert (status.version, status.seat) == (7, 1)
        held.of.drain()
        held.around.engine.seat_of.return_value = 0
        status = held.of.status()
        assert status.seat == 1, "the matching does not know it any more"
        assert Held().of.status() is None
        held = serving()
        held.of.begin_anew()
        back = held.of.status()
        assert (back.version, back.state, back.era) == (5, "fetching", 9)

    def test_time_reaches_the_seat_twice_a_second(self) -> None:
        held = serving()
        held.seat.seat.drained = False
        look = held.of.machine.look = Mock(return_value=())  # type: ignore[method-assign]
        for now in (100.0, 100.0 + LOOK_S - 0.01, 100.0 + LOOK_S):
            held.of.tick(now)
        look.assert_called_with(100.0, drained=False)
        assert held.seat.tell.mock_calls == [call(held.seat.seat.tick)] * 2


class TestItsEnd:
    def test_what_a_lost_seat_leaves_is_added_up(self) -> None:
        held = serving()
        held.of._lose()
        assert held.around.counting.seen.restarts_led == Counter(late=1)
        held.seat.close.assert_called_once_with()
        assert held.of.driver is None
        assert held.around.engine.seats_changed.called
        assert held.of._retake.is_set()
        held.around.reset_mock()
        held.of._close_seat()
        assert not held.around.mock_calls, "once"

    def test_the_next_seat_of_the_lineage_keeps_what_the_last_one_promised(self) -> None:
        held = serving()
        held.of._lose()
        made = []
        for era, promised in ((9, (0, 0)), (9, (8, 1)), (10, (0, 0))):
            held.around.engine.notary.promised.return_value = promised
            seat = SimpleNamespace(promise=None)
            with pytest.MonkeyPatch.context() as patch:
                make = Mock(return_value=seat)
                patch.setattr("client.train.stage.held_stage.Seat", make)
                held.of._new_seat(7, era, serving=True)
            made.append(make.call_args.kwargs["promise"])
        assert made == [(7, 3), (8, 1), (0, 0)]

    @pytest.mark.parametrize("lost", [True, False])
    def test_a_version_that_nobody_has_is_named_when_it_is_lost(self, lost: bool) -> None:
        held = Held(state=State.DRAINING)
        held.saver.problem = "No space left"
        held.seat.at_stake.return_value = 7 if lost else None
        assert held.of.at_stake() == (7 if lost else None)
        held.of.save_when_drained(None)
        held.of._release()
        words = "version 7 of stage 0 could not be saved: No space left"
        assert held.of.lost == (words if lost else "")
        assert held.told() == ([Explain("transfer", words, "error")] if lost else [])
        assert held.of._life.cancel_called

    def test_one_that_was_closed_without_us_is_given_up_without_a_loss(self) -> None:
        held = Held(state=State.DRAINING)
        held.of.save_when_drained(None)
        held.seat.at_stake.return_value = None
        held.of.fault(Fault("behind", "step 7 was closed with what we do not have"))
        assert held.of.lost == ""
        [said] = held.told()
        assert said.words == "step 7 was closed with what we do not have"
        assert held.of._life.cancel_called

    def test_without_a_seat_nothing_is_at_stake(self) -> None:
        assert Held().of.at_stake() is None


class TestFaults:
    @pytest.mark.parametrize(
        ("kind", "anew"),
        [
            ("behind", True),
            ("differs", True),
            ("poisoned", True),
            ("diverged", True),
            ("internal", False),
        ],
    )
    def test_after_a_fault_the_stage_is_fetched_again(self, kind: Any, anew: bool) -> None:
        held = serving()
        held.of.fault(Fault(kind, "numbers run away"))
        machine = held.around.history.machine
        left_behind = machine.known.left_behind.called
        assert (machine.evidence.reopened.called or left_behind) is anew
        assert left_behind is (kind in ("behind", "differs"))
        words = "numbers run away; fetching the stage again"
        assert held.told() == [Explain("round", words, "warning")]
        assert held.of.driver is None
        assert held.of._failure is None

    @pytest.mark.parametrize(("step", "misled"), [(7, True), (8, False)])
    def test_who_admitted_us_with_a_false_state_is_known(self, step: int, misled: bool) -> None:
        """We have gone no further with it; what we have made since may be our own fault."""
        held = serving()
        held.of._acquisition = Mock(admitted=(OTHER, 7))
        held.seat.seat.step = step
        held.of.fault(Fault("differs", "our state differs from our siblings'"))
        doubted = held.around.history.machine.evidence.misled
        assert doubted.call_args_list == ([call(OTHER)] if misled else [])

    def test_a_worker_that_dies_is_replaced_and_not_without_end(self) -> None:
        held, death = serving(), WorkerDied(-9, ("killed",))
        for number in range(1, MAX_WORKER_RESTARTS + 1):
            held.of._worker_died(death)
            assert held.around.counting.seen.worker_restarts == number
        assert held.around.engine.event_sink.worker_died.call_count == number
        with pytest.raises(UserError, match=f"died {MAX_WORKER_RESTARTS + 1} times"):
            held.of._worker_died(death)

    def test_a_worker_that_is_lost_loses_the_seat(self) -> None:
        held, death = serving(), WorkerDied(-9, ("killed",))
        held.of.worker_lost(death)
        held.of.worker_lost(WorkerDied(-11, ("later",)))
        assert held.of._failure is death
        assert held.of.driver is None


def admission(joiner: PeerId) -> Admit:
    return Admit(STAGE, 7, joiner, [OTHER], commit_of(STAGE, 6, 1, bytes(32), [OTHER]), bytes(16))


class TestMessages:
    def test_an_admission_of_ours_goes_to_the_attempt_and_all_else_to_the_seat(self) -> None:
        held, admit = serving(), admission(ME)
        assert held.of.taker(admit) is None
        held.of._acquisition = acquisition = Mock()
        assert held.of.taker(admit) == acquisition.admit
        assert held.of.taker(admission(OTHER)) == held.seat.receive
        assert held.of.taker(Goodbye("")) == held.seat.receive
        assert Held().of.taker(Goodbye("")) is None


class TestItsLife:
    async def test_a_worker_that_hangs_is_noticed_before_it_gets_the_next_seat(self) -> None:
        held, worker = serving(), AsyncMock()
        now = held.around.engine.now()
        for answers_by, busy_s in ((now + 30.0, 30.0), (now - 1.0, 0.0)):
            held.of._answers_by = answers_by
            await held.of._still_answers(worker)
            worker.call.assert_awaited_with(Ping(), busy_s + AT_LEAST_S)

    async def test_an_attempt_that_fails_is_made_again_after_a_pause(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, acquisition = Held(), Mock()
        acquisition.open = Mock(side_effect=RequestFailed(Failed(kind="disk", message="full")))
        made = Mock(return_value=acquisition)
        monkeypatch.setattr("client.train.stage.held_stage.StageAcquisition", made)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await held.of._take(Mock(), nursery)
        assert trio.current_time() > began
        (said,) = held.told()
        assert said.words.startswith("stage 0: ")
        assert said.words.endswith("; trying again")
        assert held.of._retake.is_set()

    def test_what_is_awaited_is_said(self) -> None:
        held = Held()
        held.of._waits(Phase.WORKER)
        assert held.of.phase == held.of.machine.waits_for
        held = serving()
        held.seat.seat.why.return_value = "stage 0: closing"
        held.seat.seat.member.loaded = True
        assert held.of.phase == "stage 0: closing"
        held.seat.seat.member.loaded = False
        assert held.of.phase == held.of.machine.waits_for
