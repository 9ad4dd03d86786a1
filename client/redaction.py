"""Removes private facts from a text before it is given to strangers.

Invites and their secrets are removed, and network addresses, names of the machine and its user, the
user's folders and the beginning of peer ids. Equal addresses become
equal marks, so that a text can still be followed.
"""

import getpass
import os
import re
import socket
from contextlib import suppress
from typing import Final

_INVITE: Final = re.compile(r"volunteer:[0-9a-fA-F]{8,}[^\s\"'<>]*")
_SECRET: Final = re.compile(
    r"((?:secret|ticket|token|password|passwd|private[_-]?key|\bkey|seed|authorization)[\"']?"
    r"\s*[=:]\s*[\"']?)[^\s\"',}]+",
    re.I,
)
_IP4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_IP6: Final = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}"
    r"|(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}|(?:[0-9a-f]{1,4}:){2,7}:)(?![\w:])",
    re.I,
)
_DNS: Final = re.compile(r"(/dns(?:4|6|addr)?/)[^/\s\"']+")
_PEER: Final = re.compile(r"\b12D3KooW[1-9A-HJ-NP-Za-km-z]{20,60}\b")
_FOLDER: Final = re.compile(
    r"(?<![\w/])(?:~|/root|/(?:home|Users|mnt|media|Volumes)/[^/\s\"',:;]+)"
    r"(?P<below>/[^/\s\"',:;]+(?=/[^/\s\"',:;]))*(?P<name>/[^/\s\"',:;]+)?"
)
LOCAL: Final = frozenset({"127.0.0.1", "0.0.0.0", "::1", "::"})
"""Addresses that reveal nothing."""


class Redactor:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}
        self._names = _own_names()

    def clean(self, text: str) -> str:
        """Return the text without private facts."""
        text = _INVITE.sub("volunteer:[invite]", text)
        text = _SECRET.sub(r"\1[secret]", text)
        text = _DNS.sub(lambda found: found[1] + self._mark(found[0]), text)
        text = _IP4.sub(lambda found: self._mark(found[0]), text)
        text = _IP6.sub(lambda found: self._mark(found[0]), text)
        text = _PEER.sub(lambda found: "…" + found[0][-6:], text)
        for name, mark in self._names:
            text = name.sub(mark, text)
        return _FOLDER.sub(_own_folder, text)

    def _mark(self, address: str) -> str:
        if address in LOCAL:
            return address
        return self._marks.setdefault(address, f"[address-{len(self._marks) + 1}]")


def _own_folder(found: re.Match[str]) -> str:
    """Return a path in a user's folder without the folders between: ``~/…/name``."""
    return "~" + ("/…" if found["below"] else "") + (found["name"] or "")


def _own_names() -> list[tuple[re.Pattern[str], str]]:
    """Return the names of this machine and its user that are long enough to be names."""
    words = [(os.path.expanduser("~"), "~"), (socket.gethostname(), "[machine]")]
    with suppress(KeyError, OSError):  # a user without a name
        words.append((getpass.getuser(), "[user]"))
    return [
        (re.compile(rf"(?<!\w){re.escape(word)}(?!\w)"), mark)
        for word, mark in words
        if len(word) > 3 and word not in ("root", "/root", "localhost")
    ]
