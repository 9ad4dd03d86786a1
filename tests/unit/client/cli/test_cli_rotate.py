"""``volunteer identity rotate``: a new key, and neither key lost wherever it is interrupted."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from client.cli.commands import identity
from client.cli.commands.create import sign
from client.cli.reach.home import find_home
from client.errors import ExitCode, UserError
from client.store.identity import (
    KEY_FILE,
    NEXT_FILE,
    IdentityLock,
    load_identity,
    load_next,
    refuse_unfinished,
)
from client.store.swarms import SwarmStore
from client.store.vouches import OLD_KEY, forget_old_keys, load_vouches, save_vouches
from protocol.ids import PeerId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest
from protocol.vouching.register import Kept, Register
from protocol.wire.envelope import Signer
from tests.support.cli_process import Within
from tests.support.protocol_examples import manifest, peer, signer

NOW = 1_800_000_000.0


def vouched_swarm(founder: PeerId, by: Signer, name: str = "club") -> SwarmFile:
    from msgspec.structs import replace

    plain: Manifest = manifest(founder)
    entered = replace(plain, name=name, policy=replace(plain.policy, vouched=True))
    return sign(entered, by, ())


@pytest.fixture
def swarm(home: Path) -> SwarmFile:
    """A swarm in which this home is a member."""
    return enter("club")


def enter(name: str) -> SwarmFile:
    here = find_home()
    me = here.signer()
    swarm = vouched_swarm(peer(1), signer(1), name)
    SwarmStore(here.folders.swarms).remember(swarm)
    founder = Register(signer(1), peer(1), swarm.swarm)
    ticket = founder.draw_ticket(bytes(32), 1, NOW)
    mine = Register(me, peer(1), swarm.swarm)
    _, chain = founder.admit(me.peer, mine.proof(peer(1), ticket.secret), NOW)
    mine.take_chain(chain, ticket.secret)
    save_vouches(here.folders.vouches(swarm.swarm), mine.kept)
    return swarm


def here() -> Path:
    return find_home().folders.data


def known(swarm: SwarmFile) -> Kept:
    kept, warning = load_vouches(find_home().folders.vouches(swarm.swarm))
    assert not warning
    return kept


def seed() -> bytes:
    found = load_identity(here())
    assert found is not None
    return found


def belongs(swarm: SwarmFile) -> bool:
    return Register(Signer(seed()), peer(1), swarm.swarm, known(swarm)).belongs


def old_keys() -> list[Path]:
    return sorted(here().glob(f"vouches/*{OLD_KEY}"))


def test_the_new_key_is_a_member_and_the_old_one_is_kept_until_the_swarm_has_heard(
    swarm: SwarmFile, within: Within
) -> None:
    before = seed()
    done = within("identity", "rotate", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["old"] == Signer(before).peer
    assert answer["peer"] == Signer(seed()).peer != answer["old"]
    assert answer["swarms"] == ["club"]
    assert belongs(swarm)
    (kept,) = old_keys()
    for path in (kept, here() / KEY_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept.read_bytes() == before
    assert load_next(here()) is None
    assert forget_old_keys(find_home().folders.vouches(swarm.swarm))
    assert not old_keys()
    assert belongs(swarm)


def test_a_running_volunteer_is_refused(swarm: SwarmFile, within: Within) -> None:
    before = seed()
    with IdentityLock(here()):
        done = within("identity", "rotate")
    assert done.returncode == ExitCode.TEMPORARY
    assert str(os.getpid()) in done.stderr
    assert "volunteer stop" in done.stderr
    assert seed() == before
    assert load_next(here()) is None


def test_a_home_without_such_a_swarm_is_refused(home: Path, within: Within) -> None:
    find_home().signer()
    done = within("identity", "rotate")
    assert done.returncode == ExitCode.REFUSED
    assert "VOLUNTEER_HOME" in done.stderr
    assert load_next(here()) is None


def test_a_founder_is_told_what_to_do_in_place_of_it(home: Path, within: Within) -> None:
    me = find_home().signer()
    SwarmStore(find_home().folders.swarms).remember(vouched_swarm(me.peer, me))
    done = within("identity", "rotate")
    assert done.returncode == ExitCode.REFUSED
    assert "whose manifest names its key" in done.stderr
    assert "volunteer export" in done.stderr
    assert load_next(here()) is None


class Killed(BaseException):
    """As a kill: nothing after it runs."""


@pytest.mark.parametrize("when", range(7))
def test_a_kill_at_any_point_loses_neither_key(
    when: int, home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two swarms: six writes; the process dies after so many of them."""
    swarms = [enter("club"), enter("choir")]
    before, calls = seed(), 0
    names = ("save_next", "keep_old_key", "save_vouches", "replace_identity")
    real = {name: getattr(identity, name) for name in names}

    def dying(name: str) -> object:
        def write(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls > when:
                raise Killed
            return real[name](*arguments)

        return write

    with monkeypatch.context() as patched:
        for name in real:
            patched.setattr(identity, name, dying(name))
        if when < 6:
            with pytest.raises(Killed):
                identity.rotate()
            assert seed() == before
            if when:
                with pytest.raises(UserError, match="interrupted"):
                    refuse_unfinished(here())
        else:
            identity.rotate()
    chosen = load_next(here())
    if when < 6:
        done = within("identity", "rotate")
        assert done.returncode == 0, done.stderr
        assert chosen in (None, seed()), "it goes on with the same key"
    assert seed() != before
    assert all(belongs(swarm) for swarm in swarms)
    assert {path.read_bytes() for path in old_keys()} == {before}
    assert not (here() / NEXT_FILE).exists()
    refuse_unfinished(here())
