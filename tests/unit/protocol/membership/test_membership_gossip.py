"""Anti-entropy: everybody learns everything, whatever is lost, and then falls silent."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.effects import Penalise, Publish, Send
from protocol.membership.advert import ADVERT, ADVERTS
from protocol.membership.gossip import DIGEST_EVERY_S, LINK, PUSH_FANOUT, Gossip
from protocol.membership.losses import PROGRESS
from protocol.membership.membership import TOLD_OF, Membership
from protocol.membership.records import Kind, RecordStore
from protocol.membership.view import RecordChanged, ViewChanged
from protocol.verdicts import Verdict
from protocol.wire.fields import Envelope
from protocol.wire.messages import RecordDigest, Records, encode_message
from tests.support.membership_world import World
from tests.support.protocol_examples import (
    NOTES,
    SWARM,
    WALL,
    Note,
    advert,
    peer,
    posting,
    record,
)

NEW = {peer(9)}
"""Peers that have done no work."""


def record_of(number: int, seq: int = 1, body: bytes = b"x") -> Envelope:
    return record(number, "note", NOTES.encode(Note(body)), seq=seq)


def gossip_of(number: int, held: int = 0, body: bytes = b"x") -> Gossip:
    any_body = Kind(10_000, 16 * 1024, NOTES)
    kinds = {"note": any_body, PROGRESS: any_body}
    store = RecordStore(SWARM, peer(number), kinds)
    for other in range(1000, 1000 + held):
        store.offer(record_of(other, body=body), peer(number), WALL)
    return Gossip(peer(number), store, lambda one: one in NEW)


def linked(*others: int, held: int = 0, body: bytes = b"x") -> Gossip:
    """The gossip of peer 0 with links to others."""
    gossip = gossip_of(0, held, body)
    for number in others:
        gossip.link_up(peer(number), 0.0)
    return gossip


def sent(effects: list[object]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def test_who_has_done_no_work_hears_of_progress_by_its_digests_alone() -> None:
    gossip = linked(1, 9)
    for kind, told in ((PROGRESS, {peer(1)}), ("note", {peer(1), peer(9)})):
        offer = gossip._store.offer(record(5, kind, NOTES.encode(Note())), peer(2), WALL)
        assert offer.held is not None
        assert {one.peer for one in sent(gossip.spread([offer.held]))} == told
    empty = RecordDigest([], False, 0, 1)
    [answer] = sent(gossip.receive_digest(peer(9), empty, 0.0))
    assert isinstance(answer.message, Records)
    assert {one.kind for one in answer.message.records} == {PROGRESS, "note"}


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.sampled_from([0.0, 0.2, 0.4]), st.integers(0, 2**32))
def test_a_ring_converges_whatever_is_lost(size: int, loss: float, seed: int) -> None:
    world = World(size, seed, loss)
    world.advertise()
    world.link_ring()
    world.run(20)
    for _ in range(30):  # only digests repair what was lost: that takes rounds, not luck
        if all(len(member.records) == size for member in world.members.values()):
            break
        world.run(10)
    assert all(len(member.records) == size for member in world.members.values())
    assert not world.penalties()


def test_at_rest_only_heartbeats_and_one_digest_per_interval() -> None:
    world = World(6)
    world.advertise()
    world.link_all()
    world.run(12)
    assert world.agree()
    world.sent.clear()
    world.run(3 * DIGEST_EVERY_S)  # adverts are renewed after 30 s only
    assert world.sent["RecordDigest"] == 6 * 3
    assert set(world.sent) == {"RecordDigest", "Heartbeat"}


def test_a_flood_of_valid_records_is_not_passed_on_without_bound() -> None:
    gossip = linked(1, 2, 3)
    passed_on = 0
    for seq in range(1, 400):
        flood = Records([record_of(4, seq, b"x" * 15_000)])
        _, effects = gossip.receive_records(peer(1), flood, 0.0, WALL)
        passed_on += sum(len(encode_message(send.message)) for send in sent(effects))
    assert 0 < passed_on <= 2 * LINK.burst * 1.01
    [later], _ = gossip.receive_records(peer(1), Records([record_of(4, 500)]), 10.0, WALL)
    assert later.held is not None


def test_records_are_pushed_over_all_links_about_equally_often() -> None:
    gossip = linked(*range(1, 22))
    records = Records([record_of(number) for number in range(1000, 1200)])
    pushed = Counter[str]()
    for effect in sent(gossip.receive_records(peer(1), records, 0.0, WALL)[1]):
        pushed[effect.peer] += len(effect.message.records)
    assert sum(pushed.values()) == 200 * PUSH_FANOUT
    assert len(pushed) == 20  # never back to the source
    assert 15 <= min(pushed.values()) <= max(pushed.values()) <= 50


def test_a_forged_record_is_blamed_and_ends_the_message() -> None:
    gossip = linked(1)
    good = record_of(2)
    forged = Envelope(good.signer, good.kind, good.body, bytes(64))
    told = Records([forged, record_of(3)])
    blame = [Penalise(peer(1), "bad-signature", 50)]
    assert gossip.receive_records(peer(1), told, 0.0, WALL) == ([], blame)


@pytest.mark.parametrize(("held", "size"), [(1300, 1), (200, 4000), (10, 15_000)])
def test_large_stores_cross_in_frames_below_the_limit(held: int, size: int) -> None:
    giver, taker = linked(1, held=held, body=b"x" * size), gossip_of(1)
    taker.link_up(peer(0), 0.0)
    now = 0.0
    for _ in range(10):
        now += 30.0
        # an explicit round: the taker says what it has, the giver answers
        for send in sent(taker.open_digest(peer(0))):
            assert isinstance(send.message, RecordDigest)
            for answer in sent(giver.receive_digest(peer(1), send.message, now)):
                assert len(encode_message(answer.message)) <= limits.MAX_HEADER_BYTES
                if isinstance(answer.message, Records):
                    taker.receive_records(peer(0), answer.message, now, WALL)
    assert len(taker._store) == held


def test_the_parts_of_a_digest_list_every_slot_once_and_take_turns() -> None:
    gossip = linked(1, 2, held=1300)
    whole = [send.message for send in sent(gossip.open_digest(peer(1)))]
    assert all(isinstance(part, RecordDigest) for part in whole)
    assert all(0 < len(part.entries) <= limits.MAX_DIGEST_ENTRIES for part in whole)
    assert sorted(entry.key for part in whole for entry in part.entries) == sorted(
        key for _, key in (held.slot for held in gossip._store)
    )
    turns = [
        (send.peer, send.message.part)
        for turn in range(2 * len(whole))
        for send in sent(gossip.tick(DIGEST_EVERY_S * (turn + 1)))
    ]
    assert len(set(turns)) == len(turns) == 2 * len(whole), "each part with each neighbour"


def test_what_fits_in_no_digest_is_brought_again_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody may choose keys that fall into one part."""
    monkeypatch.setattr(limits, "MAX_DIGEST_ENTRIES", 5)
    giver, taker = linked(1, held=9), gossip_of(1, held=9)
    (ask,) = sent(taker.open_digest(peer(0)))
    (again,) = sent(giver.receive_digest(peer(1), ask.message, 1.0))
    assert len(again.message.records) == 4
    assert taker.receive_records(peer(0), again.message, 1.0, WALL)[1] == []


def test_a_digest_is_no_lever_for_traffic() -> None:
    gossip = linked(1, held=1300, body=b"x" * 4000)
    ask = RecordDigest([], want_reply=True)
    answered = 0
    for _ in range(3000):
        answers = sent(gossip.receive_digest(peer(1), ask, 1.0))
        answered += sum(len(encode_message(answer.message)) for answer in answers)
    assert 0 < answered <= LINK.burst


def test_an_earlier_run_of_ours_is_spoken_over() -> None:
    """Its clock was ahead, so that the others would not take what we say now."""
    world = World(3)
    seq = int((world.wall + 900) * 1000)
    old = record(0, body=ADVERTS.encode(advert(seats=4)), seq=seq)
    world.members[peer(1)].records.offer(old, peer(0), world.wall)
    world.advertise()
    world.link_ring()
    world.run(20)
    numbers = [m.records.order((ADVERT, peer(0)))[0] for m in world.members.values()]
    assert numbers == [seq + 1] * 3


def test_everybody_hears_every_author_of_a_stage() -> None:
    world = World(6)
    world.advertise()
    world.link_ring()
    world.run(5)
    for number, stage in enumerate((1, 1, 0)):
        world.perform(peer(number), [Publish("posting", posting(stage))])
    world.run(1)
    for name, seen in world.seen.items():
        heard = {(e.said.stage, e.signer) for e in seen if isinstance(e, RecordChanged)}
        assert heard == {(1, peer(0)), (1, peer(1)), (0, peer(2))}, name
        later = {(e.said.stage, e.signer) for e in world.members[name].heard_before()}
        assert later == {said for said in heard if said[1] != name}, "who begins to listen now"
    assert not world.penalties()


def test_of_two_adverts_with_one_number_all_have_the_same_in_the_end() -> None:
    """Each half of the swarm is told one of them; only the mark tells them apart in digests."""
    world = World(4, seed=1)
    world.advertise()
    liar, others = peer(77), list(world.members)
    for number, name in enumerate(others):
        body = ADVERTS.encode(advert(memory_bytes=2**30 * (1 + number % 2)))
        world.perform(name, world.members[name].link_up(liar, world.now))
        told = Records([record(77, body=body, seq=7, issued=world.wall)])
        world.perform(name, world.members[name].receive(liar, told, world.now, world.wall))
        world.perform(name, world.members[name].link_down(liar, "gone", world.now))
    world.link_ring()
    world.run(20)
    held = [world.members[name].records.get(ADVERT, liar) for name in others]
    assert len({found.said.memory_bytes for found in held if found}) == 1
    assert None not in held
    assert not world.penalties()


def test_who_is_expelled_is_forgotten_and_not_heard_again() -> None:
    world = World(3)
    world.advertise()
    world.link_ring()
    world.run(5)
    one, two = list(world.members)[:2]
    member = world.members[one]
    assert member.roster.member(two) is not None
    assert two not in member.contacts.lost(world.now)
    member.verdicts.add(Verdict(two, "it lies", None))
    effects = member.expel(two)
    assert two in member.contacts.lost(world.now), "at once, so that no round waits for it"
    assert not member.contacts.is_gone(two)
    assert [e.turned for e in effects if e == ViewChanged(two, "down", "it is expelled")]
    world.run(20)
    assert not member.contacts.present(two, world.now)
    assert member.roster.member(two) is None
    assert member.records.get(ADVERT, two) is None


@pytest.mark.parametrize(("sender", "taken"), [(1, TOLD_OF.burst), (2, 200)])
def test_whom_we_never_worked_with_tells_us_of_few_unknown_members(sender: int, taken: int) -> None:
    member = Membership(peer(0), SWARM, 2)
    member.is_new = lambda of: of != peer(2)
    for other in (1, 2):
        member.link_up(peer(other), 0.0)
    told = [record(n) for n in range(100, 300)]
    for at in range(0, len(told), 50):
        member.receive(peer(sender), Records(told[at : at + 50]), 0.0, WALL)
    assert len(member.roster) == taken
    member.receive(peer(1), Records([record(1)]), 0.0, WALL)
    assert len(member.roster) == taken + 1
    for at in range(0, len(told), 50):
        member.receive(peer(1), Records(told[at : at + 50]), 3 / TOLD_OF.per_s, WALL)
    assert len(member.roster) == min(taken + 3, 200) + 1
