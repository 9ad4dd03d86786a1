"""The bytes behind the payload keys of a seat: in memory, spilling to disk past the budget."""

from __future__ import annotations

from client.store.boundaries import BoundaryStore, Key
from protocol.pipeline.effects import PayloadKey


class PayloadGone(Exception):
    """Nothing is stored under the key any more (its step is over, or the disk lost it)."""


class Payloads:
    """A ``BoundaryStore`` by ``PayloadKey``."""

    def __init__(self, store: BoundaryStore) -> None:
        self._store = store

    def put(self, key: PayloadKey, data: bytes) -> None:
        """Store bytes; raises ``StoreFull`` when neither memory nor disk has room."""
        self._store.put(_key(key), data)

    def get(self, key: PayloadKey) -> bytes:
        """Return the bytes of a key; raises ``PayloadGone``."""
        data = self._store.get(_key(key))
        if data is None:
            raise PayloadGone(str(key))
        return data

    def drop_step(self, step: int) -> None:
        """Forget everything of one step."""
        self._store.drop_step(step)

    def close(self) -> None:
        """Forget everything."""
        self._store.close()


def _key(key: PayloadKey) -> Key:
    return Key(key.step, key.item, f"{key.name}:{key.attempt}:{key.peer}")
