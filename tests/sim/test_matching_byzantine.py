"""Forged, replayed, contradictory and absurd letters and records, of every kind, at a running
swarm: nothing changes. Fields are fuzzed after decoding, so bodies are well-formed.
"""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.matching import bodies
from protocol.wire import letters
from protocol.wire.letters import Mandate
from protocol.wire.messages import Letter
from tests.support.matching_examples import WALL_S, peer
from tests.support.matching_world import World, swarm

MEMBERS = 6
STRANGER = peer(999_999)
BEACON = int(WALL_S // 600)
HEAD = (0, Mandate(BEACON, 1), int(WALL_S * 1000))
YOU = peer(2)
LETTERS: list[letters.Body] = [
    letters.Propose(*HEAD, 0, False),
    letters.Propose(*HEAD, 1, True),
    letters.Withdraw(*HEAD, "leaving"),
    letters.Hold(*HEAD, HEAD[2], True),
    letters.Reject(*HEAD, 1, HEAD[2], "full"),
]
RECORDS: list[letters.Body] = [
    bodies.Posting(*HEAD, 1, 2, 5, 1, 5, 1, 6, 6, 2, 0, wanted=YOU),
]


@pytest.fixture(scope="module")
def world() -> World:
    """Return a settled swarm on two stages; hostile examples come one after the other."""
    found = swarm([1.0] * MEMBERS, 2, seed=3)
    found.run(400)
    return found


def state(world: World) -> tuple[object, ...]:
    """Return all that a hostile letter must not touch."""
    machines = world.machines.values()
    pools = [
        (stage, steward.phase, sorted(steward.pool.places))
        for m in machines
        for stage, steward in m.stewardships.held.items()
    ]
    seats = [
        (s.advertised, s.state, s.stages) for m in machines for s in (m.seats.home, m.seats.second)
    ]
    return pools, seats, len(world.set_out)


def forged(world: World, body: letters.Body, victim: PeerId, draw: st.DataObject) -> letters.Body:
    """Return a body whose names, numbers and times fit the victim, or nearly so."""
    notices = world.machines[victim].context.board.notices(world.now)
    stage = draw.draw(st.sampled_from([0, 1]))
    mandate = notices[stage].posting.mandate  # type: ignore[index]
    term = draw.draw(st.sampled_from([mandate.term, 1000]))
    fields: dict[str, object] = {
        "stage": stage,
        "mandate": Mandate(mandate.beacon, term),
        "issued_ms": int((WALL_S + world.now - 1000.0) * 1000),
    }
    names = body.__struct_fields__
    for name, value in (
        ("asked_ms", draw.draw(st.sampled_from([1, 2**40]))),
        ("bound", draw.draw(st.booleans())),
        ("locked", draw.draw(st.booleans())),
        ("wanted", victim),
    ):
        if name in names:
            fields[name] = value
    return msgspec.structs.replace(body, **fields)


FUZZ = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("body", [*LETTERS, *RECORDS], ids=lambda b: type(b).__name__)
@FUZZ
@given(data=st.data())
def test_letters_and_records_of_strangers_change_nothing(
    world: World, body: letters.Body, data: st.DataObject
) -> None:
    victim = data.draw(st.sampled_from(sorted(world.machines)))
    content = forged(world, body, victim, data)
    before, machine = state(world), world.machines[victim]
    believed = {s: n.author for s, n in machine.context.board.notices(world.now).items()}
    if isinstance(content, bodies.Posting):
        world._perform(victim, machine.receive_posting(STRANGER, content, world.now))
    else:
        world.replay(STRANGER, Send(victim, Letter(content)))
    assert state(world) == before
    assert {s: n.author for s, n in machine.context.board.notices(world.now).items()} == believed


def test_two_contradicting_holds_from_a_member_move_nobody(world: World) -> None:
    liar = next(who for who, m in sorted(world.machines.items()) if not m.stewardships.held)
    victim = next(who for who in sorted(world.machines) if who != liar)
    before = state(world)
    for locked in (True, False):
        issued = int((WALL_S + world.now - 1000.0) * 1000)
        for stage in (0, 1):
            head = (stage, Mandate(BEACON, 1), issued)
            body = letters.Hold(*head, issued, locked)
            world.replay(liar, Send(victim, Letter(body)))
    assert state(world) == before
    matching = world.matching()
    world.run(60)
    assert world.matching() == matching


def test_every_letter_ever_sent_again_and_under_a_wrong_name_changes_nothing() -> None:
    world = swarm([1.0] * MEMBERS, 2, seed=5)
    world.run(150)
    said = [(who, e) for _, who, e in world.log if isinstance(e, Send)]
    before = state(world)
    for who, letter in said:
        world.replay(who, letter)
        world.replay(STRANGER, letter)
    world.run(120)
    assert state(world) == before
