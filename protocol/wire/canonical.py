"""How values become bytes, and bytes of others become typed values within their bounds.

The bodies of signed records are canonical: they have one encoding each, so that equal bodies are
equal bytes.
"""

from typing import Any, Generic, TypeVar

import msgspec

from protocol.errors import LocalProtocolError, RemoteProtocolError

Value = TypeVar("Value")
Body = TypeVar("Body", bound=msgspec.Struct)

MALFORMED_PENALTY = 20
FORGED_PENALTY = 50


class Format(Generic[Value]):
    """Encodes and parses values of a type, or of one of several; reasons begin with ``name``."""

    def __init__(self, of: Any, name: str) -> None:
        self._name = name
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Value] = msgspec.msgpack.Decoder(of)

    def encode(self, value: Value) -> bytes:
        """Return the bytes of a value."""
        return self._encoder.encode(value)

    def parse(self, encoded: bytes) -> Value:
        """Parse a value.

        Raises:
            RemoteProtocolError: malformed, of another type, or a field out of its range.
        """
        try:
            return self._decoder.decode(encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.malformed(str(error)) from error

    def malformed(self, words: str) -> RemoteProtocolError:
        """Return the error for what no honest peer writes."""
        return RemoteProtocolError(f"{self._name}-malformed", words, penalty=MALFORMED_PENALTY)


class Canonical(Format[Body]):
    """The bodies of one kind of record."""

    def __init__(self, of: type[Body], name: str) -> None:
        super().__init__(of, name)

    def encode(self, value: Body) -> bytes:
        """Return the canonical encoding (integers in float fields become floats).

        Raises:
            LocalProtocolError: a field out of its range.
        """
        try:
            return self._encoder.encode(self._decoder.decode(self._encoder.encode(value)))
        except msgspec.MsgspecError as error:
            raise LocalProtocolError(f"our own {self._name}: {error}") from error

    def parse(self, encoded: bytes) -> Body:
        """Parse a body.

        Raises:
            RemoteProtocolError: malformed, out of range or not canonical.
        """
        body = super().parse(encoded)
        if self._encoder.encode(body) != encoded:
            raise self.malformed("not canonical")
        return body
