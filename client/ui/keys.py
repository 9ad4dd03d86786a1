"""The tabs, the actions of the keys, and the keys named in the bars."""

from __future__ import annotations

from typing import Final

from client.ui.panes.logs import LogsPane
from client.ui.panes.pane import Pane
from client.ui.widgets.strips import Item
from client.views.span import Span, line

TABS: Final = (
    ("dashboard", "Dashboard"),
    ("swarm", "Swarm"),
    ("peers", "Peers"),
    ("matching", "Matching"),
    ("recovery", "Recovery"),
    ("logs", "Logs"),
    ("settings", "Settings"),
)
KEYS: Final = (
    ("1 to 7", "tabs; also Tab between lists"),
    ("p", "pause or resume training on this machine"),
    ("f", "finish: drain the stages, save, leave"),
    ("i", "invite: a fresh one, with its QR code"),
    ("d", "detach: close this view, training continues"),
    ("q", "quit: detach, finish or stop, with the cost of each"),
    ("/", "filter (Peers, Logs, Settings); Esc clears it"),
    ("s", "sort order (Peers), reverse (Logs)"),
    ("l", "lowest level shown (Logs)"),
    ("v", "who contributed (Peers), the numbers behind it (Matching)"),
    ("Enter", "details of the chosen row; arrows or j k move"),
    ("x", "copy diagnostics, without addresses and secrets"),
    ("Ctrl+P", "commands by name, light and dark colours"),
)


def tab_items(chosen: int) -> list[Item]:
    """Return the tabs, the chosen one marked also without colour."""
    items = []
    for number, (_, name) in enumerate(TABS, 1):
        if number == chosen:
            spans = line((f"[{number} {name}]", "key"))
        else:
            spans = (Span(f"{number} ", "faint"), Span(name, "muted"))
        items.append(Item(spans, f"tab({number})"))
    return items


def key_items(pane: Pane, paused: bool, *, answers: bool = True) -> list[Item]:
    """Return the keys of ``pane``, the most important first.

    Keys that need a node are in brackets and do nothing unless it ``answers``. ``paused``: the node
    is paused.
    """
    keys, unable = list[tuple[str, str, str]](), list[Item]()
    if answers:
        keys += [("p", "resume" if paused else "pause", "pause"), ("f", "finish", "finish")]
    else:
        unable = [_unable("p", "pause", "pause"), _unable("f", "finish", "finish")]
    keys += [("d", "detach" if answers else "close", "detach"), ("q", "quit", "go")]
    if pane.can_filter:
        keys.append(("/", "filter", "filter"))
    if pane.can_sort:
        keys.append(("s", "sort", "sort"))
    if pane.other_view:
        keys.append(("v", pane.other_view, "view"))
    if isinstance(pane, LogsPane):
        keys.append(("l", "level", "level"))
    keys += [("?", "help", "help"), ("x", "copy", "copy")]
    if answers:
        keys.append(("i", "invite", "invite"))
    keys.append(("^p", "commands", "command_palette"))
    shown = [
        Item((Span(key, "key"), Span(f" {name}", "muted")), action) for key, name, action in keys
    ]
    return unable + shown


def _unable(key: str, name: str, action: str) -> Item:
    return Item((Span(f"({key} {name})", "faint"),), action)
