"""The tabs, the actions of the keys, and the keys named in the bars."""

from collections.abc import Sequence
from typing import Final

from client.ui.panes.dashboard import DashboardPane
from client.ui.panes.logs import LogsPane
from client.ui.panes.pane import Pane
from client.ui.panes.peers import PeersPane
from client.ui.panes.swarm import SwarmPane
from client.views.span import Box, Line, Span, line, line_width
from client.views.stages import LEGEND
from client.views.text import fit

TABS: Final[dict[str, type[Pane]]] = {
    "Dashboard": DashboardPane,
    "Swarm": SwarmPane,
    "Peers": PeersPane,
    "Logs": LogsPane,
}
"""A tab more is a pane with its view, and a line here."""
KEYS: Final = (
    (f"1 to {len(TABS)}", "tabs; also Tab between lists"),
    ("p", "pause or resume training on this machine"),
    ("f", "finish: drain the stages, save, leave"),
    ("i", "invite: a fresh one"),
    ("q", "close this view, training continues; so do d and Ctrl-C"),
    ("/", "filter (Peers, Logs); Esc clears it"),
    ("l", "lowest level shown (Logs)"),
    ("Enter", "details of the chosen row; arrows or j k move"),
)


def help_lines(box: Box) -> list[Line]:
    """Return all keys, and the meaning of the marks."""
    keys = [(Span(fit(key, 9), "key"), Span(said)) for key, said in KEYS]
    *marks, unit = LEGEND
    return [*keys, (), line(("marks    ", "key"), *marks), line(" " * 6, unit)]


def tab_line(chosen: type[Pane], box: Box) -> list[Line]:
    """Return the tabs, the chosen one marked also without colour."""
    items: list[Line] = []
    for number, (name, pane) in enumerate(TABS.items(), 1):
        action = f"tab({number})"
        if pane is chosen:
            items.append((Span(f"[{number} {name}]", "key", action),))
        else:
            items.append((Span(f"{number} ", "faint", action), Span(name, "muted", action)))
    return [_as_many_as_fit(items, box)]


def key_line(pane: Pane, can_resume: bool, answers: bool, box: Box) -> list[Line]:
    """Return the keys of ``pane``, the most important first.

    Args:
        pane: the tab.
        can_resume: whether its owner has paused the node.
        answers: whether it does; otherwise the keys that need it are in brackets.
        box: room.
    """
    keys = [("p", "resume" if can_resume else "pause", "pause"), ("f", "finish", "finish")]
    unable = (
        [] if answers else [(Span(f"({key} {name})", "faint", act),) for key, name, act in keys]
    )
    keys = keys if answers else []
    keys.append(("q", "close", "detach"))
    if pane.can_filter:
        keys.append(("/", "filter", "filter"))
    if isinstance(pane, LogsPane):
        keys.append(("l", "level", "level"))
    keys.append(("?", "help", "help"))
    if answers:
        keys.append(("i", "invite", "invite"))
    shown = [(Span(key, "key", act), Span(f" {name}", "muted", act)) for key, name, act in keys]
    return [_as_many_as_fit([*unable, *shown], box)]


def _as_many_as_fit(items: Sequence[Line], box: Box) -> Line:
    found: Line = ()
    for item in items:
        if line_width(found) + line_width(item) > box.width:
            break
        found += (*item, Span("  "))
    return found
