"""Settings: the owner's limits, and every setting."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from textual.app import ComposeResult

from client.config import SETTINGS, resolve
from client.errors import ConfigError
from client.store.paths import SYSTEM_CONFIG_FILE, find_folders
from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import settings as model
from client.views.record import Record
from client.views.settings import Setting
from client.views.span import Box, Line, Row


class SettingsPane(Pane):
    """Limits with their use, then all settings; a row opens the way to change it."""

    can_filter = True
    has_numbers = False

    def __init__(self, record: Record, load: Callable[[], Sequence[Setting]], *, id: str) -> None:
        super().__init__(record, id=id)
        self._load = load
        self.settings: Sequence[Setting] = ()

    def compose(self) -> ComposeResult:
        """Place both."""
        yield Panel("What the volunteer may use", partial(model.limits, self.record), id="limits")
        title = "Settings of this machine; Enter says how to change one"
        yield Listing(title, self._table, id="setting-table")

    def setting(self, name: str) -> Setting | None:
        """Return the setting of this name."""
        return next((one for one in self.settings if one.name == name), None)

    def show(self) -> None:
        """Read the settings when they are first looked at."""
        if not self.settings:
            self.settings = self._load()
        super().show()

    def _table(self, box: Box) -> tuple[Line, list[Row]]:
        return model.settings_table(self.settings, box, self.filter_text)


def local_settings() -> Sequence[Setting]:
    """Return every setting as a volunteer started now would use it.

    A fault in a file is shown in place of the settings.
    """
    try:
        resolved = resolve({}, os.environ, None, find_folders().config_file, SYSTEM_CONFIG_FILE)
    except ConfigError as error:
        return [Setting("(cannot be read)", error.message, error.next_step)]
    values = msgspec.to_builtins(resolved.settings)
    home = os.path.expanduser("~")
    return [
        Setting(
            name,
            declared.words(values[name]),
            resolved.origins[name].replace(home, "~"),
        )
        for name, declared in SETTINGS.items()
    ]
