"""The wire's process, of which a laboratory has one at most."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from client.errors import UserError

DEVICE = "wire"
QUEUE = 20_000
"""Packets that wait for the wire's process at most."""
EVERYBODY = "*"
"""Stands for all pairs that are not named."""
START_S = 20.0
Shape = tuple[float, float, float]
"""Delay in seconds, jitter in seconds, share lost; each way."""


class WireProcess:
    """Runs from its making to ``end``.

    Args:
        within: the command that runs a command in the namespace of the wire.
        far: what happens to packets, by "ADDRESS ADDRESS" or `EVERYBODY`.

    Raises:
        UserError: it did not start.
    """

    def __init__(self, within: Sequence[str], far: Mapping[str, Shape]) -> None:
        program = Path(__file__).with_name("wire.py")
        self._process = subprocess.Popen(
            [*within, sys.executable, "-I", str(program), DEVICE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )  # fmt: skip
        try:
            self._start(far)
        except BaseException:
            self.end()
            raise

    def _start(self, far: Mapping[str, Shape]) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(dict(far)) + "\n")
        process.stdin.flush()
        ready = select.select([process.stdout], [], [], START_S)[0]
        if not ready or process.stdout.readline().strip() != "ready":
            raise UserError("the wire did not start")

    def end(self) -> dict[str, int]:
        """End it and its device; return what it did, as far as it said so."""
        try:
            said = self._process.communicate(timeout=START_S)[0]
            counts: dict[str, int] = json.loads(said) if said.startswith("{") else {}
            return counts
        except subprocess.TimeoutExpired:
            return {}
        finally:
            self._process.kill()
            self._process.wait()
