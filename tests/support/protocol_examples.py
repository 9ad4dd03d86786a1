"""Examples that several tests of the protocol share: signers, a manifest, every message type."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
import msgspec.inspect as i
from hypothesis import strategies as st

from model_zoo.specs.data import DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import stage_parameters
from protocol.evidence.proof import contradiction
from protocol.evidence.statement import PLAN, Decisive, statement_of
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest, StageCost
from protocol.matching.bodies import Posting
from protocol.membership.advert import ADVERT, ADVERTS, Advert
from protocol.membership.records import Record, seal
from protocol.wire import messages as m
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope
from protocol.wire.letters import Mandate
from protocol.wire.parts import Proof
from protocol.wire.statement import Statement, encode_statement

SWARM = SwarmId("ab" * 32)
OTHER_SWARM = SwarmId("cd" * 32)
WALL = 1_800_000_000.0
Stated = TypeVar("Stated", bound=Decisive)


def signer(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"))


def peer(number: int) -> PeerId:
    return signer(number).peer


def manifest(founder: PeerId | None = None, stages: int = 2, **changes: object) -> Manifest:
    model = ModelSpec(
        architecture="gpt",
        layers=2 * stages,
        width=64,
        heads=4,
        kv_heads=4,
        ffn_width=256,
        context=32,
        vocab=256,
    )
    cost = StageCost(
        layers=2, flops=1e9, parameters=1, uplink_bytes=1e5, downlink_bytes=1e5, memory_bytes=1e6
    )
    shape = changes.get("model", model)
    assert isinstance(shape, ModelSpec)
    fields: dict[str, object] = {
        "protocol": 1,
        "name": "example",
        "founder": founder or peer(1),
        "created": 1_700_000_000,
        "seed": 7,
        "model": model,
        "stages": counted((cost,) * stages, shape),
        "sequences_per_microbatch": 4,
        "microbatches_per_step": 8,
        "steps": 100,
        "optimizer": OptimizerSpec(),
        "data": DataSpec(name="corpus", size_bytes=10_000, digest="0" * 64),
    }
    return Manifest(**(fields | changes))  # type: ignore[arg-type]


def counted(stages: Iterable[StageCost], model: ModelSpec) -> tuple[StageCost, ...]:
    """The costs of these stages with the parameters that they have."""
    costs = tuple(stages)
    layers = [cost.layers for cost in costs]
    return tuple(
        msgspec.structs.replace(cost, parameters=stage_parameters(model, layers, stage))
        for stage, cost in enumerate(costs)
    )


def advert(**changes: object) -> Advert:
    fields: dict[str, object] = {
        "addresses": ("/ip4/127.0.0.1/tcp/4001",),
        "flops": 1e11,
        "memory_bytes": 2**33,
        "upload_bytes_per_s": 1e7,
        "download_bytes_per_s": 1e7,
        "seats": 2,
        "joined": int(WALL) - 60,
    }
    return Advert(**(fields | changes))  # type: ignore[arg-type]


def seat(stage: int, version: int = 0, **changes: object) -> m.SeatStatus:
    fields: dict[str, object] = {
        "stage": stage,
        "version": version,
        "state": "serving",
        "queue": 0,
        "rate": 1.0,
    }
    return m.SeatStatus(**(fields | changes))  # type: ignore[arg-type]


class Note(msgspec.Struct, frozen=True, array_like=True):
    """The body of a record that means nothing."""

    words: bytes = b"x"


NOTES = Canonical(Note, "note")


def posting(stage: int) -> Posting:
    """What a steward says of a stage without members."""
    return Posting(stage, Mandate(1, 1), 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0)


def record(
    number: int,
    kind: str = ADVERT,
    body: bytes | None = None,
    *,
    seq: int = 1,
    issued: float = WALL,
    ttl_s: int = 600,
    swarm: SwarmId = SWARM,
) -> Envelope:
    """What a peer says of itself, signed; an advert unless a body is given."""
    said = ADVERTS.encode(advert()) if body is None else body
    return seal(signer(number), kind, Record(seq, int(issued) + ttl_s, said), swarm)


def stated_by(number: int, message: Stated, swarm: SwarmId = SWARM) -> Stated:
    """A message that decides a round, with its author's signature."""
    kind, statement = statement_of(message)
    signed = signer(number).sign(kind, encode_statement(statement), swarm)
    return msgspec.structs.replace(message, signature=signed.signature)


def statement_by(author: Signer, swarm: SwarmId, sort: bytes, kind: str = PLAN) -> Envelope:
    """What an author states in an attempt; each ``sort`` is another digest."""
    return author.sign(kind, encode_statement(Statement(1, 0, 7, 2, sort * 32)), swarm)


def proof_of(number: int = 1, swarm: SwarmId = SWARM) -> Proof:
    """Two plans of one author for one attempt."""
    found = contradiction(*(statement_by(signer(number), swarm, sort) for sort in (b"a", b"b")))
    assert found is not None
    return found


def any_message() -> st.SearchStrategy[m.Message]:
    """Every message type with every field anywhere in its range."""
    return st.one_of(*map(messages_of, m.MESSAGES))


def messages_of(kind: type[m.Message]) -> st.SearchStrategy[m.Message]:
    """Messages of one type; lists are kept short so that generation is quick."""
    if kind is m.Statements:
        return st.sampled_from(list(m.ENVELOPES)).flatmap(_statements)
    return st.builds(kind, **{name: _field(kind, name) for name in kind.__struct_fields__})


def _statements(kind: m.StatementKind) -> st.SearchStrategy[m.Message]:
    least, most = m.ENVELOPES[kind]
    envelope = _values(i.type_info(Envelope))
    envelopes = st.lists(envelope, min_size=least, max_size=min(most, 4))
    return envelopes.map(lambda few: m.Statements(kind, tuple(few)))


def _field(kind: type, name: str) -> st.SearchStrategy[object]:
    inspected = i.type_info(kind)
    assert isinstance(inspected, i.StructType)
    by_name = {field.name: field.type for field in inspected.fields}
    return _values(by_name[name])


def _values(kind: object) -> st.SearchStrategy[object]:
    match kind:
        case i.IntType():
            return st.integers(_or(kind.ge, 0), _upper(kind.le, kind.lt))
        case i.FloatType():
            return st.floats(_or(kind.ge, -1e30), _or(kind.le, 1e30), allow_nan=False)
        case i.StrType(pattern=str()):
            return st.text("0123456789abcdef", min_size=64, max_size=64)
        case i.StrType():
            size = min(_or(kind.max_length, 8), 8)
            return st.text(min_size=_or(kind.min_length, 0), max_size=size)
        case i.BytesType():
            size = _or(kind.max_length, 16)
            small = max(_or(kind.min_length, 0), min(size, 64))
            return st.binary(min_size=_or(kind.min_length, 0), max_size=small)
        case i.BoolType():
            return st.booleans()
        case i.NoneType():
            return st.none()
        case i.LiteralType():
            return st.sampled_from(kind.values)
        case i.ListType() | i.VarTupleType():
            few = st.lists(_values(kind.item_type), min_size=_or(kind.min_length, 0), max_size=4)
            return few.map(tuple) if isinstance(kind, i.VarTupleType) else few
        case i.TupleType():
            return st.tuples(*map(_values, kind.item_types))
        case i.UnionType():
            return st.one_of(*map(_values, kind.types))
        case i.StructType() | i.NamedTupleType():
            fields = {field.name: _values(field.type) for field in kind.fields}
            return st.builds(kind.cls, **fields)
    raise AssertionError(f"no strategy for {kind}")


def _or(value: object, default: object) -> object:
    return default if value is None else value


def _upper(le: object, lt: object) -> int:
    if isinstance(le, int):
        return le
    return lt - 1 if isinstance(lt, int) else 2**63
