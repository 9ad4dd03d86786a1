"""Fetching a blob: every chunk once, from whoever has it; liars cost time and nothing else."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.effects import Penalise, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.limits import CHUNK_BYTES, MAX_BLOB_BYTES
from protocol.pace import FORGET_S, LOOK_S
from protocol.transfer.blob import Blob, refusal, root_of
from protocol.transfer.fetch import WINDOW, Fetch, FetchEffect, StoreChunk
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest
from tests.support.effects import sent

A, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
QUERY = BlobQuery("state", 1, 7)
NO = refusal("state", 1, 7)


def digest(index: int, flavour: int = 0) -> bytes:
    return bytes([flavour, index % 256]) * 16


LISTS = dict[bytes, bytes]()
"""The lists of digests of all offers, by their roots."""


def offer(
    chunks: int, *, flavour: int = 0, digests: list[bytes] | None = None, **changes: object
) -> BlobOffer:
    listed = [digest(i, flavour) for i in range(chunks)] if digests is None else digests
    blob = Blob.of("state", 1, 7, chunks * CHUNK_BYTES - 5, listed)
    LISTS[blob.offer.root] = blob.listed
    return msgspec.structs.replace(blob.offer, **changes)


class Told(Fetch):
    """A fetch whose donors give the list of digests as soon as it is asked for."""

    def offered(self, sender: PeerId, offer: BlobOffer, now: float) -> list[FetchEffect]:
        return self._listed_at_once(super().offered(sender, offer, now), now)

    def lost(self, peer: PeerId, now: float) -> list[FetchEffect]:
        return self._listed_at_once(super().lost(peer, now), now)

    def tick(self, now: float) -> list[FetchEffect]:
        return self._listed_at_once(super().tick(now), now)

    def chunk(self, sender: PeerId, chunk: Chunk, digest: bytes, now: float) -> list[FetchEffect]:  # type: ignore[override]
        """Take a chunk whose bytes do not matter."""
        return self._listed_at_once(super().chunk(sender, chunk, b"", digest, now), now)

    def _listed_at_once(self, effects: list[FetchEffect], now: float) -> list[FetchEffect]:
        result = list[FetchEffect]()
        for effect in effects:
            match effect:
                case Send(peer, ChunkRequest(index=None) as request):
                    assert self.offer is not None
                    listed = Chunk(request.kind, request.stage, request.version, None)
                    root, payload = self.offer.root, LISTS[self.offer.root]
                    result += super().chunk(peer, listed, payload, root, now)
                case _:
                    result.append(effect)
        return result


def chunk(index: int, version: int = 7) -> Chunk:
    return Chunk("state", 1, version, index)


def asked(effects: list[object]) -> list[tuple[PeerId, int]]:
    """The donor of each chunk."""
    return [(peer, request.index) for peer, request in sent(effects, ChunkRequest)]


def stored(effects: list[object]) -> list[int]:
    return [effect.index for effect in effects if isinstance(effect, StoreChunk)]


def blamed(effects: list[object]) -> list[PeerId]:
    return [effect.peer for effect in effects if isinstance(effect, Penalise)]


def begin(*donors: PeerId) -> Fetch:
    fetch = Told(QUERY, list(donors))
    assert [e.peer for e in fetch.start(0.0) if isinstance(e, Send)] == list(donors)
    return fetch


def serve_all(fetch: Fetch, requests: list[tuple[PeerId, int]]) -> list[int]:
    """Answer requests and what follows from them; the chunks that were stored."""
    result: list[int] = []
    while requests:
        donor, index = requests.pop(0)
        effects = list(fetch.chunk(donor, chunk(index), digest(index), 1.0))
        result += stored(effects)
        requests += asked(effects)
    return result


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 3))
def test_every_chunk_is_stored_once_whatever_happens(seed: int, chunks: int, honest: int) -> None:
    """Losses of donors, wrong bytes, repeats and strangers, in any order, as long as one of the
    donors stays honest."""
    source = random.Random(seed)
    donors = [A, B, C][:honest]
    fetch = begin(*donors)
    requests: list[tuple[PeerId, int]] = []
    for donor in donors:
        requests += asked(list(fetch.offered(donor, offer(chunks), 0.0)))
    result: list[int] = []
    while requests:
        donor, index = requests.pop(source.randrange(len(requests)))
        event = source.choice(["serve", "serve", "serve", "lie", "leave", "repeat", "stranger"])
        if donor == A and event in ("lie", "leave"):
            event = "serve"
        effects: list[object] = []
        match event:
            case "lie":
                effects += fetch.chunk(donor, chunk(index), digest(index, 9), 1.0)
            case "leave":
                effects += fetch.lost(donor, 1.0)
            case "stranger":
                effects += fetch.chunk(STRANGER, chunk(index), digest(index), 1.0)
                requests.append((donor, index))
            case _:
                effects += fetch.chunk(donor, chunk(index), digest(index), 1.0)
                if event == "repeat":
                    assert not stored(list(fetch.chunk(donor, chunk(index), digest(index), 1.0)))
        result += stored(effects)
        requests += asked(effects)
        assert all(len(donor.outstanding) <= WINDOW for donor in fetch._donors.values())
    assert sorted(result) == list(range(chunks)), f"seed {seed}"
    assert fetch.done


def test_a_wrong_digest_costs_the_donor_everything_it_was_asked_for() -> None:
    fetch = begin(A, B)
    requests = asked([*fetch.offered(A, offer(8), 0.0), *fetch.offered(B, offer(8), 0.0)])
    of_a = {index for peer, index in requests if peer == A}
    effects = list(fetch.chunk(A, chunk(min(of_a)), digest(0, 9), 1.0))
    assert blamed(effects) == [A]
    assert stored(effects) == []
    rest = [(peer, index) for peer, index in requests if peer == B]
    assert sorted(serve_all(fetch, rest + asked(effects))) == list(range(8))


def test_offers_that_are_no_answer_are_ignored() -> None:
    fetch = begin(A)
    for wrong in (
        offer(2, kind="data"),
        offer(2, stage=2),
        offer(2, version=8),
    ):
        assert fetch.offered(A, wrong, 0.0) == []
    assert fetch.offered(STRANGER, offer(2), 0.0) == []
    assert fetch.offer is None


def test_an_offer_of_too_much_is_blamed_and_one_of_nothing_is_a_refusal() -> None:
    for size, liars in ((0, []), (MAX_BLOB_BYTES + 1, [A])):
        fetch = begin(A)
        assert blamed(list(fetch.offered(A, offer(2, size_bytes=size), 0.0))) == liars
        assert fetch.hopeless


LISTED = Chunk("state", 1, 7, None)


def test_the_list_of_digests_comes_first_and_once_from_whoever_gives_it() -> None:
    """So one that repeats an honest offer and is silent keeps nobody waiting."""
    fetch = Fetch(QUERY, [A, B])
    fetch.start(0.0)
    effects = [*fetch.offered(A, offer(3), 0.0), *fetch.offered(B, offer(3), 0.0)]
    assert effects == [Send(donor, ChunkRequest("state", 1, 7, None)) for donor in (A, B)]
    assert fetch.progress == (0, 3)
    listed = LISTS[offer(3).root]
    requests = asked(fetch.chunk(B, LISTED, listed, root_of(listed), 1.0))
    assert sorted(index for _, index in requests) == [0, 1, 2]
    assert fetch.chunk(A, LISTED, listed, root_of(listed), 2.0) == []


def test_a_donor_that_drips_does_not_decide_how_long_the_last_chunks_take() -> None:
    fetch, drips_s = begin(A, B), 2 * FORGET_S
    requests = asked([*fetch.offered(A, offer(20), 0.0), *fetch.offered(B, offer(20), 0.0)])
    held = [index for peer, index in requests if peer == A]
    assert len(held) == WINDOW
    serve_all(fetch, [(peer, index) for peer, index in requests if peer == B])
    assert fetch.progress == (20 - WINDOW, 20)
    assert asked(fetch.tick(FORGET_S - 1)) == []
    late = asked(fetch.tick(FORGET_S))
    assert late == [(B, index) for index in sorted(held)]
    assert asked(fetch.tick(FORGET_S + 1)) == [], "of nobody twice"
    assert stored(fetch.chunk(A, chunk(held[0]), digest(held[0]), drips_s - 1)) == [held[0]]
    assert fetch.chunk(B, chunk(held[0]), digest(held[0]), drips_s) == []
    fetch.lost(A, drips_s)
    assert sorted(serve_all(fetch, [(B, index) for index in held[1:]])) == sorted(held[1:])
    assert fetch.done


def test_a_list_that_is_not_the_offers_costs_the_donor_and_comes_from_another() -> None:
    fetch = Fetch(QUERY, [A, B])
    fetch.start(0.0)
    fetch.offered(A, offer(3), 0.0)
    fetch.offered(B, offer(3), 0.0)
    effects = fetch.chunk(A, LISTED, LISTS[offer(3, flavour=1).root], digest(9), 1.0)
    assert blamed(effects) == [A]
    listed = LISTS[offer(3).root]
    requests = asked(fetch.chunk(B, LISTED, listed, root_of(listed), 1.0))
    assert sorted(requests) == [(B, index) for index in range(3)]


def test_a_list_of_too_few_digests_costs_the_donor() -> None:
    """Its root is the offer's, but the offer's size is another one's."""
    fetch = Fetch(QUERY, [A])
    fetch.start(0.0)
    wrong = offer(3, digests=[digest(0), digest(1)])
    fetch.offered(A, wrong, 0.0)
    assert blamed(fetch.chunk(A, LISTED, LISTS[wrong.root], wrong.root, 1.0)) == [A]
    assert fetch.hopeless
    assert not fetch.done


def test_the_most_offered_blob_is_tried_next() -> None:
    fetch = begin(A, STRANGER, B, C)
    fetch.offered(A, offer(2, flavour=1), 0.0)
    fetch.offered(STRANGER, offer(2, flavour=2), 0.0)
    fetch.offered(B, offer(2), 0.0)
    fetch.offered(C, offer(2), 0.0)
    effects = list(fetch.offered(A, NO, 1.0))
    assert {peer for peer, _ in asked(effects)} == {B, C}


@pytest.mark.parametrize("count", [1, 4])
def test_liars_that_drip_do_not_keep_others_from_giving_theirs(count: int) -> None:
    """They offer first, a thousand chunks of their own bytes, and each sends one just before it
    would be given up. The other one sends 100 kB/s."""
    liars = [peer_id_from_key(bytes([n, 9]) * 16) for n in range(count)]
    fetch, now = begin(*liars, B), 0.0
    offers = {**dict.fromkeys(liars, offer(1000, flavour=1)), B: offer(40)}
    waiting = {donor: asked(list(fetch.offered(donor, offers[donor], now))) for donor in offers}
    every, flavour = {**dict.fromkeys(liars, WINDOW * FORGET_S - 1), B: 21.0}, {B: 0}
    due, within_s = dict(every), 2.5 * (count + 1) * 40 * every[B]
    while not fetch.done and now < within_s:
        now += 1.0
        effects = list(fetch.tick(now))
        for donor, requests in waiting.items():
            if requests and now >= due[donor]:
                _, index = requests.pop(0 if donor == B else -1)  # liars answer what still counts
                due[donor] = now + every[donor]
                proof = digest(index, flavour.get(donor, 1))
                effects += fetch.chunk(donor, chunk(index), proof, now)
        for donor, index in asked(effects):
            waiting[donor].append((donor, index))
    assert fetch.progress == (40, 40)
    assert fetch.sources == {B}


def test_liars_who_each_offer_other_bytes_take_no_more_turns_than_others_who_agree() -> None:
    """Three honest donors send 12 chunks a minute together; twenty liars send none. An equal share
    of the time would be enough in 1533 s."""
    honest, liars = [A, B, C], [peer_id_from_key(bytes([n, 9]) * 16) for n in range(20)]
    fetch, now = begin(*liars, *honest), 0.0
    waiting = list[tuple[PeerId, int]]()
    for number, liar in enumerate(liars):
        fetch.offered(liar, offer(40, flavour=number + 1), now)
    for donor in honest:
        fetch.offered(donor, offer(40), now)
    while not fetch.done and now < 7200.0:
        now += 5.0
        effects = list(fetch.tick(now))
        if waiting:
            donor, index = waiting.pop(0)
            effects += fetch.chunk(donor, chunk(index), digest(index), now)
        waiting += [one for one in asked(effects) if one[0] in honest]
    assert fetch.sources <= set(honest)
    assert now < 900.0


@pytest.mark.parametrize("bytes_per_s", [100e3, 1e6 / 8 / 4])
def test_a_slow_line_is_not_a_silent_one(bytes_per_s: float) -> None:
    """At 100 kB/s the last of four chunks comes 84 s after it was asked for; of 1 Mbit/s a quarter
    is left beside tensors."""
    fetch, now = begin(A), 0.0
    waiting = asked(list(fetch.offered(A, offer(8), now)))
    while waiting:
        now += CHUNK_BYTES / bytes_per_s
        assert not asked(list(fetch.tick(now)))
        _, index = waiting.pop(0)
        waiting += asked(list(fetch.chunk(A, chunk(index), digest(index), now)))
    assert fetch.done


def test_a_donor_that_falls_silent_half_way_is_given_up() -> None:
    fetch = begin(A)
    requests = asked(list(fetch.offered(A, offer(8), 0.0)))
    fetch.chunk(A, chunk(requests[0][1]), digest(requests[0][1]), 20.0)
    fetch.tick(20.0 + WINDOW * FORGET_S - 1)
    assert not fetch.hopeless
    fetch.tick(20.0 + WINDOW * FORGET_S)
    assert fetch.hopeless


def test_silent_donors_are_asked_again() -> None:
    fetch = begin(A, B)
    fetch.offered(A, offer(1), 0.0)
    again = [e.peer for e in fetch.tick(LOOK_S) if isinstance(e, Send)]
    assert again == [B]


def test_another_version_than_that_of_the_query_counts_for_nothing() -> None:
    fetch = begin(A)
    assert fetch.offered(A, offer(1, version=3), 0.0) == []
    assert asked(list(fetch.offered(A, offer(1), 0.0))) == [(A, 0)]
    assert fetch.chunk(A, chunk(0, version=4), digest(0), 1.0) == []
    assert stored(list(fetch.chunk(A, chunk(0), digest(0), 1.0))) == [0]


def test_an_offer_before_the_question_chooses_nothing() -> None:
    fetch = Told(QUERY, [A])
    assert fetch.offered(A, offer(5), 0.0) == []
    fetch.resume({0: digest(0)})
    fetch.start(0.0)
    fetch.offered(A, offer(5), 0.0)
    assert fetch.progress == (1, 5)


def test_what_two_blobs_share_is_fetched_once() -> None:
    """The one begun is nobody's any more; its chunks are in the other one too, except for one."""
    fetch = begin(A, B)
    other = offer(4, digests=[digest(i, flavour=9 if i == 1 else 0) for i in range(4)])
    fetch.offered(A, offer(4), 0.0)
    fetch.offered(B, other, 0.0)
    for index in (0, 1, 2):
        fetch.chunk(A, chunk(index), digest(index), 0.1)
    requests = asked(fetch.lost(A, 0.2))
    assert fetch.progress == (2, 4)
    assert requests == [(B, 1), (B, 3)]


def test_a_late_answer_to_another_question_drops_no_donor() -> None:
    fetch = begin(A)
    for late in (refusal("state", 1, 6), refusal("state", 2, 7), refusal("data", 1, 7)):
        assert fetch.offered(A, late, 0.0) == []
        assert not fetch.hopeless
    requests = asked(fetch.offered(A, offer(10), 0.0))
    assert fetch.offered(A, refusal("state", 1, 6), 0.0) == []
    assert sorted(serve_all(fetch, requests)) == list(range(10))
