"""``volunteer identity``: the peer id, of the Ed25519 key that other volunteers know us by."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.terminal.output import print_json
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.store.identity import KEY_FILE, load_identity
from protocol.wire.envelope import Signer


class Identity(Struct, frozen=True):
    """Answer of ``volunteer identity --json``."""

    peer: str
    key_file: str


def identity(*, json: AsJson = False) -> None:
    """Print this volunteer's peer id."""
    folder = find_home().folders.data
    seed = load_identity(folder)
    if seed is None:
        raise UserError(
            f"no identity in {folder} yet", "the first create or join makes one", ExitCode.CONFIG
        )
    found = Identity(Signer(seed).peer, str(folder / KEY_FILE))
    if json:
        print_json(found)
    else:
        print(found.peer)
