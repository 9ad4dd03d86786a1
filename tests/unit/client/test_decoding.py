"""Decoders of types that several threads use."""

import sys

from tests.support.cli_process import apart

AT_ONCE = """
import sys, threading
from typing import Annotated
import msgspec
from client.decoding import json_decoder

sys.setswitchinterval(1e-6)
for _ in range(60):
    short = Annotated[str, msgspec.Meta(max_length=9)]
    Inner = msgspec.defstruct("Inner", [("x", int), ("y", short)])
    Outer = msgspec.defstruct(
        "Outer", [("a", int), ("b", Inner), ("c", list[Inner]), ("d", dict[str, Inner])]
    )
    text = b'{"a":1,"b":{"x":1,"y":""},"c":[{"x":2,"y":""}],"d":{"e":{"x":3,"y":""}}}'
    begin, found = threading.Barrier(8), []

    def decode():
        begin.wait()
        found.append(json_decoder(Outer).decode(text))

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.d["e"].x for one in found] == [3] * 8
print("all decoded")
"""


def test_threads_that_use_a_type_for_the_first_time_at_once_all_decode_it() -> None:
    """Without the lock the process crashes, see ``client/decoding.py``."""
    done = apart(sys.executable, "-c", AT_ONCE)
    assert done.returncode == 0, done.stderr
    assert "all decoded" in done.stdout
