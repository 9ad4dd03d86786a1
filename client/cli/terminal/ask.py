"""Asks a person before something is done that cannot be undone."""

from __future__ import annotations

import sys

from client.cli.terminal.output import say
from client.errors import ExitCode, UserError


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether to continue: ``yes`` was given, or a person agrees.

    Raises:
        UserError: there is nobody to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError(f"this needs a confirmation: {question}", "pass --yes", ExitCode.USAGE)
    return says_yes(question)


def says_yes(question: str) -> bool:
    """Ask, and return whether the next line of stdin agrees."""
    say(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
