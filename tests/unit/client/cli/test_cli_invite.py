"""``volunteer invite``: what a running volunteer answers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from client.cli.reach.home import find_home
from client.control.snapshot import InviteView
from client.errors import ExitCode
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_invite
from tests.support.nodes import node_of


@pytest.fixture
def home(home: Path) -> Path:
    find_home().signer()
    return home


def test_a_running_volunteer_makes_it(home: Path, within: Within) -> None:
    with node_of(home, FakeProvider()):
        done = within("invite")
        answer = json.loads(within("invite", "--json").stdout)
    assert done.returncode == 0
    assert done.stdout == f"{example_invite().invite}\n", "the invite is all that is on stdout"
    assert answer["members"] == example_invite().members
    assert answer["schema_version"] == 1


def test_the_file_is_private_whole_and_never_overwritten_unasked(
    home: Path, within: Within, tmp_path: Path
) -> None:
    class Whole(FakeProvider):
        def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
            return example_invite(file="all of it")

    out = tmp_path / "x.swarm"
    with node_of(home, Whole()):
        assert within("invite", "--out", str(out)).returncode == 0
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert out.read_text() == "all of it"
        out.write_text("precious")
        done = within("invite", "--out", str(out))
        assert (done.returncode, "--force" in done.stderr) == (ExitCode.RUNTIME, True)
        assert out.read_text() == "precious"
        assert within("invite", "--out", str(out), "--force").returncode == 0
    assert out.read_text() == "all of it"


def test_an_invite_may_expire_sooner(home: Path, within: Within) -> None:
    class Vouched(FakeProvider):
        def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
            return example_invite(notes=[f"after {life_s} s"])

    with node_of(home, Vouched()):
        assert "after 5400.0 s" in within("invite", "--expires", "1h30m").stderr
        assert "after None s" in within("invite").stderr
        refused = within.ends(ExitCode.USAGE, "invite", "--expires", "8d")
    assert "7 days at most" in refused.stderr
