"""Nicknames beside peer ids, the same for every front end.

A name identifies nobody: two members may have one. So the end of the peer id always stands with it,
and what is done, found or filtered by a member goes by its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def short(peer: str) -> str:
    """Return the last six characters of a peer id, as in the log."""
    return peer[-6:]


def named(peer: str, names: Mapping[str, str]) -> str:
    """Return how a member is called in text: ``Anna (4AphPb)``, or its id alone."""
    name = names.get(peer, "")
    return f"{name} ({short(peer)})" if name else short(peer)


def with_names(words: str, members: Iterable[str], names: Mapping[str, str]) -> str:
    """Return words in which the names of the ``members`` stand before the ends of their ids."""
    ends = {short(peer): named(peer, names) for peer in members if names.get(peer)}
    if not ends:
        return words
    either = "|".join(map(re.escape, ends))
    return re.sub(rf"(?<!\w)(?:{either})(?!\w)", lambda found: ends[found[0]], words)
