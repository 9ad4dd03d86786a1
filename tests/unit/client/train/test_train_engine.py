"""The engine between the membership, the matching and the seats."""

import itertools
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import trio

from client.net.network import Inbound, NetEvent, PeerDown, PeerUp
from client.train.engine import Engine
from protocol.effects import Explain, Penalise, Publish, Send
from protocol.ids import PeerId, Stage
from protocol.matching.bodies import KIND as POSTING
from protocol.matching.bodies import Posting
from protocol.matching.effects import Assign, Unassign
from protocol.matching.machine import Matching
from protocol.membership.losses import PROGRESS
from protocol.membership.view import RecordChanged, ViewChanged
from protocol.recovery.stored import STORED, begun
from protocol.waypoints.part import WAYPOINT
from protocol.wire.letters import Mandate, Withdraw
from protocol.wire.messages import (
    Commit,
    Goodbye,
    Heartbeat,
    JoinStage,
    LeaseRequest,
    Letter,
    Message,
    Propose,
    Records,
    Vote,
)
from protocol.wire.parts import Decree
from tests.support.decrees import show
from tests.support.protocol_examples import posting
from tests.support.train_swarm import ADVERT, TestSwarm, Volunteer, open_swarm


async def test_who_enters_late_hears_what_stewards_said_before(
    swarm: TestSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker takes seconds to start; a posting is repeated every twenty. Without it, it would
    take the stage for vacant and itself for the steward."""
    heard = list[tuple[PeerId, int]]()

    def receive(_: Matching, author: PeerId, posting: Posting, now: float) -> list[Any]:
        heard.append((author, posting.stage))
        if posting.stage == 0:
            raise ValueError("a bug of ours")
        return []

    monkeypatch.setattr(Matching, "receive_posting", receive)
    steward, late = await swarm.add(), await swarm.add()
    peer = steward.peer
    for stage in (0, 1):
        steward.engine.perform(Publish(POSTING, posting(stage)))
    await swarm.until(lambda: len(late.engine.membership.heard_before()) == 2)
    assert not heard
    late.engine.describe(ADVERT)
    assert sorted(heard) == [(peer, 0), (peer, 1)]
    assert late.engine.internal_errors == 1


async def test_who_has_a_slow_line_reduces_nothing_and_every_step_is_exact(tmp_path: Path) -> None:
    """The limit that an owner has set reaches the leader's plan."""
    async with open_swarm(tmp_path, steps=6) as swarm:
        slow = await swarm.add(0)
        engine, own = slow.engine, dict[str, int]()
        limited = msgspec.structs.replace(ADVERT, upload_bytes_per_s=1e5)
        engine.perform(*engine.membership.describe(limited, engine.now()))
        for stage in (0, 0, 1):
            await swarm.add(stage)

        def planned() -> bool:
            driver = slow.held(0).driver
            plan = driver.seat.member.plan_followed if driver else None
            if plan is not None:
                sizes = [end - start for start, end in itertools.pairwise(plan.bounds)]
                owners = [member.peer for member in plan.members]
                own.update(zip(owners, sizes, strict=True))
            return len(own) == 3

        await swarm.until(planned)
        assert own.pop(engine.signer.peer) == 0
        assert min(own.values()) > 0
        await swarm.until_done()
        swarm.assert_exact()


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
async def test_the_matching_follows_the_clock_when_it_is_set(
    swarm: TestSwarm, monkeypatch: pytest.MonkeyPatch, shift_s: float
) -> None:
    """After a suspend the monotonic clock lags behind; every posting of others looked stale."""
    engine = (await swarm.add()).engine
    engine.describe(ADVERT)
    wall = engine.wall() + shift_s
    monkeypatch.setattr(engine, "wall", lambda: wall)
    engine._tick()
    assert engine.matching.context.wall_s(engine.now()) == pytest.approx(wall, abs=1)


def watched(engine: Engine, *methods: str) -> Mock:
    """Write down with what these methods of an engine's parts are called, by their names; they do
    what they do all the same."""
    told = Mock()
    for method in methods:
        part, name = method.rsplit(".", 1)
        of = attrgetter(part)(engine)
        spy = Mock(wraps=getattr(of, name))
        told.attach_mock(spy, method.replace(".", "_").lstrip("_"))
        setattr(of, name, spy)
    return told


def calls(told: Mock) -> dict[str, list[tuple[Any, ...]]]:
    """With what each method was called, by its name."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, arguments, _ in told.mock_calls:
        found.setdefault(name, []).append(tuple(arguments))
    return found


@pytest.fixture
async def engine(swarm: TestSwarm) -> Engine:
    """An engine of which nothing runs by itself."""
    volunteer = await swarm.add()
    volunteer.life.cancel()
    await trio.testing.wait_all_tasks_blocked()
    return volunteer.engine


LETTER = Letter(Withdraw(0, Mandate(1, 1), 1, "no answer"))
COMES = ["expulsions.link_up", "amending.link_up", "waypoints.link_up", "held_stages.linked"]
COMES += ["membership.link_up"]
GOES = ["downloads.lost"]
GOES += ["reach.gone", "membership.link_down", "measuring.gone", "chunks.gone"]


async def test_every_part_hears_of_a_link_and_of_its_end(swarm: TestSwarm) -> None:
    one = await swarm.add()
    told = watched(one.engine, *COMES, *GOES)
    other = await swarm.add()
    peer = other.peer
    await swarm.until(lambda: peer in one.engine.handshake.admitted)
    come = calls(told)
    for method in COMES:
        assert [of[0] for of in come[method.replace(".", "_").lstrip("_")]] == [peer], method
    told.reset_mock()
    swarm.vanish(other)
    await swarm.until(lambda: told.membership_link_down.called)
    gone = calls(told)
    for method in GOES:
        assert peer in [of[0] for of in gone[method.replace(".", "_").lstrip("_")]], method
    assert one.engine.internal_errors == 0


async def test_the_end_of_a_strangers_link_is_no_members(engine: Engine) -> None:
    told = watched(engine, *GOES)
    engine._peer_down(PeerId("stranger"), "gone", by_peer=False)
    gone = calls(told)
    assert "reach_gone" in gone
    assert "membership_link_down" not in gone


async def test_what_is_due_is_done_by_every_part(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = ["held_stages.tick"]
    when_due = ["membership.tick", "matching.tick", "history.tick"]
    engine.describe(ADVERT)
    told = watched(engine, *always, *when_due, "measuring.tick", "contributions.tick")
    await trio.sleep(5)
    now = engine.now()
    for due, done in ((now + 1, False), (now, True)):
        for part in (engine.membership, engine.matching, engine.history):
            monkeypatch.setattr(part, "next_deadline", lambda *_, at=due: at)
        told.reset_mock()
        engine._tick()
        ticked = calls(told)
        for method in when_due:
            assert (method.replace(".", "_") in ticked) is done, method
        for method in always:
            assert ticked[method.replace(".", "_")] == [(now,)], method
        assert ticked["measuring_tick"][0][1] == now
        assert ticked["contributions_tick"] == [(now,)]
    looked = watched(engine, "held_stages.update_view", "waypoints.update", "network.want")
    monkeypatch.setattr(engine.membership, "next_deadline", lambda *_: now + 1)
    for due, seen in ((now + 1, False), (now, True)):
        engine._view_dirty = False
        engine._view_at, engine._look_due, engine._look_again_at = due, seen, now
        engine._tick()
        views = "held_stages_update_view", "waypoints_update", "network_want"
        assert [name in calls(looked) for name in views] == [seen] * 3
    engine._look_due, engine._look_again_at = True, now + 1
    looked.reset_mock()
    engine._tick()
    assert "network_want" not in calls(looked), "it rests after a look"


READERS = {STORED: "history", WAYPOINT: "waypoints"}
READERS |= {"measured": "measuring"}


async def test_each_record_goes_to_the_part_that_reads_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, by = Mock(), PeerId("author")
    for part in READERS.values():
        monkeypatch.setattr(getattr(engine, part), "record", getattr(told, part))
    monkeypatch.setattr(engine._loss_reports, "heard", told.losses)
    for kind, part in READERS.items():
        told.reset_mock()
        records = [RecordChanged(kind, by, said) for said in (0, None)]
        engine.perform(*records)
        assert calls(told) == {part: [(record,) for record in records]}, kind
    told.reset_mock()
    for kind in ("progress", "held-out"):
        engine.perform(*(RecordChanged(kind, by, said) for said in (0, None)))
    assert calls(told) == {"losses": [("progress",), ("held-out",)]}


async def test_the_matchings_decisions_are_carried_out_and_told(engine: Engine) -> None:
    held = Mock()
    held.seats.return_value = []
    engine.held_stages = held
    engine.matched([Assign(Stage(1), "it lacks replicas"), Unassign(Stage(0), "it has many")])
    held.assign.assert_called_once_with(1)
    held.drain.assert_called_once_with(0)
    engine.serving(1)
    events, _ = engine.event_sink.log.since(0)
    changes = [(e.data["stage"], e.data["state"]) for e in events if e.kind == "StageAssigned"]
    assert changes == [(1, "held"), (0, "left"), (1, "serving")]


async def test_effects_go_to_the_network_or_to_people(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Mock()
    monkeypatch.setattr(engine.network, "post", told.post)
    monkeypatch.setattr(engine.network, "penalise", told.penalise)
    other = PeerId("other")
    engine.perform(Send(other, Goodbye("")))
    engine.perform(Send(other, LETTER))
    sent = [(other, Goodbye(""), b""), (other, LETTER, b"")]
    assert calls(told)["post"] == sent
    for peer in (other, engine.signer.peer):
        engine.perform(Penalise(peer, "a lie", 20))
    assert calls(told)["penalise"] == [(other, 20, "a lie")], "nobody penalises itself"
    engine.perform(Explain("swarm", "something for people"))
    events, _ = engine.event_sink.log.since(0)
    assert [e for e in events if e.kind == "LogLine"][-1].words == "something for people"


async def test_a_newcomer_is_not_blamed_for_what_it_sends_before_our_seats_see_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News of who has done no work waits a second, and its reports do not."""
    told, other = Mock(), PeerId("other")
    monkeypatch.setattr(engine.network, "penalise", told.penalise)
    monkeypatch.setattr(engine, "_is_new", {other}.__contains__)
    engine.perform(ViewChanged(other))
    engine.perform(Penalise(other, "not-from-a-neighbour", 1))
    engine.perform(Penalise(other, "a lie", 20))
    engine._view_changed()
    engine.perform(Penalise(other, "not-from-a-neighbour", 1))
    said = [(other, 20, "a lie"), (other, 1, "not-from-a-neighbour")]
    assert calls(told)["penalise"] == said


async def test_messages_to_ourselves_come_in_order_and_never_within_another(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, within = list[tuple[int, bytes]](), [False]
    me = engine.signer.peer

    def take(event: NetEvent) -> None:
        assert isinstance(event, Inbound)
        assert isinstance(event.message, JoinStage)
        assert not within[0]
        within[0] = True
        heard.append((event.message.stage, event.payload))
        if event.message.stage < 3:
            engine.send(me, JoinStage(event.message.stage + 2), b"answer")
        within[0] = False

    monkeypatch.setattr(engine, "take", take)
    engine.send(me, JoinStage(1), b"a")
    engine.send(me, JoinStage(2), b"b")
    assert heard == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine._deliver)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == [(1, b"a"), (2, b"b"), (3, b"answer"), (4, b"answer")]


async def test_only_what_a_member_says_is_followed_by_a_look(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coming and its going are, too."""
    admitted, other = engine.handshake.admitted, PeerId("other")

    def take(event: NetEvent) -> None:
        change = admitted.add if isinstance(event, Inbound) else admitted.discard
        change(event.peer)

    monkeypatch.setattr(engine, "take", take)
    said = Inbound(other, Goodbye(""), b"")
    looks = list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        for event in (PeerUp(other), said, said, PeerDown(other, ""), PeerUp(other)):
            looked = Mock()
            monkeypatch.setattr(engine, "_refresh", looked)
            engine.network.tell(event)
            await trio.testing.wait_all_tasks_blocked()
            looks.append(sum("soon" in one.kwargs for one in looked.mock_calls))
        nursery.cancel_scope.cancel()
    assert looks == [0, 1, 1, 1, 0]


async def test_a_strangers_message_that_only_members_send_is_ignored(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Mock(return_value=[])
    engine.describe(ADVERT)
    monkeypatch.setattr(engine.matching, "receive", receive)
    letter, member = LETTER, PeerId("member")
    engine.take(Inbound(member, letter, b""))
    assert not receive.called
    engine.handshake.admitted.add(member)
    engine.take(Inbound(member, letter, b""))
    receive.assert_called_once_with(member, letter.body, engine.now())


@pytest.mark.parametrize("stage", [0, 1])
async def test_our_elector_hears_of_every_stage_and_answers_for_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    """We hold no stage: those beside ours name us as an elector, too."""
    sent: list[tuple[PeerId, Message]] = []
    leader = PeerId("member")
    engine.handshake.admitted.add(leader)
    elector, me = engine.elector, engine.signer.peer
    monkeypatch.setattr(engine, "send", lambda to, message: sent.append((to, message)))
    monkeypatch.setattr(elector, "verify", lambda *_: True)
    show(elector, may_be=lambda *_: True)
    decree = Decree(2, bytes(32), (leader,), (me,), 0.0, (bytes(64),))
    closed = Commit(stage, 7, 2, leader, decree, ((leader, bytes(64)),), era=5)
    engine.take(Inbound(leader, closed, b""))
    assert elector.commit(stage, 5, 7) is None, "no work has proven who has voted"
    monkeypatch.setattr(engine.history, "proves", {leader}.__contains__)
    engine.take(Inbound(leader, closed, b""))
    assert elector.commit(stage, 5, 7) == closed
    engine.take(Inbound(leader, Propose(stage, 7, 0, era=5), b""))
    engine.take(Inbound(leader, Propose(stage, 8, 2, era=5), b""))
    (_, found), (to, promise) = sent
    assert found == closed
    assert to == leader
    assert isinstance(promise, Vote)
    assert (promise.stage, promise.step, promise.promised) == (stage, 8, 2)
    assert promise.signature
    assert engine.internal_errors == 0


@pytest.mark.parametrize(
    ("full_mesh", "trained", "reached"),
    [(False, False, {"elector": ["address of elector"]}), (True, False, {}), (False, True, {})],
)
async def test_electors_are_reached_in_a_large_swarm_until_the_lineage_has_begun(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, full_mesh: bool, trained: bool, reached: object
) -> None:
    me, roster = engine.signer.peer, engine.membership.roster
    monkeypatch.setattr(roster, "is_full_mesh", lambda: full_mesh)
    monkeypatch.setattr(roster, "live", lambda: {me, "elector", "another"})
    monkeypatch.setattr(roster, "addresses", lambda peer: [f"address of {peer}"])
    assert engine.history is not None
    machine = engine.history.machine
    monkeypatch.setattr(machine.known, "has_begun", lambda: trained)
    machine.known.lineage = begun(0, 0, (), (me, "elector", "gone"), b"")
    assert engine._electors_to_reach() == reached


async def test_that_we_cannot_take_the_first_stage_is_told_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.describe(ADVERT)
    told = watched(engine, "matching.set_unable", "own_advert.change")
    unable = {Stage(0): "asking members for the training data"}
    engine.ability_changed()
    assert calls(told) == {}, "we can, as before"
    monkeypatch.setattr(engine.held_stages, "unable", lambda: unable)
    engine.ability_changed()
    engine.ability_changed()
    told.own_advert_change.assert_called_once_with(unable=(0,))
    assert len(calls(told)["matching_set_unable"]) == 1


async def test_whom_a_seat_of_ours_sets_aside_our_elector_has_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorums = [Mock(aside={"somebody"}), Mock(aside=set())]
    monkeypatch.setattr(engine.held_stages, "quorums", lambda: quorums)
    assert "somebody" in engine.notary.elector.sees.lost()


# --- links have places for those that work has proven -----------------------------------------


def trusted(volunteer: Volunteer) -> frozenset[PeerId] | None:
    network = volunteer.engine.network
    return None if network.trusted is None else frozenset(network.trusted)


async def two_and_one_idle(swarm: TestSwarm) -> list[Volunteer]:
    return [await swarm.add(0, founder=True), await swarm.add(1), await swarm.add()]


async def test_whom_work_has_proven_is_no_guest_and_everybody_else_is(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first, last, idle = await two_and_one_idle(swarm)
        await swarm.until(lambda: first.serves(0) and last.serves(1))
        assert trusted(first) is trusted(last) is None, "nobody has proved anything yet"
        await swarm.until(lambda: trusted(first) == {last.peer})
        await swarm.until(lambda: trusted(last) == {first.peer})
        assert trusted(idle) is None, "it has worked with nobody"
        newcomer = await swarm.add(1)
        await swarm.until(lambda: trusted(first) == {last.peer, newcomer.peer})
        await swarm.until(lambda: trusted(newcomer) == {first.peer, last.peer})
        swarm.vanish(last)
        await swarm.until(lambda: trusted(first) == {newcomer.peer})
        swarm.vanish(newcomer)
        await swarm.until(lambda: trusted(first) is None)


async def test_a_crowd_brings_no_tick_forward_and_hears_of_steps_along_with_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick looks at every machine, and a newcomer's word changes nothing that cannot wait. A
    message for every step to each of a crowd would be most of what the crowd costs."""
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first, last, idle = await two_and_one_idle(swarm)
        await swarm.until(lambda: trusted(first) == {last.peer})
        await swarm.until(lambda: trusted(last) == {first.peer})
        waited, refresh = list[bool](), Engine._refresh

        def refresh_and_note(engine: Engine, *, soon: bool = True) -> None:
            if engine is first.engine and not soon:
                waited.append(True)
            refresh(engine, soon=soon)

        with monkeypatch.context() as patch, trio.fail_after(1.0):
            patch.setattr(Engine, "_refresh", refresh_and_note)
            for _ in range(20):
                idle.engine.send(first.peer, LeaseRequest(0, 1, 0))
            await swarm.until(lambda: len(waited) >= 20)  # heartbeats alone take many seconds
        sent, post = list[tuple[PeerId, Message]](), last.engine.network.post

        def note(to: PeerId, message: Message, payload: bytes = b"") -> bool:
            sent.append((to, message))
            return post(to, message, payload)

        monkeypatch.setattr(last.engine.network, "post", note)
        begun = last.step(1)
        await swarm.until(lambda: last.step(1) >= begun + 60)
        beats = sum(isinstance(message, Heartbeat) for to, message in sent if to == idle.peer)
        assert 0 < progress_to(sent, idle) <= beats + 1
        assert progress_to(sent, first) >= last.step(1) - begun - 2


def progress_to(sent: list[tuple[PeerId, Message]], to: Volunteer) -> int:
    return sum(
        isinstance(message, Records) and all(r.kind == PROGRESS for r in message.records)
        for peer_id, message in sent
        if peer_id == to.peer
    )
