"""A volunteer that measures what its signatures cost: used by ``tests.bench.evidence``.

    EVIDENCE_COST=FILE python -m tests.bench.evidence_node PROGRAM... join ...

Once a second it appends a line to the file: the CPU seconds of the node's process, those spent on
signing and on verifying (hashes and the file of marks included), and how often.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import protocol.wire.envelope as envelope

COST = "EVIDENCE_COST"
EVERY_S = 1.0

spent, times = Counter[str](), Counter[str]()
_depth = 0


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Count a call and the CPU time of its thread; one within another is part of it."""

    @wraps(call)
    def measured(*arguments: Any, **keywords: Any) -> Any:
        global _depth
        times[name] += 1
        if _depth:
            return call(*arguments, **keywords)
        _depth, began = 1, time.thread_time()
        try:
            return call(*arguments, **keywords)
        finally:
            _depth = 0
            spent[name] += time.thread_time() - began  # type: ignore[assignment]

    return measured


def main() -> None:
    """Patch before anything imports the functions by name; then be a volunteer."""
    envelope.verify = timed("verify", envelope.verify)
    envelope.Signer.sign = timed("sign", envelope.Signer.sign)  # type: ignore[method-assign]
    from client.cli.main import main as volunteer
    from client.train.swarm.notary import Notary
    from protocol.evidence.heard import Heard
    from protocol.waypoints.machine import Waypoints

    Notary.signed = timed("states", Notary.signed)  # type: ignore[method-assign]
    for name in ("closed", "update", "receive", "link_up", "link"):
        call = getattr(Waypoints, name)
        setattr(Waypoints, name, timed("waypoints", call))
    Heard.take = timed("hears", Heard.take)  # type: ignore[method-assign]
    Heard.passed_on = timed("compares", Heard.passed_on)  # type: ignore[method-assign]
    threading.Thread(target=_write, args=(Path(os.environ[COST]),), daemon=True).start()
    sys.argv[: sys.argv.index("join")] = ["volunteer"]
    raise SystemExit(volunteer())


def _write(path: Path) -> None:
    while True:
        time.sleep(EVERY_S)
        line = {"at": time.monotonic(), "cpu": time.process_time(), "spent": spent, "times": times}
        with path.open("a") as file:
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
