"""Print the completion script of a shell.

Group: this machine

$ volunteer completion bash > ~/.local/share/bash-completion/completions/volunteer
  # for bash; from the next shell on
$ volunteer completion fish > ~/.config/fish/completions/volunteer.fish  # for fish
"""

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
    from client.cli.command_table import build_app

    print(build_app().generate_completion(shell=shell))
