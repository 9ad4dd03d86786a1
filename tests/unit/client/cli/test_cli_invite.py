"""``volunteer invite``: of a running volunteer, or from what is on disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from client.cli.commands.create import sign
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import find_home
from client.control import methods
from client.control.snapshot import InviteView
from client.errors import ExitCode
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.invite import SwarmFile, parse_target
from protocol.wire.envelope import Signer
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_invite
from tests.support.nodes import node_of


@pytest.fixture
def home(home: Path) -> Path:
    find_home().signer()
    return home


@pytest.fixture(scope="module")
def founded() -> SwarmFile:
    signer = Signer(bytes(32))
    run = RunChoices(name="my-swarm", stages=1, steps=5, measure=False)
    model = ModelChoices(layers=1, width=32, heads=2, context=16)
    manifest = found_swarm(signer.peer, run, model, OptimizerChoices()).manifest
    return sign(manifest, signer, (_at("192.168.1.4", 1),))


def _at(host: str, member: int) -> Address:
    return Address("ip4", host, 4001, Signer(bytes([member]) * 32).peer)


def test_a_running_volunteer_makes_it(home: Path, within: Within) -> None:
    with node_of(home, FakeProvider()):
        done = within("invite")
        answer = json.loads(within("invite", "--json").stdout)
    assert done.returncode == 0
    assert done.stdout == f"{example_invite().invite}\n", "the invite is all that is on stdout"
    assert (answer["running"], answer["members"]) == (True, example_invite().members)
    assert answer["schema_version"] == 1


def test_without_one_it_is_made_from_disk_and_that_is_said(
    home: Path, within: Within, founded: SwarmFile
) -> None:
    SwarmStore(find_home().folders.swarms).remember(founded)
    done = within("invite", "--swarm", "my-swarm")
    assert "no volunteer of this swarm runs here" in done.stderr
    assert "same network" in done.stderr
    target = parse_target(done.stdout)
    assert not isinstance(target, Address)
    assert (target.swarm, target.peers) == (founded.swarm, founded.peers)
    assert json.loads(within("invite", "--json").stdout)["running"] is False


def test_who_is_met_last_is_named_and_oneself_only_if_there_is_nobody_else(
    home: Path, within: Within, founded: SwarmFile
) -> None:
    own = Address("ip4", "192.168.1.9", 4001, find_home().signer().peer)
    store = SwarmStore(find_home().folders.swarms)
    store.remember(sign(founded.manifest, Signer(bytes(32)), (own,)))
    alone = within("invite")
    assert "the invite names only this machine: run volunteer join" in alone.stderr
    assert str(own) in alone.stdout
    store.meet(founded.swarm, [_at("8.8.8.8", 2)])
    other = within("invite")
    assert str(own) not in other.stdout
    assert "/ip4/8.8.8.8/" in other.stdout


def test_an_unknown_swarm_has_no_invite(home: Path, within: Within) -> None:
    for arguments in (("invite",), ("invite", "--swarm", "absent")):
        done = within(*arguments)
        assert done.returncode == ExitCode.NOT_RUNNING
        assert "known on this machine" in done.stderr


def test_the_file_is_private_whole_and_never_overwritten_unasked(
    home: Path, within: Within, founded: SwarmFile, tmp_path: Path
) -> None:
    SwarmStore(find_home().folders.swarms).remember(founded)
    out = tmp_path / "x.swarm"
    assert within("invite", "--out", str(out)).returncode == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert parse_target(out.read_text()) == founded
    out.write_text("precious")
    done = within("invite", "--out", str(out))
    assert (done.returncode, "--force" in done.stderr) == (ExitCode.RUNTIME, True)
    assert out.read_text() == "precious"
    assert within("invite", "--out", str(out), "--force").returncode == 0
    assert parse_target(out.read_text()) == founded


def test_an_older_volunteer_is_said_to_be_one(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(methods.METHODS, "invite")
    with node_of(home, FakeProvider()):
        done = within("invite")
    assert done.returncode == ExitCode.RUNTIME
    assert "another version: restart it" in done.stderr


def test_the_notes_of_the_node_are_said(home: Path, within: Within) -> None:
    class Private(FakeProvider):
        def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
            return example_invite(notes=["you answer for whoever uses it"])

    with node_of(home, Private()):
        assert "whoever uses it" in within("invite").stderr


def test_an_invite_may_expire_sooner(home: Path, within: Within) -> None:
    class Vouched(FakeProvider):
        def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
            return example_invite(notes=[f"after {life_s} s"])

    with node_of(home, Vouched()):
        assert "after 5400.0 s" in within("invite", "--expires", "1h30m").stderr
        assert "after None s" in within("invite").stderr
        refused = within("invite", "--expires", "8d")
    assert refused.returncode == ExitCode.USAGE
    assert "7 days at most" in refused.stderr


def test_only_an_invite_that_is_vouched_for_expires(
    home: Path, within: Within, founded: SwarmFile
) -> None:
    SwarmStore(find_home().folders.swarms).remember(founded)
    for flag in ("--once", "--expires=2h"):
        assert "founded with --private" in within("invite", flag).stderr
