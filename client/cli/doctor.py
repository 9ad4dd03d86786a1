"""``volunteer doctor``: can this machine take part, and if not, what is to be done."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from client.cli import checks
from client.cli.checks import Check
from client.cli.home import Home, find_home
from client.cli.limit_checks import examine_limits
from client.cli.output import print_json
from client.errors import ExitCode
from client.store.identity import KEY_FILE

PACKAGES = ("libp2p", "torch", "trio", "msgspec", "pynacl", "safetensors", "psutil")
HEAVY = ("torch", "libp2p")


class Diagnosis(Struct, frozen=True):
    """Answer of ``volunteer doctor --json``."""

    ok: bool
    checks: list[Check]
    schema_version: int = 1


def doctor(*, json: bool = False) -> int:
    """Check that this machine can take part, and say what to mend.

    Parameters
    ----------
    json
        Print JSON.
    """
    found = []
    for check in examine(find_home()):
        found.append(check)
        if not json:
            print(f"{check.status:<5}{check.name}: {check.words}", flush=True)
            if check.next_step:
                print(f"     -> {check.next_step}")
    well = all(check.status != "fail" for check in found)
    if json:
        print_json(Diagnosis(well, found))
    return ExitCode.OK if well else ExitCode.RUNTIME


def examine(home: Home) -> Iterator[Check]:
    """Yield the outcome of every check, quick ones first."""
    yield checks.check_python()
    yield from map(checks.check_package, PACKAGES)
    yield checks.check_folder("data folder", home.folders.data)
    yield checks.check_identity(home.folders.data / KEY_FILE)
    yield checks.check_runtime_folder(home.folders.runtime)
    yield checks.check_port(home.settings.listen_host, home.settings.listen_port)
    yield checks.check_memory()
    yield from examine_limits(home.settings, home.folders.data)
    yield from map(checks.check_import, HEAVY)
