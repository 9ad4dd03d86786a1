"""Members, stage costs and one peer's machine, for the tests of the matching."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from model_zoo.specs.data import DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.effects import Send
from protocol.ids import PeerId, Stage, peer_id_from_key
from protocol.manifest import Manifest, Policy, StageCost
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.wire import letters
from protocol.wire.letters import Mandate
from protocol.wire.messages import Letter

WALL_S = 1_700_000_000.0
NOW = 1000.0


def peer(number: int) -> PeerId:
    return peer_id_from_key(number.to_bytes(32, "big"))


def costs(flops: Sequence[float]) -> tuple[StageCost, ...]:
    return tuple(StageCost(1, f, 1000, 10.0, 10.0, 1e9) for f in flops)


def manifest(stages: int) -> Manifest:
    """A run whose stages cost the same, and little but flops."""
    return Manifest(
        protocol=1,
        name="example",
        founder=peer(0),
        created=0,
        seed=0,
        model=ModelSpec("gpt", stages, 8, 1, 1, 8, 8, 256),
        stages=costs([1e9] * stages),
        sequences_per_microbatch=1,
        microbatches_per_step=8,
        steps=10,
        optimizer=OptimizerSpec(),
        data=DataSpec("x", 1000, "0" * 64),
        policy=Policy(),
    )


def member(number: int, flops: float = 1e9, held: Iterable[int] = (), **changes: object) -> Member:
    """A member with fast links and much memory."""
    stages = frozenset(map(Stage, held))
    usual = Member(peer(number), WALL_S, flops, 1e9, 1e9, 1e12, stages)
    return replace(usual, **changes)  # type: ignore[arg-type]


def population(members: Iterable[Member], stages: int = 2) -> Population:
    return Population(members, costs([1e9] * stages), 2)


def propose(mandate: Mandate, **changes: object) -> letters.Propose:
    fields: dict[str, object] = {
        "stage": 0,
        "mandate": mandate,
        "issued_ms": int(WALL_S * 1000),
        "seat": 0,
        "bound": False,
    }
    return letters.Propose(**(fields | changes))  # type: ignore[arg-type]


def answers(effects: Iterable[object]) -> list[letters.ToSteward | letters.ToVolunteer]:
    sent = [e.message for e in effects if isinstance(e, Send)]
    return [message.body for message in sent if isinstance(message, Letter)]
