"""Fetching a blob: every chunk once, from whoever has it; liars are found at their first bytes."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.specs.state_hash import root
from protocol.effects import Penalise, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.limits import CHUNK_BYTES
from protocol.pace import FORGET_S, LOOK_S
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import WINDOW, Fetch
from protocol.transfer.leaves import LeafEffect, StoreChunk
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.effects import sent

A, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STAGE, VERSION = 1, 7


def digest(index: int, flavour: int = 0) -> bytes:
    return bytes([flavour, index % 256]) * 16


def listing(chunks: int, flavour: int = 0) -> bytes:
    """The list of the digests of so many chunks."""
    return b"".join(digest(index, flavour) for index in range(chunks))


def blob(chunks: int) -> Blob:
    proven = bytes.fromhex(root(VERSION, [listing(chunks)]))
    return Blob(proven, chunks * CHUNK_BYTES - 5, STAGE, VERSION)


class Asked(Fetch):
    """A fetch whose chunks are named by their index."""

    def __init__(self, chunks: int, *donors: PeerId) -> None:
        self.wanted = blob(chunks)
        super().__init__(self.wanted, list(donors))

    def lists(self, donor: PeerId, now: float = 0.0, flavour: int = 0) -> list[LeafEffect]:
        listed = listing(self.wanted.count, flavour)
        return self.chunk(donor, Chunk(self.wanted.root, None), listed, b"", now)

    def refuses(self, donor: PeerId, now: float = 0.0) -> list[LeafEffect]:
        return self.chunk(donor, Chunk(self.wanted.root, None), b"", b"", now)

    def gives(self, donor: PeerId, index: int, now: float, flavour: int = 0) -> list[LeafEffect]:
        """A donor gives a chunk whose bytes do not matter."""
        named = Chunk(self.wanted.root, index)
        return self.chunk(donor, named, b"bytes", digest(index, flavour), now)


def asked(effects: list[object]) -> list[tuple[PeerId, int]]:
    """The donor of each chunk."""
    requests = sent(effects, ChunkRequest)
    return [(peer, request.index) for peer, request in requests if request.index is not None]


def stored(effects: list[object]) -> list[int]:
    return [effect.index for effect in effects if isinstance(effect, StoreChunk)]


def blamed(effects: list[object]) -> list[PeerId]:
    return [effect.peer for effect in effects if isinstance(effect, Penalise)]


def begin(chunks: int, *donors: PeerId) -> Asked:
    fetch = Asked(chunks, *donors)
    question = ChunkRequest(fetch.wanted.root, None, STAGE, VERSION)
    assert fetch.start(0.0) == [Send(donor, question) for donor in donors]
    return fetch


def serve_all(fetch: Asked, requests: list[tuple[PeerId, int]]) -> list[int]:
    """Answer requests and what follows from them; the chunks that were stored."""
    result: list[int] = []
    while requests:
        donor, index = requests.pop(0)
        effects = list(fetch.gives(donor, index, 1.0))
        result += stored(effects)
        requests += asked(effects)
    return result


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 3))
def test_every_chunk_is_stored_once_whatever_happens(seed: int, chunks: int, honest: int) -> None:
    """Losses of donors, wrong bytes, repeats and strangers, in any order, as long as one of the
    donors stays honest."""
    source = random.Random(seed)
    donors = [A, B, C][:honest]
    fetch = begin(chunks, *donors)
    requests: list[tuple[PeerId, int]] = []
    for donor in donors:
        requests += asked(fetch.lists(donor))
    result: list[int] = []
    while requests:
        donor, index = requests.pop(source.randrange(len(requests)))
        event = source.choice(["serve", "serve", "serve", "lie", "leave", "repeat", "stranger"])
        if donor == A and event in ("lie", "leave"):
            event = "serve"
        effects: list[object] = []
        match event:
            case "lie":
                effects += fetch.gives(donor, index, 1.0, 9)
            case "leave":
                effects += fetch.lost(donor, 1.0)
            case "stranger":
                effects += fetch.gives(STRANGER, index, 1.0)
                requests.append((donor, index))
            case _:
                effects += fetch.gives(donor, index, 1.0)
                if event == "repeat":
                    assert not stored(list(fetch.gives(donor, index, 1.0)))
        result += stored(effects)
        requests += asked(effects)
        assert max(Counter(peer for peer, _ in requests).values(), default=0) <= WINDOW
    assert sorted(result) == list(range(chunks)), f"seed {seed}"
    assert fetch.done


def test_a_list_that_is_not_the_roots_costs_the_donor_at_once() -> None:
    fetch = begin(3, A, B, C)
    assert fetch.lists(STRANGER) == []
    assert blamed(fetch.lists(A, flavour=1)) == [A]
    for wrong in (listing(3)[:-1], listing(4), listing(2)):
        alone = begin(3, A)
        assert blamed(alone.chunk(A, Chunk(alone.wanted.root, None), wrong, b"", 0.0)) == [A]
        assert alone.hopeless
        assert not alone.done
    assert fetch.refuses(B) == [], "it has nothing, or not any more"
    assert sorted(asked(fetch.lists(C))) == [(C, index) for index in range(3)]
    assert fetch.refuses(C, 1.0) == []
    assert fetch.hopeless


def test_the_same_list_of_another_version_is_another_blob() -> None:
    listed, same = listing(3), blob(3)
    assert same.lists(listed)
    assert not Blob(same.root, same.size_bytes, STAGE, VERSION + 1).lists(listed)
    assert not Blob(same.root, same.size_bytes + CHUNK_BYTES, STAGE, VERSION).lists(listed)


def test_a_donor_that_drips_does_not_decide_how_long_the_last_chunks_take() -> None:
    fetch, drips_s = begin(20, A, B), 2 * FORGET_S
    requests = asked([*fetch.lists(A), *fetch.lists(B)])
    held = [index for peer, index in requests if peer == A]
    assert len(held) == WINDOW
    serve_all(fetch, [(peer, index) for peer, index in requests if peer == B])
    assert fetch.progress == (20 - WINDOW, 20)
    assert asked(fetch.tick(FORGET_S - 1)) == []
    late = asked(fetch.tick(FORGET_S))
    assert late == [(B, index) for index in sorted(held)]
    assert asked(fetch.tick(FORGET_S + 1)) == [], "of nobody twice"
    assert stored(fetch.gives(A, held[0], drips_s - 1)) == [held[0]]
    assert fetch.gives(B, held[0], drips_s) == []
    fetch.lost(A, drips_s)
    assert sorted(serve_all(fetch, [(B, index) for index in held[1:]])) == sorted(held[1:])
    assert fetch.done


@pytest.mark.parametrize("count", [1, 20])
def test_liars_hold_up_a_download_no_longer_than_their_first_bytes_take(count: int) -> None:
    """Each offers other bytes: half of them another list, half the true one and other chunks. The
    honest one sends a chunk every 5 s."""
    liars = [peer_id_from_key(bytes([n, 9]) * 16) for n in range(count)]
    fetch, now = begin(40, *liars, A), 0.0
    effects = [effect for n, liar in enumerate(liars) for effect in fetch.lists(liar, 0.0, n % 2)]
    effects += fetch.lists(A)
    waiting = list[tuple[PeerId, int]]()
    while not fetch.done and now < 1000.0:
        waiting += [one for one in asked(effects) if one[0] == A]
        lies = [one for one in asked(effects) if one[0] != A]
        effects = [effect for liar, index in lies for effect in fetch.gives(liar, index, now, 9)]
        if lies:
            continue
        now += 5.0
        effects = list(fetch.tick(now))
        if waiting:
            effects += fetch.gives(*waiting.pop(0), now)
    assert (fetch.done, now) == (True, 40 * 5.0)


def test_liars_that_are_silent_or_drip_do_not_keep_others_from_giving() -> None:
    """Twenty have the list, and send a chunk just before they would be given up, or none. The other
    one sends 100 kB/s."""
    liars = [peer_id_from_key(bytes([n, 9]) * 16) for n in range(20)]
    fetch, now = begin(100, *liars, B), 0.0
    waiting = {donor: asked(fetch.lists(donor)) for donor in (*liars, B)}
    every = {**dict.fromkeys(liars, WINDOW * FORGET_S - 1), B: 21.0}
    due = dict(every)
    while not fetch.done and now < 7200.0:
        now += 1.0
        effects = list(fetch.tick(now))
        for donor, requests in waiting.items():
            if requests and now >= due[donor] and donor not in liars[::2]:
                due[donor] = now + every[donor]
                effects += fetch.gives(donor, requests.pop(0)[1], now)
        for donor, index in asked(effects):
            waiting[donor].append((donor, index))
    assert now <= 100 * every[B] + WINDOW * FORGET_S


@pytest.mark.parametrize("bytes_per_s", [100e3, 1e6 / 8 / 4])
def test_a_slow_line_is_not_a_silent_one(bytes_per_s: float) -> None:
    """At 100 kB/s the last of four chunks comes 84 s after it was asked for; of 1 Mbit/s a quarter
    is left beside tensors."""
    fetch, now = begin(8, A), 0.0
    waiting = asked(fetch.lists(A))
    while waiting:
        now += CHUNK_BYTES / bytes_per_s
        assert not asked(list(fetch.tick(now)))
        waiting += asked(fetch.gives(*waiting.pop(0), now))
    assert fetch.done


def test_a_donor_that_falls_silent_half_way_is_asked_anew_later() -> None:
    fetch = begin(8, A)
    requests, silent_s = asked(fetch.lists(A)), 20.0 + WINDOW * FORGET_S
    fetch.gives(*requests[0], 20.0)
    assert not asked(fetch.tick(silent_s + FORGET_S - 1))
    assert len(asked(fetch.tick(silent_s + 2 * FORGET_S))) == WINDOW


def test_silent_donors_are_asked_again() -> None:
    fetch = begin(1, A, B)
    fetch.lists(A)
    assert not fetch.tick(LOOK_S - 1), "not all the time"
    again = [e.peer for e in fetch.tick(LOOK_S) if isinstance(e, Send)]
    assert again == [B]


def test_what_is_of_another_blob_or_was_not_asked_for_counts_for_nothing() -> None:
    fetch = Asked(2, A, B)
    assert fetch.lists(A) == [], "before the question"
    fetch.start(0.0)
    other = Chunk(bytes(32), None)
    assert fetch.chunk(A, other, b"", b"", 0.0) == []
    assert fetch.gives(A, 0, 0.0) == [], "before the list"
    assert sorted(asked(fetch.lists(A))) == [(A, 0), (A, 1)]
    assert fetch.lists(A) == [], "a second time"
    assert fetch.chunk(A, Chunk(bytes(32), 0), b"", digest(0), 1.0) == []
    assert fetch.gives(B, 0, 1.0) == []
    assert stored(fetch.gives(A, 0, 1.0)) == [0]


def test_chunks_of_an_earlier_attempt_are_not_fetched_again() -> None:
    fetch = Asked(5, A)
    fetch.resume({0: digest(0), 1: digest(1, 9), 4: digest(4), 5: digest(5)})
    fetch.start(0.0)
    assert sorted(asked(fetch.lists(A))) == [(A, 1), (A, 2), (A, 3)]
    assert fetch.progress == (2, 5)
    assert fetch.listed == listing(5)
