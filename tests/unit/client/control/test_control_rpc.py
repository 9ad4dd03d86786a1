"""Requests as a table: what goes in, which error or result comes out."""

import inspect
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.control import methods, rpc
from client.control.client import ControlClient
from client.control.contributors import MAX_SHOWN, contributors_view
from client.control.methods import answer
from client.views.words import named, with_names
from tests.support.control_fakes import FakeProvider
from tests.support.matching_examples import manifest, peer

REFUSED = [
    (b"{", rpc.PARSE_ERROR),
    (b"\xff\xfe", rpc.PARSE_ERROR),
    (b'{"jsonrpc": ' + b"[" * 60_000, rpc.INVALID_REQUEST),
    (b'{"jsonrpc": "2.0", "method": "status", "params": ' + b"[" * 60_000, rpc.INVALID_REQUEST),
    (b"[]", rpc.INVALID_REQUEST),
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
    (b'{"jsonrpc": "2.0", "id": 1, "method": "expel"}', rpc.INVALID_PARAMS),
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


def test_a_failing_provider_is_an_internal_error() -> None:
    provider = FakeProvider()
    provider.failure = RuntimeError("boom")
    error = _call("status", provider)["error"]
    assert error["code"] == rpc.INTERNAL_ERROR
    assert "boom" in error["message"]


def test_the_document_lists_every_method() -> None:
    page = (Path(methods.__file__).parent / "README.md").read_text()
    table = page.split("## Methods")[1].split("## Bounds")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    parameters = {row[0].strip("`"): row[1] for row in rows}
    assert parameters.keys() == methods.METHODS.keys()
    for name, of in methods.METHODS.items():
        assert all(one in parameters[name] for one in of.params.__struct_fields__), name


def test_a_client_has_every_method_of_the_node_with_its_parameters() -> None:
    for name in methods.METHODS:
        called, declared = getattr(ControlClient, name), getattr(methods.ControlApi, name)
        assert called is not declared
        assert inspect.signature(called) == inspect.signature(declared)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("update", {"since": -1}),
        ("update", {"since": 1e300}),
        ("history", {"points": 0}),
        ("history", {"points": 501}),
        ("pause", {"until": -1}),
        ("pause", {"reason": "x" * 300}),
        ("pause", {"for": "2h"}),
        ("resume", {"now": True}),
    ],
)
def test_parameters_are_bounded(method: str, params: dict[str, object]) -> None:
    error = _call(method, **params)["error"]
    assert error["code"] == rpc.INVALID_PARAMS


# --- names beside ids ------------------------------------------------------------------------

ANNA, OTHER, WORDY = (f"12D3KooWexample{end}" for end in ("4AphPb", "9CqrSt", "stages"))
NAMES = {ANNA: "Anna's PC", OTHER: "Anna's PC"}


def test_two_members_with_one_name_are_told_apart_by_their_ids() -> None:
    assert named(ANNA, NAMES) == "Anna's PC (4AphPb)"
    assert named(OTHER, NAMES) == "Anna's PC (9CqrSt)"
    assert named(WORDY, NAMES) == "stages"


def test_words_about_members_get_their_names_beside_the_ends_of_their_ids() -> None:
    words = "4AphPb is down; 9CqrSt took over, x4AphPb and 4AphPbx not"
    assert with_names(words, (ANNA, OTHER), NAMES) == (
        "Anna's PC (4AphPb) is down; Anna's PC (9CqrSt) took over, x4AphPb and 4AphPbx not"
    )
    assert with_names("4AphPb is down", (ANNA,), {}) == "4AphPb is down"


def test_an_id_that_looks_like_a_word_renames_no_word_of_an_event_about_others() -> None:
    assert with_names("all stages", (ANNA,), {WORDY: "Evil", ANNA: "Anna"}) == "all stages"


def test_the_board_shows_the_most_work_first_and_shares_of_all_of_it() -> None:
    run = manifest(2)
    counts = {peer(n): 1 for n in reversed(range(MAX_SHOWN + 19))} | {peer(500): 881}
    board = contributors_view(counts, lambda who: "Boris" if who == peer(500) else "", run)
    assert len(board) == MAX_SHOWN
    assert (board[0].peer, board[0].name, board[0].share) == (peer(500), "Boris", 0.881)
    assert board[0].tokens == 881 * run.tokens_per_microbatch
    assert [one.peer for one in board[1:]] == sorted(counts.keys() - {peer(500)})[: MAX_SHOWN - 1]
    assert contributors_view({peer(0): 0}, str, run)[0].share == 0
