"""JSON-RPC 2.0 over newline-delimited bytes: parses requests, encodes answers.

Pure: no sockets, no clock. A request is untrusted input (any local program of the user may write
to the socket), so everything is checked here and nothing raises but ``RpcError``.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

MAX_REQUEST_BYTES = 64 * 1024
"""Requests carry names and numbers only, so this is enough."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TOO_LARGE = -32002
IMPOSSIBLE = -32004

RequestId = int | str | None
Params = TypeVar("Params")


class RpcError(Exception):
    """A request that is answered with an error object.

    Attributes:
        code: JSON-RPC error code.
        request_id: id of the request where it could be read, else None.
    """

    def __init__(self, code: int, message: str, request_id: RequestId = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.request_id = request_id


class Request(Struct, frozen=True):
    """A request."""

    jsonrpc: str
    method: str
    id: int | str
    params: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(Request)


def parse_request(line: bytes) -> Request:
    """Parse one line.

    Raises:
        RpcError: not JSON, not a request object, or not JSON-RPC 2.0.
    """
    try:
        request = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"not a JSON-RPC request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"not JSON: {error}") from error
    if request.jsonrpc != "2.0":
        raise RpcError(INVALID_REQUEST, "jsonrpc must be '2.0'", request.id)
    return request


def parse_params(request: Request, kind: type[Params]) -> Params:
    """Convert the named parameters of a request to a struct.

    Raises:
        RpcError: missing, unknown or mistyped parameters.
    """
    try:
        return msgspec.convert(request.params, kind)
    except msgspec.ValidationError as error:
        message = f"parameters of {request.method}: {error}"
        raise RpcError(INVALID_PARAMS, message, request.id) from error


def encode_request(method: str, params: object, request_id: int) -> bytes:
    """Return a request line, newline included; the answer repeats ``request_id``."""
    request = {"jsonrpc": "2.0", "method": method, "params": params, "id": request_id}
    return msgspec.json.encode(request) + b"\n"


def encode_result(result: object, request_id: RequestId) -> bytes:
    """Return an answer line, newline included."""
    return msgspec.json.encode({"jsonrpc": "2.0", "result": result, "id": request_id}) + b"\n"


def encode_error(error: RpcError) -> bytes:
    """Return an error line, newline included."""
    body = {"code": error.code, "message": error.message}
    return msgspec.json.encode({"jsonrpc": "2.0", "error": body, "id": error.request_id}) + b"\n"
