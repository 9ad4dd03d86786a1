"""Detects whether somebody uses this machine, by the X11 server, by logind or by macOS's devices.

Each is queried by a system program (``xprintidle``, ``loginctl``, ``ioreg``). An output that cannot
be parsed counts as no answer.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import trio

ASK_S = 3.0
"""Timeout of a program; after it there is no answer."""
MAX_ANSWER_BYTES = 65_536
LOGIND = ("loginctl", "show-session", "--property=IdleHint", "--property=IdleSinceHint")
"""Without a session it describes the whole machine: idle when every session is."""
X11 = ("xprintidle",)
IOREG = ("ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")
"""The keyboard and pointer of macOS, ``HIDIdleTime`` among their properties."""

_HINT = re.compile(r"^IdleHint=(yes|no)$", re.M)
_SINCE = re.compile(r"^IdleSinceHint=([0-9]{1,19})$", re.M)
_NANOSECONDS = re.compile(r'"HIDIdleTime" = ([0-9]{1,19})')
_MILLISECONDS = re.compile(r"\s*([0-9]{1,15})\s*", re.A)

Run = Callable[[Sequence[str]], str | None]
"""Runs a program; its output, or None."""


def parse_logind(answer: str, now: float) -> float | None:
    """Return for how many seconds every session has been idle; 0: a session is in use.

    ``now`` is Unix seconds. None: not an answer of logind. A machine without sessions counts as
    idle since 1970.
    """
    hint, since = _HINT.search(answer), _SINCE.search(answer)
    if hint is None:
        return None
    if hint[1] == "no":
        return 0.0
    began = int(since[1]) / 1e6 if since else 0.0
    return max(0.0, now - began)


def parse_xprintidle(answer: str) -> float | None:
    """Return the seconds since the last input; None: not an answer of xprintidle."""
    match = _MILLISECONDS.fullmatch(answer)
    return int(match[1]) / 1000 if match else None


def parse_ioreg(answer: str) -> float | None:
    """Return the seconds since the last input; None: not an answer of macOS's ioreg."""
    match = _NANOSECONDS.search(answer)
    return int(match[1]) / 1e9 if match else None


def look(
    after_s: float,
    run: Run,
    environ: Mapping[str, str] = os.environ,
    now: float | None = None,
    platform: str = sys.platform,
) -> bool | str:
    """Return whether the machine is idle, by the first source that answers, or why that is not
    known; blocks for at most a few seconds.

    On X11 the server is the better source, because not every desktop informs logind. On Wayland it
    sees no input.

    Args:
        after_s: seconds without input after which the machine counts as idle.
        run: runs a program and returns its output.
        environ: environment variables.
        now: Unix seconds; None: the present time.
        platform: as ``sys.platform``.
    """
    if platform == "darwin":
        since = parse_ioreg(run(IOREG) or "")
        words = "ioreg does not tell when this Mac was last used"
        return words if since is None else since >= after_s
    found: float | None = None
    if environ.get("DISPLAY") and not environ.get("WAYLAND_DISPLAY"):
        found = parse_xprintidle(run(X11) or "")
    if found is None:
        found = parse_logind(run(LOGIND) or "", time.time() if now is None else now)
    if found is None:
        return "neither logind nor xprintidle answers here"
    return found >= after_s


async def find_idleness(after_s: float) -> bool | str:
    """As ``look``, in a thread."""
    return await trio.to_thread.run_sync(look, after_s, ask)


def ask(command: Sequence[str]) -> str | None:
    """Run a system program and return its output; None if it is missing, fails or times out."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return None
    return done.stdout[:MAX_ANSWER_BYTES].decode(errors="replace")
