"""Requests as a table: what goes in, which error or result comes out."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.control import methods, rpc
from client.control.client import ControlClient
from client.control.matches import MATCHES_VERSION
from client.control.methods import MAX_EVENTS_PER_ANSWER, answer
from client.control.snapshot import SCHEMA_VERSION
from tests.support.control_fakes import FakeProvider

REFUSED = [
    (b"{", rpc.PARSE_ERROR),
    (b"\xff\xfe", rpc.PARSE_ERROR),
    (b'{"jsonrpc": ' + b"[" * 60_000, rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "method": "status", "params": ' + b"[" * 60_000, rpc.INVALID_REQUEST),
    (b"[]", rpc.INVALID_REQUEST),
    (b"1", rpc.INVALID_REQUEST),
    (b'"status"', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "status"}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": [1], "method": "status"}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "status", "params": "x"}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "__class__"}', rpc.METHOD_NOT_FOUND),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "status", "params": {"a": 1}}', rpc.INVALID_PARAMS),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "status", "params": [1]}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "method": "finish"}', rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "hello"}', rpc.INVALID_PARAMS),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "matches", "params": {"a": 1}}', rpc.INVALID_PARAMS),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"version": 99}}',
        rpc.WRONG_VERSION,
    ),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "events", "params": {"since": -1}}',
        rpc.INVALID_PARAMS,
    ),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "events", "params": {"since": 1e300}}',
        rpc.INVALID_PARAMS,
    ),
]


@pytest.mark.parametrize(("line", "code"), REFUSED, ids=range(len(REFUSED)))
def test_refuses(line: bytes, code: int) -> None:
    reply = json.loads(answer(line, FakeProvider()))
    assert reply["error"]["code"] == code
    assert reply["error"]["message"]
    assert "result" not in reply


@given(st.binary(max_size=200))
def test_any_bytes_get_one_line_of_answer(line: bytes) -> None:
    reply = answer(line, FakeProvider())
    assert reply.endswith(b"\n")
    assert "error" in json.loads(reply)


def _call(method: str, provider: FakeProvider | None = None, **params: object) -> dict[str, object]:
    line = rpc.encode_request(method, params, 5)
    reply: dict[str, object] = json.loads(answer(line, provider or FakeProvider()))
    assert reply["id"] == 5
    return reply


def test_status_is_the_snapshot_with_its_schema_version() -> None:
    result = _call("status")["result"]
    assert isinstance(result, dict)
    assert result["schema_version"] == SCHEMA_VERSION
    assert result["stages"][0]["replicas"][0]["rate"] == 1.5
    assert result["counters"]["doubled_microbatches"] == 0


def test_matches_is_versioned() -> None:
    result = _call("matches")["result"]
    assert isinstance(result, dict)
    assert result["schema_version"] == MATCHES_VERSION
    assert result["seats"][0]["state"] == "serving"
    assert result["stages"][1]["obstacle"].startswith("its cutoff is above us")


def test_events_are_those_after_since() -> None:
    result = _call("events", since=1)["result"]
    assert isinstance(result, dict)
    assert [event["seq"] for event in result["events"]] == [2, 3]
    assert result["last"] == 3


def test_events_are_bounded_and_can_be_paged() -> None:
    provider = FakeProvider(event_count=MAX_EVENTS_PER_ANSWER + 5)
    first = _call("events", provider)["result"]
    assert isinstance(first, dict)
    assert len(first["events"]) == MAX_EVENTS_PER_ANSWER
    rest = _call("events", provider, since=first["last"])["result"]
    assert isinstance(rest, dict)
    assert len(rest["events"]) == 5


def test_a_failing_provider_is_an_internal_error() -> None:
    provider = FakeProvider()
    provider.failure = RuntimeError("boom")
    error = _call("status", provider)["error"]
    assert isinstance(error, dict)
    assert error["code"] == rpc.INTERNAL_ERROR
    assert "boom" in error["message"]


def test_the_document_lists_every_method() -> None:
    page = (Path(methods.__file__).parent / "README.md").read_text()
    table = page.split("## Methods")[1].split("## Updates")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    parameters = {row[0].strip("`"): row[1] for row in rows}
    assert parameters.keys() == methods.METHODS.keys()
    for name, of in methods.METHODS.items():
        assert all(one in parameters[name] for one in of.params.__struct_fields__), name


def test_a_client_has_every_method_of_the_node_with_its_parameters() -> None:
    for name in methods.OF_NODE:
        called, declared = getattr(ControlClient, name), getattr(methods.ControlApi, name)
        assert called is not declared
        assert inspect.signature(called) == inspect.signature(declared)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("history", {"points": 0}),
        ("history", {"points": 501}),
        ("pause", {"until": -1}),
        ("pause", {"reason": "x" * 300}),
        ("pause", {"for": "2h"}),
        ("resume", {"now": True}),
        ("subscribe", {"events_since": -1}),
    ],
)
def test_parameters_are_bounded(method: str, params: dict[str, object]) -> None:
    error = _call(method, **params)["error"]
    assert isinstance(error, dict)
    assert error["code"] == rpc.INVALID_PARAMS
