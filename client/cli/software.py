"""Versions of this program and of the packages it is built on, read without importing any."""

from __future__ import annotations

from importlib import metadata

PACKAGES = ("libp2p", "trio", "torch", "msgspec", "pynacl", "textual")
"""Packages whose versions matter in a report."""


def software_version() -> str:
    """Return the version of this software."""
    return package_version("volunteer") or "unknown (not installed)"


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
