"""The tabs, and which keys the bars name."""

from __future__ import annotations

from typing import Final

from client.ui.model.span import Span, line
from client.ui.panes.logs import LogsPane
from client.ui.panes.pane import Pane
from client.ui.widgets.strips import Item

TABS: Final = (
    ("dashboard", "Dashboard"),
    ("swarm", "Swarm"),
    ("peers", "Peers"),
    ("matching", "Matching"),
    ("recovery", "Recovery"),
    ("logs", "Logs"),
    ("settings", "Settings"),
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


def key_items(pane: Pane, live: bool, paused: bool) -> list[Item]:
    """Return the keys that do something now, the most wanted first."""
    keys = []
    if live:
        keys += [("p", "resume" if paused else "pause", "pause"), ("f", "finish", "finish")]
    else:
        keys += [("space", "hold", "play('hold')"), ("+ -", "speed", "play('faster')")]
    keys += [("d", "detach" if live else "close", "detach"), ("q", "quit", "go")]
    if pane.can_filter:
        keys.append(("/", "filter", "filter"))
    if pane.can_sort:
        keys.append(("s", "sort", "sort"))
    if isinstance(pane, LogsPane):
        keys.append(("l", "level", "level"))
    keys += [
        ("x", "copy report", "copy"),
        ("?", "help", "help"),
        ("^p", "commands", "command_palette"),
    ]
    return [
        Item((Span(key, "key"), Span(f" {name}", "muted")), action) for key, name, action in keys
    ]
