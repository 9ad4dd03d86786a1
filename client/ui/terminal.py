"""What the environment says of the terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping


def speaks_ascii_only(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the locale or the terminal is known not to show Unicode.

    Without any locale nothing is known; such terminals (containers, mostly) show UTF-8.
    """
    locale = next((environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(n)), "")
    plain = locale.lower().replace("-", "")
    return environ.get("TERM", "") in ("dumb", "vt100", "vt220") or (
        bool(locale) and ("utf8" not in plain)
    )


def prefers_light(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, ``15;0`` is dark)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
