"""The settings of this machine as the Settings tab shows them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from client.config import SETTINGS, resolve
from client.errors import ConfigError
from client.store.paths import find_folders
from client.ui.model.settings import Setting


def local_settings() -> Sequence[Setting]:
    """Return every setting as a volunteer that is started now would have it.

    A fault in the user's file is shown in place of the settings.
    """
    try:
        resolved = resolve({}, os.environ, None, find_folders().config_file)
    except ConfigError as error:
        return [Setting("(cannot be read)", error.message, error.next_step)]
    values = msgspec.to_builtins(resolved.settings)
    home = os.path.expanduser("~")
    return [
        Setting(
            name,
            declared.words(values[name]),
            resolved.origins[name].replace(home, "~"),
            empty=values[name] in ("", [], ()) or bool(declared.zero_words(values[name])),
        )
        for name, declared in SETTINGS.items()
    ]
