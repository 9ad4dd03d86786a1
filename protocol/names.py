"""Names and lines of words that strangers choose: a volunteer's nickname, what a run is for.

They are shown and are never a key for anything. The rules follow the Nickname profile of RFC 8266:
NFKC, single blanks, none at the ends. They are stricter about what takes no room or hides in a
terminal. A text that breaks them is not mended but dropped: two programs with different versions of
Unicode may differ about a letter, so it is no offence.
"""

import unicodedata
from typing import Final

MAX_NICKNAME_CHARS: Final = 24
MAX_NICKNAME_BYTES: Final = 64
MAX_PURPOSE_CHARS: Final = 160
MAX_PURPOSE_BYTES: Final = 400
MAX_MARKS: Final = 2
"""Combining marks on one letter; more only serve to write over other lines."""
BRACKETS: Final = frozenset("()[]{}<>")
"""Not in nicknames: in brackets the peer id stands beside them, and nobody writes another's."""
INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and symbols that show nothing; other invisible ones have a category of their
own."""


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
    if hidden := next(filter(_hides, text), None):
        return f"it has a character that cannot be shown: U+{ord(hidden):04X}"
    if text != normal(text):
        return "it has blanks at its ends or several in a row, or is not in the normal form NFKC"
    return _mark_problem(text)


def _hides(letter: str) -> bool:
    """Whether a character controls, formats, is invisible or unknown; all blanks but the plain one
    break the normal form."""
    category = unicodedata.category(letter)
    selector = "\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef"
    selector |= "\u180b" <= letter <= "\u180f"
    return category[0] == "C" or category in ("Zl", "Zp") or selector or letter in INVISIBLE


def _mark_problem(text: str) -> str | None:
    marks = 0
    for place, letter in enumerate(text):
        marks = marks + 1 if unicodedata.category(letter)[0] == "M" else 0
        if marks and (place == 0 or text[place - 1] == " "):
            return "a mark stands alone in it"
        if marks > MAX_MARKS:
            return f"a letter in it has more than {MAX_MARKS} marks"
    return None
