"""Nicknames beside peer ids, the same for every front end.

A name identifies nobody: two members may have one. So the end of the peer id always stands with it,
and what is done, found or filtered by a member goes by its id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_SHORT = re.compile(r"(?<![0-9A-Za-z])[1-9A-HJ-NP-Za-km-z]{6}(?![0-9A-Za-z])")
_WORD = re.compile(r"[A-Z]?[a-z]+")
"""Such an id could be chosen to look like a word of ours."""

Shorts = Mapping[str, str]
"""Nicknames by the end of the peer id."""


def short(peer: str) -> str:
    """Return the last six characters of a peer id, as in the log."""
    return peer[-6:]


def named(peer: str, names: Mapping[str, str]) -> str:
    """Return how a member is called in text: ``Anna (4AphPb)``, or its id alone."""
    name = names.get(peer, "")
    return f"{name} ({short(peer)})" if name else short(peer)


def by_short(names: Mapping[str, str]) -> Shorts:
    """Return the names of members by the ends of their ids; an end that two share names nobody."""
    ends = Counter(map(short, names))
    return {short(peer): name for peer, name in names.items() if ends[short(peer)] == 1}


def with_names(words: str, names: Shorts) -> str:
    """Return words in which names stand before the ends of peer ids."""
    if not names:
        return words

    def name(found: re.Match[str]) -> str:
        known = "" if _WORD.fullmatch(found[0]) else names.get(found[0], "")
        return f"{known} ({found[0]})" if known else found[0]

    return _SHORT.sub(name, words)
