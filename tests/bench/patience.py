"""Large stages in this process: calls that take minutes, and the memory that they take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.compute.payload import Buffer
from client.compute.replies import Failed, Reply
from client.compute.requests import Request
from tests.support.compute_stages import LocalWorker

PATIENCE_S = 900.0


def call(worker: LocalWorker, request: Request[Any], *payloads: bytes) -> tuple[Any, list[bytes]]:
    """Call a worker and return its reply and payloads; a large stage takes minutes."""
    answered, replies = threading.Event(), list[tuple[Reply, list[bytes]]]()

    def answer(reply: Reply, sent: Sequence[Buffer]) -> None:
        replies.append((reply, [bytes(payload) for payload in sent]))
        answered.set()

    worker.executor.execute(request, payloads, answer)
    if not answered.wait(PATIENCE_S):
        raise SystemExit(f"no answer within {PATIENCE_S:.0f} s")
    reply, sent = replies[0]
    if isinstance(reply, Failed):
        raise SystemExit(reply.message)
    return reply, sent


def peak_bytes() -> int:
    """Return the most memory that this process has had; what started it does not count."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
