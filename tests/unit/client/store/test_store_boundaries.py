"""Boundaries: stored bytes come back from memory or disk, within both budgets."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.store.boundaries import BoundaryStore, PayloadGone, StoreFull
from protocol.pipeline.effects import PayloadKey


def key(step: int, microbatch: int = 0) -> PayloadKey:
    return PayloadKey(step, "input", microbatch)


def found(store: BoundaryStore, name: PayloadKey) -> bytes | None:
    try:
        data = store.get(name)
    except PayloadGone:
        return None
    assert data is not None
    return data


def test_the_oldest_go_to_disk_and_come_back(tmp_path: Path) -> None:
    store = BoundaryStore(memory_bytes=300, disk_bytes=1000, folder=tmp_path)
    for m in range(5):
        store.put(key(1, m), bytes([m]) * 100)
    assert (store._memory_bytes, store._disk_bytes()) == (300, 200)
    for m in range(5):
        assert found(store, key(1, m)) == bytes([m]) * 100
        assert key(1, m) in store
    assert list(tmp_path.iterdir()) == []  # spill files have no name
    store.close()


def test_dropping_a_step_frees_memory_disk_and_files(tmp_path: Path) -> None:
    store = BoundaryStore(100, 1000, tmp_path)
    before = len(os.listdir("/dev/fd"))
    for step in (1, 2):
        for m in range(3):
            store.put(key(step, m), b"x" * 100)
    assert len(os.listdir("/dev/fd")) == before + 2
    store.drop_step(1)
    assert found(store, key(1)) is None
    assert found(store, key(2)) == b"x" * 100
    store.drop_step(2)
    store.drop_step(3)
    assert store._memory_bytes == store._disk_bytes() == 0


def test_what_fits_nowhere_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    store = BoundaryStore(200, 200, tmp_path)
    for m in range(4):
        store.put(key(1, m), bytes([m]) * 100)
    with pytest.raises(StoreFull):
        store.put(key(1, 9), b"x" * 100)
    with pytest.raises(StoreFull, match="above the memory budget"):
        store.put(key(1, 9), b"x" * 201)
    assert [found(store, key(1, m)) for m in range(4)] == [bytes([m]) * 100 for m in range(4)]
    assert key(1, 9) not in store
    store.close()


def test_a_full_disk_is_refused_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BoundaryStore(100, 1000, tmp_path)
    store.put(key(1), b"a" * 100)

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull, match="No space left"):
            store.put(key(1, 1), b"b" * 100)
    assert found(store, key(1)) == b"a" * 100
    store.put(key(1, 1), b"b" * 100)
    assert found(store, key(1)) == b"a" * 100
    store.close()


names = st.builds(
    PayloadKey,
    st.integers(0, 2),
    st.sampled_from(["input", "segment"]),
    st.integers(0, 3),
    peer=st.sampled_from(["", "A"]),
)
actions = st.one_of(
    st.tuples(st.just("put"), names, st.binary(max_size=60)),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("drop_step"), st.integers(0, 2)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(actions, max_size=40))
def test_it_behaves_like_a_dictionary_within_its_budgets(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[object, ...]]
) -> None:
    store = BoundaryStore(100, 400, tmp_path_factory.getbasetemp())
    model = dict[PayloadKey, bytes]()
    for action, *arguments in script:
        match action, arguments:
            case "put", [PayloadKey() as name, bytes() as data]:
                try:
                    store.put(name, data)
                    model[name] = data
                except StoreFull:
                    pass
            case "drop", [PayloadKey() as name]:
                store.drop(name)
                model.pop(name, None)
            case "drop_step", [int() as step]:
                store.drop_step(step)
                model = {name: data for name, data in model.items() if name.step != step}
        assert store._memory_bytes <= 100
        assert store._disk_bytes() <= 400
        assert all(found(store, name) == data for name, data in model.items())
        for peer in ("", "A"):
            kept = [len(data) for name, data in model.items() if name.peer == peer]
            assert store.bytes_of(peer) == sum(kept)
    store.close()
