"""``volunteer identity``: show, create or replace the Ed25519 key that other volunteers know us by.

A new key takes the place of the old one where members vouch for each other. All is signed and
written before the key's own file is replaced, in one step. Until then the next key waits beside
it, and no volunteer starts; the command goes on where it was interrupted, with the same key.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.home import Home, find_home
from client.cli.settings.config_file import save_setting, set_setting
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.store.identity import (
    KEY_FILE,
    IdentityLock,
    load_identity,
    load_next,
    replace_identity,
    save_next,
)
from client.store.paths import HOME_VARIABLE, find_folders, make_private
from client.store.swarms import SwarmStore
from client.store.vouches import keep_old_key, load_vouches, save_vouches
from protocol.errors import LocalProtocolError
from protocol.invite import SwarmFile
from protocol.names import normal
from protocol.vouching.register import Kept, Register
from protocol.wire.envelope import SEED_BYTES, Signer

app = nested_app("identity")


class Identity(Struct, frozen=True):
    """Answer of ``volunteer identity show --json``."""

    peer: str
    key_file: str
    schema_version: int = 1


class Rotated(Struct, frozen=True):
    """Answer of ``volunteer identity rotate --json``."""

    peer: str
    old: str
    swarms: list[str]
    """Names of the swarms in which the new key takes the place of the old one."""
    key_file: str
    schema_version: int = 1


@app.command
def show(*, json: AsJson = False) -> None:
    """Print this volunteer's peer id."""
    folder = find_home().folders.data
    seed = load_identity(folder)
    if seed is None:
        raise UserError(
            f"no identity in {folder}", "make one: volunteer identity create", ExitCode.CONFIG
        )
    _print(Signer(seed), str(folder / KEY_FILE), json)


@app.command
def create(*, json: AsJson = False) -> None:
    """Make an identity, unless there is one, and print its peer id."""
    folder = make_private(find_home().folders.data)
    known = load_identity(folder) is not None
    signer = find_home().signer()
    say(
        "this home already has an identity"
        if known
        else f"created {folder / KEY_FILE}; keep it private"
    )
    _print(signer, str(folder / KEY_FILE), json)


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


@app.command
def rotate(*, json: AsJson = False) -> None:
    """Replace this volunteer's key, in every swarm that it has entered by invitation.

    The old key counts for nothing from then on. Members hear of it when the volunteer starts.
    """
    home = find_home()
    folder = make_private(home.folders.data)
    lock = IdentityLock(folder)
    try:
        lock.acquire()
    except UserError as error:
        raise UserError(str(error), "end it first: volunteer stop", error.exit_code) from error
    try:
        rotated = _rotated(home, folder)
    finally:
        lock.release()
    if json:
        print_json(rotated)
        return
    say(f"this home is {rotated.peer} now, in {', '.join(rotated.swarms)}")
    say(f"the old key, {rotated.old}, counts no more when a member has heard: volunteer join")


def _rotated(home: Home, folder: Path) -> Rotated:
    """Replace the key in every swarm, then in this home.

    Raises:
        UserError: it cannot be replaced, and nothing was changed; or the disk refuses, and the
            command can go on.
    """
    seed = load_identity(folder)
    if seed is None:
        raise UserError(f"no identity in {folder}", "join a swarm first", ExitCode.CONFIG)
    old, next_seed = Signer(seed), load_next(folder) or secrets.token_bytes(SEED_BYTES)
    new, store = Signer(next_seed), SwarmStore(home.folders.swarms)
    vouched = [swarm for swarm in store.all() if swarm.manifest.policy.vouched]
    handed = [(swarm, _handed_over(home, swarm, old, new)) for swarm in vouched]
    places = [(swarm, kept) for swarm, kept in handed if kept is not None]
    if not places:
        raise UserError(
            "no swarm known here is entered by invitation and has this key as its member",
            f"for a new identity set {HOME_VARIABLE} to another folder, and join from there",
            ExitCode.REFUSED,
        )
    try:
        save_next(folder, next_seed)
        for swarm, kept in places:
            path = home.folders.vouches(swarm.swarm)
            keep_old_key(path, old.peer, seed)
            save_vouches(path, kept)
        replace_identity(folder)
    except OSError as error:
        words = f"cannot write below {folder}: {error.strerror}"
        raise UserError(words, "make room, then again: volunteer identity rotate") from error
    names = [swarm.manifest.name for swarm, _ in places]
    return Rotated(new.peer, old.peer, names, str(folder / KEY_FILE))


def _handed_over(home: Home, swarm: SwarmFile, old: Signer, new: Signer) -> Kept | None:
    """Return what the new key begins with in a swarm; None: the old one is no member of it.

    Raises:
        UserError: the old key is a member whose place nobody can take.
    """
    name, founder = swarm.manifest.name, swarm.manifest.founder
    if founder == old.peer:
        raise UserError(
            f"this home has founded {name}, whose manifest names its key",
            "found a new swarm with the model: volunteer export, then volunteer create --from, "
            "in another home",
            ExitCode.REFUSED,
        )
    kept, warning = load_vouches(home.folders.vouches(swarm.swarm))
    if warning:
        say(warning)
    if Register(new, founder, swarm.swarm, kept).is_member:
        return kept  # an interrupted rotation came so far
    register = Register(old, founder, swarm.swarm, kept)
    if not register.belongs:
        return None
    try:
        return register.hand_over(new, time.time())
    except LocalProtocolError as error:
        words = f"in {name}: {error}"
        advice = "ask a member for a new invite, join with it from another home, and ask to expel "
        raise UserError(words, advice + old.peer, ExitCode.REFUSED) from error


def _print(signer: Signer, key_file: str, as_json: bool) -> None:
    if as_json:
        print_json(Identity(signer.peer, key_file))
    else:
        print(signer.peer)
