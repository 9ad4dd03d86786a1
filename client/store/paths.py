"""Paths of settings, data and sockets, in the operating system's usual places.

``VOLUNTEER_HOME`` puts all of them below one folder, which is how several volunteers run on one
machine. The runtime folder holds sockets, whose paths may not be longer than about 100 bytes; a
deeper one is replaced by a short one in the temporary folder.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import platformdirs

from client.control.sockets import MAX_SOCKET_PATH_BYTES
from client.errors import ExitCode, UserError, system_errors

APP: Final = "volunteer"
HOME_VARIABLE: Final = "VOLUNTEER_HOME"
SYSTEM_HOME: Final = Path("/var/lib/volunteer")
"""``VOLUNTEER_HOME`` of the system service."""
SYSTEM_CONFIG_FILE: Final = Path("/etc/volunteer/config.toml")
"""The administrator's settings for every volunteer on the machine."""
SOCKET_NAME_BYTES: Final = 32
"""Bytes reserved for a socket's own name below the runtime folder."""


class Entry(StrEnum):
    """The volunteer's files and folders in its data folder: it makes no others there."""

    AMENDMENTS = "amendments"
    CAPACITY = "capacity.json"
    CHECKPOINTS = "checkpoints"
    COMPILED = "compiled"
    CONSENT = "consent.json"
    CONTRIBUTIONS = "contributions"
    CURVES = "curves"
    EVIDENCE = "evidence"
    GATHERED = "gathered"
    KEY = "identity.key"
    LAST_RUN = "last-run.json"
    LINE = "bandwidth.json"
    LOCK = "identity.lock"
    LOGS = "logs"
    PAUSED = "paused.json"
    SNAPSHOTS = "snapshots"
    SWARMS = "swarms"
    TEXTS = "texts"
    USAGE = "usage.json"
    VOUCHES = "vouches"


class Kept(StrEnum):
    """What is kept of one swarm in the data folder; the braces stand for the swarm's id."""

    AMENDMENTS = f"{Entry.AMENDMENTS}/{{}}.msgpack"
    CHECKPOINTS = f"{Entry.CHECKPOINTS}/{{}}"
    CONTRIBUTIONS = f"{Entry.CONTRIBUTIONS}/{{}}.bin"
    CURVE = f"{Entry.CURVES}/{{}}.bin"
    HELD_OUT = f"{Entry.CURVES}/{{}}-held-out.bin"
    """The losses on held-out text, by version."""
    MARKS = f"{Entry.EVIDENCE}/{{}}.marks"
    """What we have signed last."""
    PROOFS = f"{Entry.EVIDENCE}/{{}}.msgpack"
    """The expelled members, with the evidence."""
    VOUCHES = f"{Entry.VOUCHES}/{{}}.bin"
    """The signatures by which we belong to it, and the invites that we made."""
    WAYPOINTS = f"{Entry.EVIDENCE}/{{}}.waypoints"
    """The chain of certified versions."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one user, or of one ``VOLUNTEER_HOME``; they need not exist yet."""

    config: Path
    data: Path
    runtime: Path

    @property
    def config_file(self) -> Path:
        """The user's settings."""
        return self.config / "config.toml"

    @property
    def swarms(self) -> Path:
        """Remembered swarms."""
        return self.data / Entry.SWARMS

    @property
    def texts(self) -> Path:
        """Training texts."""
        return self.data / Entry.TEXTS

    @property
    def logs(self) -> Path:
        """Log files."""
        return self.data / Entry.LOGS

    def of(self, swarm: str, kept: Kept) -> Path:
        """Return the place of what is kept of one swarm."""
        return self.data / kept.format(swarm)


def find_folders(environ: Mapping[str, str] = os.environ, data: Path | None = None) -> Folders:
    """Return the folders for this environment; ``data`` overrides the data folder alone.

    Raises:
        UserError: they would be in the home folder of a user who has none.
    """
    home = environ.get(HOME_VARIABLE)
    if home:
        return home_folders(Path(os.path.expanduser(home)).absolute(), data)
    user_home()
    places = platformdirs.PlatformDirs(APP, appauthor=False)
    user_data = Path(places.user_data_dir)
    # not in the session's runtime folder, which is removed when its user logs out
    runtime = runtime_below(user_data / "sockets")
    return Folders(Path(places.user_config_dir), data or user_data, runtime)


def user_home() -> Path:
    """Return the user's home folder.

    Raises:
        UserError: the user has none, as often in containers.
    """
    home = Path(os.path.expanduser("~"))
    if home.is_absolute():
        return home
    words = f"the user with the number {os.geteuid()} has no home folder"
    next_step = f"set HOME or {HOME_VARIABLE} to a folder of its own"
    raise UserError(words, next_step, ExitCode.CONFIG)


def home_folders(home: Path, data: Path | None = None) -> Folders:
    """Return the folders below one home."""
    return Folders(home, data or home / "data", runtime_folder(home))


def runtime_folder(home: Path) -> Path:
    """Return the folder for the sockets of a home."""
    return runtime_below(home / "run")


def runtime_below(wanted: Path) -> Path:
    """Return ``wanted``, or a short folder in its place if socket paths would be too long."""
    if len(os.fsencode(wanted)) + 1 + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES:
        return wanted
    name = hashlib.blake2b(os.fsencode(wanted), digest_size=6).hexdigest()
    return Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}-{name}"


def create_folders(folder: Path) -> None:
    """Create a folder and its parents with mode 0700; existing folders stay as they are.

    ``Path.mkdir`` would create the parents with the mode of the umask.

    Raises:
        OSError: it cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)


def make_private(folder: Path, *, readable: bool = False) -> Path:
    """Create a folder with mode 0700, or check that it is ours and no other user may enter it, or
    write to it if it is ``readable`` because nothing in it is secret.

    Raises:
        UserError: it cannot be made, or cannot be trusted.
    """
    next_step = f"make it writable, or set {HOME_VARIABLE} to another folder"
    with system_errors(f"cannot use the folder {folder}", next_step, ExitCode.CONFIG):
        create_folders(folder)
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UserError(f"{folder} is not a folder that you own", "remove it", ExitCode.REFUSED)
    bits, what, mend = (0o022, "write to", "go-w") if readable else (0o077, "enter", "700")
    if status.st_mode & bits:
        words = f"other users can {what} {folder}"
        raise UserError(words, f"run: chmod {mend} {folder}", ExitCode.REFUSED)
    return folder
