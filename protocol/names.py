"""Names and lines of words that strangers choose: a volunteer's nickname, what a run is for.

They are shown and are never a key for anything. The rules follow the Nickname profile of RFC 8266:
NFKC, single blanks, none at the ends. A text that breaks them is not mended but dropped: two
programs with different versions of Unicode may differ about a letter, so it is no offence. What
else writes over a line is taken out of all texts where they are shown.
"""

import unicodedata
from typing import Final

MAX_NICKNAME_CHARS: Final = 24
MAX_NICKNAME_BYTES: Final = 64
MAX_PURPOSE_CHARS: Final = 160
MAX_PURPOSE_BYTES: Final = 400
BRACKETS: Final = frozenset("()[]{}<>")
"""Not in nicknames: in brackets the peer id stands beside them, and nobody writes another's."""


def nickname_problem(text: str) -> str | None:
    """Return why a text cannot be a nickname, in words for whoever chose it; None: it can."""
    if bracket := next((letter for letter in text if letter in BRACKETS), None):
        return f"it must not contain {bracket}"
    return _problem(text, MAX_NICKNAME_CHARS, MAX_NICKNAME_BYTES)


def purpose_problem(text: str) -> str | None:
    """Return why a text cannot say what a run is for; None: it can."""
    return _problem(text, MAX_PURPOSE_CHARS, MAX_PURPOSE_BYTES)


def normal(text: str) -> str:
    """Return a text of our own user as the rules want it: NFKC, single blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def shown_nickname(claimed: str) -> str:
    """Return a nickname as it may be shown; empty: there is none, or not a clean one."""
    return "" if nickname_problem(claimed) else claimed


def _problem(text: str, most: int, most_bytes: int) -> str | None:
    """Return the first rule that a text breaks; the empty text breaks none."""
    if len(text) > most:
        return f"it has {len(text)} characters, and {most} are the most"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it has characters that cannot be sent"
    if size > most_bytes:
        return f"it has {size} bytes in UTF-8, and {most_bytes} are the most"
    if hidden := next((letter for letter in text if not letter.isprintable()), None):
        return f"it has a character that cannot be shown: U+{ord(hidden):04X}"
    if text != normal(text):
        return "it has blanks at its ends or several in a row, or is not in the normal form NFKC"
    return None
