"""Asks a person before something is done that cannot be undone."""

import sys

from client.cli.terminal.output import say
from client.errors import ExitCode, UsageError, UserError


def confirm(question: str, *, yes: bool) -> None:
    """Go on if ``yes`` was given, or a person agrees.

    Raises:
        UserError: the person does not, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this needs a confirmation: {question}", "pass --yes")
    if not says_yes(question):
        raise UserError("nothing was done", exit_code=ExitCode.INTERRUPTED)


def says_yes(question: str) -> bool:
    """Ask, and return whether the next line of stdin agrees."""
    say(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
