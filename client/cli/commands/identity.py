"""``volunteer identity``: show or name the Ed25519 key that other volunteers know us by."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.home import find_home
from client.cli.settings.config_file import save_setting, set_setting
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.store.identity import KEY_FILE, load_identity
from client.store.paths import find_folders
from protocol.names import normal
from protocol.wire.envelope import Signer

app = nested_app("identity")


class Identity(Struct, frozen=True):
    """Answer of ``volunteer identity show --json``."""

    peer: str
    key_file: str


@app.command
def show(*, json: AsJson = False) -> None:
    """Print this volunteer's peer id."""
    folder = find_home().folders.data
    seed = load_identity(folder)
    if seed is None:
        raise UserError(
            f"no identity in {folder} yet", "the first create or join makes one", ExitCode.CONFIG
        )
    _print(Signer(seed), str(folder / KEY_FILE), json)


@app.command
def name(name: Annotated[str, Parameter(allow_leading_hyphen=True)] = "", /) -> None:
    """Set the name that other members see beside this volunteer's id; without one, remove it.

    It counts from the next start. It identifies nobody: anybody may choose any. It is the setting
    nickname.

    Parameters
    ----------
    name
        Up to 24 characters, such as "Anna's PC".
    """
    if name.strip():
        say(save_setting("nickname", normal(name)))
        return
    set_setting(find_folders().config_file, "nickname", None)
    say("no name: from the next start")


def _print(signer: Signer, key_file: str, as_json: bool) -> None:
    if as_json:
        print_json(Identity(signer.peer, key_file))
    else:
        print(signer.peer)
