"""Packages that only some uses need, and how to install one beside this program."""

import sys
from importlib import import_module
from typing import Any


class MissingPackage(Exception):
    """A package is not installed; the message says how to install it."""


def load(module: str) -> Any:
    """Return a module of a package that is not installed with this program.

    Raises:
        MissingPackage: it is not there.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise MissingPackage(f"the package {name} is needed: {install(name)}") from error


def install(name: str) -> str:
    """Return the command that installs a package for the Python that runs this program."""
    return f"{sys.executable} -m pip install {name}"
