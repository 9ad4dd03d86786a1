"""Packages that only some uses need: how to install one beside this program."""

from __future__ import annotations

import sys


def install(name: str) -> str:
    """Return the command that installs a package for the Python that runs this program."""
    return f"{sys.executable} -m pip install {name}"
