"""Decoders of typed records, each made by one thread at a time.

msgspec (0.22) analyses a type when it is first used. If another thread uses the type meanwhile, the
process crashes. So types that several threads may decode are decoded with these.
"""

import threading
from typing import Any, TypeVar

import msgspec

Decoded = TypeVar("Decoded")
_making = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_packed: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[Decoded]) -> msgspec.json.Decoder[Decoded]:
    """Return the decoder of a type in JSON."""
    with _making:
        if kind not in _json:
            _json[kind] = msgspec.json.Decoder(kind)
        return _json[kind]


def packed_decoder(kind: type[Decoded]) -> msgspec.msgpack.Decoder[Decoded]:
    """Return the decoder of a type in MessagePack."""
    with _making:
        if kind not in _packed:
            _packed[kind] = msgspec.msgpack.Decoder(kind)
        return _packed[kind]
