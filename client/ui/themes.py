"""Two calm themes, and the colour of every tone in each."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rich.style import Style
from textual.theme import Theme

from client.views.span import TONES

DARK: Final = "volunteer-dark"
LIGHT: Final = "volunteer-light"
BOLD: Final = ("strong", "key")
"""Tones that stand out without colour, too."""
_COLOURS: Final[dict[str, str]] = {
    "plain": "foreground",
    "good": "success",
    "warn": "warning",
    "bad": "error",
    "accent": "accent",
    "second": "secondary",
    "key": "primary",
}
"""Tones with a colour that a theme has anyway; it has variables for the others."""

THEMES: Final = (
    Theme(
        name=DARK,
        dark=True,
        primary="#7aa2f7",
        secondary="#a597e0",
        accent="#6cc7d9",
        success="#7cc38d",
        warning="#e0b25f",
        error="#ee7d8b",
        foreground="#ced5e0",
        background="#11151b",
        surface="#161b23",
        panel="#222a36",
        variables={
            "tone-strong": "#f2f5fa",
            "tone-muted": "#8793a5",
            "tone-faint": "#4a5564",
            "frame": "#303b4a",
            "row": "#263141",
        },
    ),
    Theme(
        name=LIGHT,
        dark=False,
        primary="#2c5bb0",
        secondary="#6a4fb3",
        accent="#0b7285",
        success="#2a7a3f",
        warning="#8f6000",
        error="#b3261e",
        foreground="#2b3138",
        background="#fbfbf8",
        surface="#f4f4ef",
        panel="#e6e7e0",
        variables={
            "tone-strong": "#0d1117",
            "tone-muted": "#626c78",
            "tone-faint": "#b9bfc6",
            "frame": "#cfd3cc",
            "row": "#dfe5ee",
        },
    ),
)
DEFAULTS: Final = dict(THEMES[0].variables)
"""For any other theme: stylesheets need every variable."""


def prefers_light(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, ``15;0`` is dark)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


@lru_cache
def tone_styles(theme: str) -> dict[str, Style]:
    """Return the style of every tone in a theme, and ``row`` for the chosen row."""
    found = next((one for one in THEMES if one.name == theme), THEMES[0])
    colours = {tone: found.variables.get(f"tone-{tone}") for tone in TONES}
    named = {tone: getattr(found, name) for tone, name in _COLOURS.items()}
    styles: dict[str, Style] = {
        tone: Style(color=named.get(tone, colour), bold=tone in BOLD)
        for tone, colour in colours.items()
    }
    return {**styles, "row": Style(bgcolor=found.variables["row"])}
