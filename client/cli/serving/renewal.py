"""Takes limits from the configuration files again when these change under a running node.

A setting that came from a flag or a variable stays: it was chosen for this start.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from client.config import LIVE, Resolved, Settings, resolve
from client.errors import ConfigError


class Renewal:
    """Returns settings with the limits that the files say now.

    Args:
        resolved: the settings of the start, and the origin of each.
        user_file: of the owner's settings; it need not exist.
        system_file: of the administrator's.
        tell: told once why files cannot be used.
    """

    def __init__(
        self,
        resolved: Resolved,
        user_file: Path,
        system_file: Path,
        tell: Callable[[str], None],
    ) -> None:
        files = {str(user_file), str(system_file), "default"}
        self._names = [name for name in LIVE if resolved.origins[name] in files]
        self._user_file, self._system_file, self._tell = user_file, system_file, tell
        self._fault, self._unknown = "", resolved.unknown

    def __call__(self, settings: Settings) -> Settings:
        """Return ``settings`` with what the files say now."""
        fault = ""
        try:
            found = resolve({}, {}, self._user_file, self._system_file)
            fault = "; ".join(words for words in found.unknown if words not in self._unknown)
        except ConfigError as error:
            fault = f"{error}: {error.next_step}"
        if fault:
            if fault != self._fault:
                self._tell(f"{fault}; the limits stay as they were")
            self._fault = fault
            return settings
        self._fault = ""
        return msgspec.structs.replace(
            settings, **{name: getattr(found.settings, name) for name in self._names}
        )
