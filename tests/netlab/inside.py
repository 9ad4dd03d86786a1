"""Work inside a host of a laboratory, in a thread that has entered its namespace."""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.netlab.internet import Internet

_CLONE_NEWNET = 0x40000000
Made = TypeVar("Made")


def inside(net: Internet, host: str, make: Callable[[], Made]) -> Made:
    """Return what a function makes in a host's namespace; a socket stays there for good."""
    made: list[Made] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            kernel = ctypes.CDLL(None, use_errno=True)
            with Path("/run/netns", net.namespace(host)).open("rb") as namespace:
                if kernel.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
