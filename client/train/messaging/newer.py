"""Counts members that report a newer version of this program.

Their word proves nothing, so the owner is told and nothing else follows from it.
"""

import re
from collections import Counter
from typing import Final

from protocol.ids import PeerId
from protocol.wire.messages import Hello

MAX_MEMBERS: Final = 256
_CLIENT: Final = re.compile(r"volunteer/(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
Version = tuple[int, ...]


def _version(client: str) -> Version:
    """Return the numbers of a version; none if the text has another form."""
    found = _CLIENT.fullmatch(client)
    return tuple(map(int, found.groups())) if found else ()


class NewerPrograms:
    """See the module's docstring; ``client`` and ``protocol`` are our own."""

    def __init__(self, client: str, protocol: int) -> None:
        self._ours, self._protocol = _version(client), protocol
        self._reported: dict[PeerId, str] = {}
        """By member: what is newer there."""

    def heard(self, peer: PeerId, hello: Hello) -> bool:
        """Take a member's first message; return whether it is the first to report such a thing."""
        before = self._reported.pop(peer, None)
        theirs = _version(hello.client)
        if hello.protocol > self._protocol:
            self._reported[peer] = f"protocol {hello.protocol}"
        elif self._ours and theirs > self._ours:
            self._reported[peer] = f"version {'.'.join(map(str, theirs))}"
        for oldest in list(self._reported)[:-MAX_MEMBERS]:
            del self._reported[oldest]
        return before is None and len(self._reported) == 1 and peer in self._reported

    @property
    def words(self) -> str:
        """Say how many members report what; empty: nobody reports anything newer."""
        if not self._reported:
            return ""
        what, _ = Counter(sorted(self._reported.values())).most_common(1)[0]
        count = len(self._reported)
        members = "1 member reports" if count == 1 else f"{count} members report"
        return f"{members} a newer program than this one, such as {what}"
