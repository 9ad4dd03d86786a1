"""The application: puts tabs, bars and dialogs together, and hands keys to the source.

Takes news four times a second at most and draws only the visible parts; it never waits.
"""

import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, NoColor
from textual.notifications import SeverityLevel
from textual.widgets import ContentSwitcher, Input

from client.control.updates import Curve, Update
from client.ui import themes
from client.ui.dialogs.dialog import PAGE_LINES, Dialog, Page
from client.ui.dialogs.finish import FinishDialog
from client.ui.dialogs.invite import InviteDialog
from client.ui.header import header
from client.ui.keys import TABS, help_lines, key_line, tab_line
from client.ui.leaving import farewell, finishing, gone
from client.ui.panes.logs import LogsPane
from client.ui.panes.pane import Pane
from client.ui.source.live import NOT_DONE, LiveSource
from client.ui.source.news import Answer, Link, News
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views.record import Record
from client.views.span import Box, Line, line
from client.views.text import clean, wrap

LOOK_S = 0.25
DRAW_SHARE = 0.025
"""Share of a core for making views; a large swarm is drawn less often."""
MAX_REST_S = 2.0
LEAST_WIDTH = 60
LEAST_HEIGHT = 18


class VolunteerApp(App[int]):
    """One view of one node."""

    TITLE = "volunteer"
    CSS = """
    #header { border: none; padding: 0; height: 4; background: $surface; }
    .-gone #header { height: 2; }
    .-gone Pane Toned { text-opacity: 60%; }
    .-gone LogsPane Toned { text-opacity: 100%; }
    #gone, #small { display: none; }
    .-tiny #body, .-flat #body { display: none; }
    .-tiny #small, .-flat #small { display: block; height: 1fr; border: none; }
    .-gone #gone { display: block; }
    #tabs, #keys { height: 1; border: none; padding: 0 1; }
    #keys { background: $surface; }
    #body { height: 1fr; background: $background; }
    #filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    Pane { height: 1fr; }
    Toned { background: $background; }

    #above { height: 1fr; min-height: 8; }
    #left { width: 1fr; }
    #right { width: 44%; }
    #loss, #near { height: 1fr; }
    #network { height: 1fr; }
    .-tall #network, .-grand #network { height: 9; }
    #near { display: none; }
    .-tall #near, .-grand #near { display: block; }
    #events { height: 8; }
    .-grand #events { height: 12; }
    #stages-below { display: none; }
    .-narrow #right { width: 36; }
    .-narrow #stages-left, .-low #stages-left { display: none; }
    .-narrow #stages-below, .-low #stages-below { display: block; }
    .-narrow #near, .-low #network { display: none; }
    .-narrow #machine { height: 1fr; }
    .-low #events { height: 4; }
    .-gone .-low #above { min-height: 5; }
    .-gone .-low #events { height: 3; }

    #swarm-head { height: 7; }
    #stage-table { height: 1fr; }
    #legend { height: 1; border: none; padding: 0 2; }
    #peer-table { height: 1fr; }

    Toast { background: $panel; color: $foreground; }
    """
    """The visible panels and their places, by the size of the terminal."""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (LEAST_WIDTH, "-narrow"),
        (110, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-flat"),
        (LEAST_HEIGHT, "-low"),
        (36, "-high"),
        (42, "-tall"),
        (48, "-grand"),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"tab({n})", name, show=False) for n, name in enumerate(TABS, 1)),
        Binding("p", "pause", "Pause or resume", show=False),
        Binding("f", "finish", "Finish", show=False),
        Binding("i", "invite", "Invite", show=False),
        Binding("q,d,ctrl+q,ctrl+c", "detach", "Close", show=False, priority=False),
        Binding("slash", "filter", "Filter", show=False),
        Binding("l", "level", "Level", show=False),
        Binding("question_mark", "help", "Help", show=False),
        Binding("escape", "clear", "Clear", show=False),
    ]

    def __init__(
        self,
        source: LiveSource,
        *,
        light: bool | None = None,
    ) -> None:
        super().__init__()
        self._source = source
        self._light = themes.prefers_light() if light is None else light
        self.record = Record()
        self.link = Link("connecting")
        self.draw_share = DRAW_SHARE
        self._draw_due, self._drawn = 0.0, True
        self.leaving = False
        """Whether the node was told to leave from here."""
        self.farewell = ""
        """What is said in the terminal afterwards."""

    # --- building --------------------------------------------------------------------------------

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the variables that every theme has to have."""
        return themes.DEFAULTS

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of every line before it is written."""
        return [*super().get_line_filters(), *([NoColor()] if self.no_color else [])]

    def compose(self) -> ComposeResult:
        """Place the bars and the tabs."""
        yield Panel("", lambda box: header(self.record, self.link, box), id="header")
        yield Panel("", lambda box: gone(self.record, self.link, box), id="gone")
        yield Panel("", lambda box: tab_line(type(self.pane), box), id="tabs")
        with ContentSwitcher(id="body", initial="dashboard"):
            for name, pane in TABS.items():
                yield pane(self.record, id=name.lower())
        yield Panel("", self._small, id="small")
        yield Input(placeholder="text to look for; Enter keeps it, Esc clears it", id="filter")
        yield Panel("", self._keys, id="keys")

    def on_mount(self) -> None:
        """Choose colours and start the source."""
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.theme = themes.LIGHT if self._light else themes.DARK
        self._source.start()
        self.set_interval(LOOK_S, self.look)
        self._draw()

    def on_unmount(self) -> None:
        """Close the source."""
        self._source.stop()

    # --- updates ------------------------------------------------------------------------------

    def look(self) -> None:
        """Take the news and draw the visible parts."""
        while not self._source.news.empty():
            self._learn(self._source.news.get())
        if not self._drawn and time.monotonic() >= self._draw_due:
            self._draw()

    def _learn(self, news: News) -> None:
        self._drawn = False
        match news:
            case Link():
                self.link = news
                if self.leaving and news.state == "ended":
                    self.farewell = "the volunteer has left the swarm"
                    self.exit(0)
            case Curve():
                self.record.learn_curve(news.points, news.held_out)
            case Update():
                self.record.apply(news)
            case Answer():
                self._tell(news)

    @property
    def pane(self) -> Pane:
        """The visible tab."""
        current = self.query_one("#body", ContentSwitcher).current
        return self.query_one(f"#{current}", Pane)

    def _draw(self) -> None:
        began = time.thread_time()
        self._show_whether_it_is_gone()
        self.query_one("#header", Panel).show()
        self.query_one("#tabs", Panel).show()
        self.query_one("#keys", Panel).show()
        self.pane.show()
        if isinstance(self.screen, Dialog):
            self.screen.show()
        rest_s = min((time.thread_time() - began) / self.draw_share, MAX_REST_S)
        self._draw_due, self._drawn = time.monotonic() + rest_s, True

    def _show_whether_it_is_gone(self) -> None:
        self.set_class(self.link.gone, "-gone")
        panel = self.query_one("#gone", Panel)
        panel.styles.height = (
            len(gone(self.record, self.link, Box(max(1, self.size.width - 4)))) + 2
        )
        panel.show()

    def _keys(self, box: Box) -> list[Line]:
        return key_line(self.pane, self._can_resume(), self.link.state == "live", box)

    def _small(self, box: Box) -> list[Line]:
        """Say what size a terminal needs in which the tabs cannot be shown."""
        size = f"This terminal has {self.size.width} columns and {self.size.height} lines."
        needs = f"The tabs need {LEAST_WIDTH} and {LEAST_HEIGHT}; volunteer status needs fewer."
        return [line((part, "warn")) for part in wrap(f"{size} {needs}", box.width)]

    def _answers(self) -> bool:
        """Whether a node can carry out a key's command; otherwise the user is told."""
        if self.link.state != "live":
            self.notify(NOT_DONE, severity="warning", markup=False)
            return False
        return True

    def _tell(self, answer: Answer) -> None:
        if answer.invite is not None:
            self.push_screen(InviteDialog(answer.invite))
            return
        self.leaving &= answer.ok or answer.method != "finish"
        severity: SeverityLevel = "information" if answer.ok else "error"
        self.notify(clean(answer.words, 200), severity=severity, markup=False)

    # --- keys ------------------------------------------------------------------------------------

    def action_tab(self, number: int) -> None:
        """Show a tab."""
        self.query_one("#body", ContentSwitcher).current = [*TABS][number - 1].lower()
        self._hide_filter()
        self.call_after_refresh(self._arrived)

    def _arrived(self) -> None:
        self._draw()
        if not self.query_one("#filter", Input).display:  # it may have been opened meanwhile
            self.pane.take_focus()

    def _can_resume(self) -> bool:
        """Whether the owner has paused it; a limit's pause ends with its cause alone."""
        now = self.record.snapshot
        return now is not None and now.paused is not None and now.paused.by_owner

    def action_pause(self) -> None:
        """Pause or resume."""
        if not self._answers():
            return
        if self._can_resume():
            self._source.command("resume")
        else:
            self._source.command("pause", reason="you paused it")

    def action_finish(self) -> None:
        """Drain the stages, after the user has seen the costs."""
        if self._answers():
            self.push_screen(FinishDialog(lambda: finishing(self.record, self.link)), self._finish)

    def _finish(self, agreed: bool | None) -> None:
        if agreed:
            self.leaving = True
            self._source.command("finish")

    def action_invite(self) -> None:
        """Ask the node for a fresh invite; a dialog shows it when it arrives."""
        if self._answers():
            self._source.command("invite")

    def action_detach(self) -> None:
        """Close this view."""
        self.farewell = farewell(self.record, self.link, self.leaving)
        self.exit(0)

    def action_filter(self) -> None:
        """Open the filter of this tab."""
        if not self.pane.can_filter:
            self.notify("this tab has no filter", markup=False)
            return
        field = self.query_one("#filter", Input)
        field.value = self.pane.filter_text
        field.display = True
        self.screen.set_focus(field)  # at once: keys that come next are its own, and not commands

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.pane.filter_by(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go back to the list."""
        self._hide_filter()
        self.pane.take_focus()

    def action_clear(self) -> None:
        """Clear the filter of this tab."""
        self.pane.filter_by("")
        self._hide_filter()
        self.pane.take_focus()

    def _hide_filter(self) -> None:
        self.query_one("#filter", Input).display = False

    def action_level(self) -> None:
        """Show other levels."""
        if isinstance(self.pane, LogsPane):
            self.pane.next_level()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Page("Help", help_lines))

    def on_listing_opened(self, event: Listing.Opened) -> None:
        """Open a row."""
        found = self.pane.detail(event.key)
        if found is not None:
            self.push_screen(Page(*found, PAGE_LINES))


def run(source: LiveSource) -> int:
    """Show a source until the user leaves; return the exit code of the command."""
    app = VolunteerApp(source)
    code = app.run()
    if app.farewell:
        print(f"volunteer: {app.farewell}", file=sys.stderr)
    return code or app.return_code or 0
