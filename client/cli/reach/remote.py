"""A node on another machine, reached through SSH: its control socket is forwarded to one of ours.

There is no TCP port to guard: anyone who may log in there as the volunteer's owner may control it.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.control.sockets import MAX_SOCKET_PATH_BYTES, is_alive
from client.errors import ExitCode, UserError

ASK_TIMEOUT_S = 60.0
"""Seconds for logging in, where a person may have to type a password, and for a query."""
LOOK_S = 0.1
REMOTE_COMMAND = "volunteer"
CHECK = "try: ssh {host} volunteer status"


def ask_for_socket(host: str, swarm: str | None) -> str:
    """Return the path of the control socket on ``host``.

    Raises:
        UserError: SSH or the program there refuses, or no volunteer runs there.
    """
    _check_host(host)
    question = [REMOTE_COMMAND, "status", "--socket"]
    if swarm is not None:
        _check_word(swarm, "--swarm")
        question += ["--swarm", swarm]
    try:
        done = subprocess.run(
            ["ssh", "-T", "--", host, *question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise UserError("ssh is not installed here", "install OpenSSH") from error
    except subprocess.TimeoutExpired as error:
        raise _unreachable(host, "it does not answer") from error
    if done.returncode == ExitCode.NOT_RUNNING:
        raise UserError(f"no volunteer runs on {host}", "start one there", ExitCode.NOT_RUNNING)
    if done.returncode != 0:
        raise _unreachable(host, f"ssh ended with {done.returncode}")
    return done.stdout.strip()


@contextmanager
def forwarded(host: str, remote: str) -> Iterator[Path]:
    """Yield a socket here that leads to ``remote`` there, while the block runs.

    Raises:
        UserError: the connection cannot be made.
    """
    _check_host(host)
    if not remote.startswith("/") or ":" in remote or not remote.isprintable():
        raise UserError(
            f"not the path of a socket on {host}: {remote[:200]!r}", "pass its path with --socket"
        )
    with tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        local = Path(folder) / "s.sock"
        if len(str(local).encode()) > MAX_SOCKET_PATH_BYTES:
            raise UserError(f"the folder {folder} is too deep for a socket", "set TMPDIR=/tmp")
        command = ["ssh", "-N", "-T", "-o", "ExitOnForwardFailure=yes"]
        command += ["-L", f"{local}:{remote}", "--", host]
        said = Path(folder) / "said"  # not onto the screen, which is drawn meanwhile
        with said.open("wb") as stderr:
            tunnel = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)
        try:
            _wait_until_open(tunnel, local, host, said)
            yield local
        finally:
            tunnel.terminate()
            tunnel.wait()


def _wait_until_open(tunnel: subprocess.Popen[bytes], local: Path, host: str, said: Path) -> None:
    deadline = time.monotonic() + ASK_TIMEOUT_S
    while time.monotonic() < deadline:
        if tunnel.poll() is not None:
            last = said.read_text(errors="replace").strip().splitlines()[-1:]
            why = f": {last[0][:200]}" if last else ""
            raise _unreachable(host, f"ssh ended with {tunnel.returncode}{why}")
        if local.exists() and is_alive(local):
            return
        time.sleep(LOOK_S)
    raise _unreachable(host, "it does not answer")


def _unreachable(host: str, why: str) -> UserError:
    problem = f"cannot reach the volunteer on {host}: {why}"
    return UserError(problem, CHECK.format(host=host), ExitCode.UNREACHABLE)


def _check_host(host: str) -> None:
    """Refuse a text that SSH would take for an option."""
    if not host or host.startswith("-") or not host.isprintable() or " " in host:
        raise UserError(f"not a host: {host[:100]!r}", "use the form user@machine", ExitCode.USAGE)


def _check_word(word: str, flag: str) -> None:
    """Refuse a text that the remote shell would not take for one word."""
    if not word.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UserError(f"{flag} must be a plain name for another machine", "", ExitCode.USAGE)
