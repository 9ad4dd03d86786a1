"""A seat among hostile peers: any well-formed messages are survived, and exactness is kept.

Frames and fields are tested where they are parsed; here every message is well-formed, its meaning
is not: wrong steps, other stages' numbers, plans of impostors, bitmaps of foreign ids, replays.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.lab.simulate.electing import sight
from protocol.decree.elector import Elector
from protocol.effects import Penalise
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import ApplyTask, Compute, Fault, Keep, Outcome, Task
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Message, Plan, Reduced, Segment
from protocol.wire.parts import PlanMember
from tests.support.decrees import commit_of
from tests.support.protocol_examples import any_message
from tests.support.seats import seat_of

ME = peer_id_from_key(bytes(32))
SIBLING = peer_id_from_key(b"\1" * 32)
UPSTREAM = peer_id_from_key(b"\2" * 32)
STRANGER = peer_id_from_key(b"\3" * 32)
ROGUE = peer_id_from_key(b"\4" * 32)
"""Says that it fetches our stage, and lies."""
PER_STEP = 4
SIZE = 512
SIGNED = b"s" * 64
"""A signature that holds."""


def seat(stage: int = 1) -> Seat:
    made = seat_of(
        Place(ME, stage, 2, PER_STEP),
        3,
        size=SIZE,
        elector=Elector(
            lambda _kind, _body: SIGNED, lambda _p, _k, _b, said: said == SIGNED, sight()
        ),
    )
    view = SwarmView.of(
        [
            [Replica(UPSTREAM, 3, True, returned=True)],
            [Replica(ME, 3, True), Replica(SIBLING, 3, True), Replica(ROGUE, 3, False)],
        ]
    )
    made.update_view(view, 0.0)
    return made


class Worker:
    """Answers every task at once and remembers them."""

    def __init__(self, of: Seat) -> None:
        self.seat, self.tasks = of, list[Task]()

    def drain(self, effects: list[object], now: float) -> list[object]:
        seen: list[object] = []
        queue = list(effects)
        while queue:
            effect = queue.pop(0)
            seen.append(effect)
            if isinstance(effect, Compute):
                self.tasks.append(effect.task)
                outcome = Outcome(digests=(bytes(32),), loss_sum=1.0)
                queue += self.seat.computed(effect.task, outcome, now)
        return seen


def plausible(message: Message, numbers: dict[str, int], peers: list[PeerId]) -> Message:
    """The message with numbers that lie near what the seat expects: chance alone rarely does."""
    changes: dict[str, object] = {
        name: value for name, value in numbers.items() if hasattr(message, name)
    }
    if isinstance(message, Plan):
        changes["members"] = [
            PlanMember(peer, member.counted[:1])
            for peer, member in zip(peers, message.members, strict=False)
        ] or [PlanMember(ME, b"")]
        changes["bounds"] = [0, 256, SIZE][: len(message.members) + 1]
    return msgspec.structs.replace(message, **changes)


near = st.builds(
    plausible,
    any_message(),
    st.fixed_dictionaries(
        {
            "stage": st.integers(0, 1),
            "step": st.integers(2, 5),
            "version": st.integers(2, 5),
            "microbatch": st.integers(8, 20),
            "attempt": st.integers(0, 3),
            "shard": st.integers(0, 2),
            "promised": st.integers(0, 5),
        }
    ),
    st.permutations([ME, SIBLING, STRANGER]),
)


@settings(max_examples=100, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from([SIBLING, UPSTREAM, STRANGER, ROGUE]), st.one_of(any_message(), near)
        ),
        max_size=30,
    ),
    stage=st.sampled_from([0, 1]),
)
def test_no_message_raises_or_applies_a_step(
    messages: list[tuple[PeerId, Message]], stage: int
) -> None:
    target = seat(stage)
    worker = Worker(target)
    for index, (sender, message) in enumerate(messages):
        now = float(index)
        worker.drain(target.receive(sender, message, now, bytes(32)), now)
        worker.drain(target.tick(now), now)
        target.status(rate=0.0)
        target.why()
    applied = [t for t in worker.tasks if isinstance(t, ApplyTask | ApplyTask)]
    assert not applied, "a step was applied although no round was ever closed"
    assert target.step == 3


THEIRS = list(range(3 * PER_STEP, 4 * PER_STEP))


def plan(attempt: int, *, members: list[PeerId], counted: dict[PeerId, list[int]]) -> Plan:
    return Plan(
        stage=1,
        step=3,
        attempt=attempt,
        members=[
            PlanMember(peer, to_bitmap(counted.get(peer, []), 3, PER_STEP)) for peer in members
        ],
        bounds=[0, 256, SIZE] if len(members) == 2 else [0, SIZE],
        observers=[],
    )


def test_who_only_fetches_the_stage_plans_and_commits_nothing() -> None:
    target = seat()
    target.quorum.designated = SIBLING
    target.member.state = b"s"
    foreign = msgspec.structs.replace(
        plan(1, members=[ME, SIBLING], counted={SIBLING: THEIRS}), state=b"x"
    )
    assert not [e for e in target.receive(ROGUE, foreign, 0.0) if isinstance(e, Fault)]
    assert not [e for e in target.receive(SIBLING, foreign, 0.0) if isinstance(e, Fault)]
    assert target.member.plan_followed is None, "its state is another one than ours"
    for sender in (ROGUE, SIBLING):
        target.receive(sender, commit_of(1, 3, 9, bytes(32), [ME, SIBLING]), 0.0)
    assert not target.member.knows_commit, "nobody has voted for it"
    target.receive(SIBLING, plan(1, members=[ME, SIBLING], counted={SIBLING: THEIRS}), 1.0)
    assert target.member.plan_followed is not None


@pytest.mark.parametrize(
    ("error", "part", "blamed"),
    [("codec", 1, {SIBLING}), ("codec", 0, set()), ("codec", None, set()), ("oom", 1, set())],
)
def test_who_broadcasts_what_cannot_be_applied_is_blamed(
    error: str, part: int | None, blamed: set[PeerId]
) -> None:
    target = seat()
    target.quorum.designated = SIBLING
    target.receive(SIBLING, plan(1, members=[ME, SIBLING], counted={SIBLING: THEIRS}), 1.0)
    apply = ApplyTask(3, 1, (0, 256, SIZE), (None, None), (0.0, 0.0))
    effects = target.computed(apply, Outcome(error=error, part=part), 2.0)
    assert {e.peer for e in effects if isinstance(e, Penalise)} == blamed
    assert [e.kind for e in effects if isinstance(e, Fault)] == ["internal"]


def test_a_stranger_cannot_make_us_keep_tensors() -> None:
    target = seat()
    for message in (
        Forward(1, 3, 12, False),
        Segment(1, 3, 1, 0),
        Reduced(1, 3, 1, 0, 0.5),
        Backward(1, 3, 12),
    ):
        effects = target.receive(STRANGER, message, 0.0, bytes(32))
        assert not [e for e in effects if isinstance(e, Keep)]
    from_upstream = target.receive(UPSTREAM, Forward(1, 3, 12, False), 0.0)
    assert [e for e in from_upstream if isinstance(e, Keep)]
