"""``volunteer completion``: the script with which a shell completes commands and flags."""

from __future__ import annotations

from typing import Literal

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /) -> None:
    """Print the completion script of a shell; put it where the shell looks for it.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from client.cli.app import build_app

    print(build_app().generate_completion(shell=shell))
