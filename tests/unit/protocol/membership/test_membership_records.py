"""The record store: only verified and newer records, fair and bounded when it is full."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.effects import Publish
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.matching import bodies
from protocol.membership.advert import ADVERTS, Advert
from protocol.membership.losses import LOSSES, LossSaid
from protocol.membership.membership import Membership
from protocol.membership.records import Kind, Record, RecordStore, Slot, parse_record, seal
from protocol.membership.rules import record_kinds
from protocol.wire.fields import Envelope
from protocol.wire.messages import Records
from tests.support.protocol_examples import (
    NOTES,
    OTHER_SWARM,
    SWARM,
    WALL,
    Note,
    advert,
    peer,
    posting,
    record,
    seat,
    signer,
)

OWN = peer(0)
STAGES = 4


def store(protected: Callable[[Slot], bool] = lambda _slot: False) -> RecordStore:
    return RecordStore(SWARM, OWN, record_kinds(STAGES), protected)


def advert_record(
    number: int, seq: int = 1, issued: float = WALL, ttl_s: int = 600, **changes: object
) -> Envelope:
    body = ADVERTS.encode(advert(**changes))
    return record(number, body=body, seq=seq, issued=issued, ttl_s=ttl_s)


def raw_advert(number: int, fields: list[object]) -> Envelope:
    """An advert signed by its author whose body is whatever the fields are."""
    return record(number, body=msgspec.msgpack.encode(fields))


def refuse(envelope: Envelope, reason: str) -> None:
    held = store()
    with pytest.raises(RemoteProtocolError) as caught:
        held.offer(envelope, peer(9), WALL)
    assert caught.value.reason == reason
    assert len(held) == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12))
def test_the_seq_only_rises(seqs: list[int]) -> None:
    held = store()
    highest = -1
    for seq in seqs:
        offer = held.offer(advert_record(1, seq), peer(9), WALL)
        assert (offer.held is not None) is (seq > highest)
        highest = max(highest, seq)
        assert held.order(("advert", peer(1)))[0] == highest


def test_of_two_with_one_number_all_keep_the_same_whichever_comes_first() -> None:
    pair = [advert_record(1, memory_bytes=size) for size in (1, 2)]
    kept = set()
    for first, second in (pair, pair[::-1]):
        held = store()
        held.offer(first, peer(9), WALL)
        held.offer(second, peer(8), WALL)
        kept.add(held.get("advert", peer(1)).envelope)
        assert held.offer(first, peer(9), WALL).held is held.offer(second, peer(8), WALL).held
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("left_s", "reason"),
    [(719, "new"), (722, "from-the-future"), (1, "new"), (0, "expired"), (-9, "expired")],
)
def test_time(left_s: int, reason: str) -> None:
    assert store().offer(advert_record(1, ttl_s=left_s), peer(9), WALL).reason == reason


def test_forged_adverts_change_nothing() -> None:
    good = advert_record(1)
    replace = msgspec.structs.replace
    refuse(replace(good, signer=peer(2)), "bad-signature")
    refuse(replace(good, signature=bytes(64)), "bad-signature")
    refuse(replace(good, body=b"\xc1"), "record-malformed")
    refuse(replace(good, body=good.body + b"\0"), "record-malformed")
    other_swarm = seal(signer(1), "advert", parse_record(good.body), OTHER_SWARM)
    refuse(other_swarm, "bad-signature")
    refuse(raw_advert(1, ["x" * 5000]), "record-too-long")


def fields_of(**changes: object) -> list[object]:
    fields = msgspec.msgpack.decode(ADVERTS.encode(advert()))
    names = Advert.__struct_fields__
    for name, value in changes.items():
        fields[names.index(name)] = value
    return fields  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "changes",
    [
        {"flops": [float("nan"), 0.0, 0.0]},
        {"flops": [1, 0.0, 0.0]},  # an integer where the canonical form is a float
        {"upload_bytes_per_s": -1.0},
        {"memory_bytes": 2**63},
        {"seats": 5},
        {"leaving": 1},
        {"addresses": ["x"] * 9},
        {"addresses": ["x" * 257]},
        {"serves": [[0, 0, "lying", 0, b"", 0, 1.0]]},
        {"serves": [[0, 0, "serving", 0, b"", 0, float("nan")]]},
        {"serves": [[s, 0, "serving", 0, b"", 0, 1.0] for s in range(5)]},
    ],
    ids=str,
)
def test_adverts_out_of_range_are_refused(changes: dict[str, object]) -> None:
    refuse(raw_advert(1, fields_of(**changes)), "advert-malformed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"serves": (seat(STAGES),)}, "bad-seats"),
        ({"serves": (seat(1), seat(1))}, "bad-seats"),
        ({"unable": (STAGES,)}, "bad-seats"),
        ({"unable": (1, 1)}, "bad-seats"),
        ({"addresses": ("/unix/etc/passwd",)}, "advert-address"),
        ({"addresses": (f"/ip4/1.2.3.4/tcp/1/p2p/{peer(2)}",)}, "advert-address"),
    ],
)
def test_adverts_that_contradict_the_swarm_are_refused(
    changes: dict[str, object], reason: str
) -> None:
    refuse(advert_record(1, **changes), reason)


def test_our_own_nonsense_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError):
        ADVERTS.encode(advert(flops=float("nan")))
    with pytest.raises(LocalProtocolError):
        seal(signer(1), "advert", Record(-1, int(WALL), b""), SWARM)


def shared(number: int, stage: int = 3) -> Envelope:
    return record(number, "posting", bodies.POSTINGS.encode(posting(stage)))


def test_postings_of_stages_that_do_not_exist() -> None:
    refuse(shared(1, STAGES), "posting-stage")


def test_a_crowds_postings_give_way_to_a_candidates() -> None:
    machine = Membership(peer(0), SWARM, STAGES, lambda stage, author: author == peer(3))
    machine.link_up(peer(9), 0.0)
    crowd = [shared(number, number % STAGES) for number in range(100, 140)]
    for envelope in [*crowd, shared(3)]:
        machine.receive(peer(9), Records([envelope]), 0.0, WALL)
    assert len(machine.records) == bodies.MAX_AUTHORS * STAGES
    assert machine.records.get("posting", f"3/{peer(3)}") is not None


@pytest.mark.parametrize("loss", [-0.5, 5e26, float("inf"), float("nan")])
def test_a_loss_that_can_be_none_is_refused(loss: float) -> None:
    with pytest.raises(LocalProtocolError):
        LOSSES.encode(LossSaid(5, loss))
    refuse(record(7, "progress", msgspec.msgpack.encode(LossSaid(5, loss))), "loss-malformed")


def test_unknown_kinds_are_ignored() -> None:
    assert store().offer(record(1, "future", b""), peer(9), WALL).reason == "unknown-kind"


def test_expiry() -> None:
    held = store()
    held.offer(advert_record(1, seq=2, ttl_s=30), peer(9), WALL)
    assert held.expire(WALL + 29) == []
    assert [h.record.seq for h in held.expire(WALL + 30)] == [2]
    assert len(held) == 0
    fresh = advert_record(1, seq=3, issued=WALL + 40)
    assert held.offer(fresh, peer(9), WALL + 40).held is not None


def test_after_the_clock_is_set_back_we_replace_what_we_said_before() -> None:
    member, day_s = Membership(OWN, SWARM, STAGES), 86_400
    for wall in (WALL + day_s, WALL):
        member.publish(Publish("advert", advert()), signer(0), 0.0, wall)
    held = member.records.get("advert", OWN)
    assert held is not None
    assert held.record.seq == (WALL + day_s) * 1000 + 1
    assert held.record.expires == WALL + MAX_ADVERT_TTL_S


def notes(limit: int, protected: frozenset[str] = frozenset()) -> RecordStore:
    kinds = {"note": Kind(limit, 64, NOTES)}
    return RecordStore(SWARM, OWN, kinds, lambda slot: slot[1] in protected)


def note(number: int, seq: int = 1) -> Envelope:
    return record(number, "note", NOTES.encode(Note(b"n" * 50)), seq=seq)


def test_a_flood_displaces_only_itself_and_memory_is_bounded() -> None:
    held = notes(20, protected=frozenset({peer(3)}))
    held.offer(note(0), OWN, WALL)
    honest = [note(number) for number in range(1, 9)]
    for envelope in honest[:6]:
        held.offer(envelope, peer(101), WALL)
    peak = 0
    for number in range(1000, 1200):
        held.offer(note(number), peer(666), WALL)
        peak = max(peak, len(held))
    for envelope in honest[6:]:
        assert held.offer(envelope, peer(102), WALL).held is not None
    assert len(held) == 20
    assert peak <= 20
    for number in range(9):
        assert held.get("note", peer(number)) is not None


def test_a_linked_peer_always_finds_room() -> None:
    held = notes(4, protected=frozenset({peer(5)}))
    for number in range(1000, 1004):
        held.offer(note(number), peer(666), WALL)
    offer = held.offer(note(5), peer(666), WALL)
    assert offer.held is not None
    assert offer.displaced is not None
    assert offer.displaced.signer == peer(1003), "the latest of the largest share"
    for number in range(1100, 1110):
        held.offer(note(number), peer(667), WALL)
    assert held.get("note", peer(5)) is not None


def test_a_store_full_of_our_own_and_protected_records_refuses() -> None:
    held = notes(4, frozenset(peer(number) for number in range(2, 6)))
    held.offer(note(0), OWN, WALL)
    for number in range(2, 5):
        held.offer(note(number), peer(number), WALL)
    assert held.offer(note(5), peer(5), WALL).reason == "store-full"
    assert held.offer(note(9), peer(9), WALL).reason == "store-full"


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(101, 104)), max_size=60
    )
)  # fmt: skip
def test_it_never_holds_more_than_it_may(offers: list[tuple[int, int, int]]) -> None:
    held = notes(8)
    for number, seq, introducer in offers:
        held.offer(note(number, seq), peer(introducer), WALL)
        assert len(list(held)) == len(held) <= 8
    held.expire(WALL + 10_000)
    assert len(held) == 0
