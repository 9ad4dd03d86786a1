"""A process that behaves like ``volunteer join --headless`` to whoever watches it from outside.

``FAKE_MODE``: ``stubborn`` ignores SIGTERM, ``failing`` ends at once. It starts a child of its own,
as a node starts its worker.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

from client.control.server import serve_control
from client.control.sockets import socket_path
from client.store.paths import make_private, runtime_folder
from tests.support.control_fakes import FakeProvider


async def _serve(home: Path) -> None:
    path = socket_path(make_private(runtime_folder(home)), "ab" * 32, f"peer of {home.name}")
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with serve_control(path, FakeProvider()):
            async for _ in signals:
                if os.environ.get("FAKE_MODE") != "stubborn":
                    return


def main() -> None:
    if os.environ.get("FAKE_MODE") == "failing":
        sys.exit("the fake volunteer fails as told")
    home = Path(os.environ["VOLUNTEER_HOME"])
    worker = subprocess.Popen(["sleep", "1000"])
    (home / "worker.pid").write_text(str(worker.pid))
    trio.run(_serve, home)
    worker.kill()


if __name__ == "__main__":
    main()
