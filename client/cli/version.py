"""``volunteer version``: the versions that matter in a report, read without importing anything."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.output import print_json

PACKAGES = ("libp2p", "trio", "torch", "msgspec", "pynacl", "textual")


class Versions(Struct, frozen=True):
    """Answer of ``volunteer version --json``."""

    volunteer: str
    python: str
    platform: str
    packages: dict[str, str]
    schema_version: int = 1


def software_version() -> str:
    """Return the version of this software."""
    return package_version("volunteer") or "unknown (not installed)"


def version(*, json: Annotated[bool, Parameter(help="Print JSON.")] = False) -> None:
    """Print the versions that matter in a report."""
    found = {name: package_version(name) or "missing" for name in PACKAGES}
    versions = Versions(software_version(), platform.python_version(), platform.platform(), found)
    if json:
        print_json(versions)
        return
    print(f"volunteer {versions.volunteer}")
    print(f"python {versions.python} on {versions.platform}")
    for name, number in found.items():
        print(f"{name} {number}")


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
