"""The wire's process, of which a laboratory has one at most."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from client.errors import UserError

DEVICE = "wire"
QUEUE = 20_000
"""Packets that wait for the wire's process at most."""
START_S = 20.0


class WireProcess:
    """Runs from its making to ``end``.

    Args:
        within: the command that runs a command in the namespace of the wire.
        delay_s: of each packet.

    Raises:
        UserError: it did not start.
    """

    def __init__(self, within: Sequence[str], delay_s: float) -> None:
        program = Path(__file__).with_name("wire.py")
        self._process = subprocess.Popen(
            [*within, sys.executable, "-I", str(program), DEVICE, str(delay_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )  # fmt: skip
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        process = self._process
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], START_S)[0]
        if not ready or process.stdout.readline().strip() != "ready":
            raise UserError("the wire did not start")

    def end(self) -> None:
        """End it and its device."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=START_S)
        self._process.kill()
        self._process.wait()
