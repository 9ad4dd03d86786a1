"""A node that a thread plays behind a control socket."""

import contextlib
import socket
import threading
from pathlib import Path

import msgspec

from client.control import rpc
from client.control.updates import Update
from tests.ui.examples import snapshot, update

HELLO = snapshot(pid=7)
MODERN: dict[str, object] = {
    "status": HELLO,
    "update": update(0),
    "history": {"points": [{"step": 1, "time": 1.0, "loss": 3.0, "tokens_per_s": 1.0}]},
    "pause": {},
    "finish": None,
}
HANGS_UP = object()
"""In place of an answer."""


class Node:
    """Plays a node: answers what it knows, and sends what a test gives it."""

    def __init__(self, path: Path, methods: dict[str, object]) -> None:
        self.path, self.methods = path, dict(methods)
        self.asked: list[tuple[str, dict[str, object]]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send a line to everybody who is connected."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.sendall(line)

    def update(self, found: Update) -> None:
        """Answer with this update from now on."""
        self.methods["update"] = found

    def drop(self) -> None:
        """End all connections."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def close(self) -> None:
        """End it all, as a node that exits does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self.drop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            for line in lines:
                request = msgspec.json.decode(line)
                method, number = request["method"], request["id"]
                self.asked.append((method, request["params"]))
                if self.methods.get(method) is HANGS_UP:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                if method in self.methods:
                    connection.sendall(rpc.encode_result(self.methods[method], number))
                else:
                    error = rpc.RpcError(rpc.METHOD_NOT_FOUND, f"no {method}", number)
                    connection.sendall(rpc.encode_error(error))
