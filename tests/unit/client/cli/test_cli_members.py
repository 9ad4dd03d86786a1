"""``volunteer status members`` and ``volunteer expel``: what they show and say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.cli.reach.home import find_home
from client.control.methods import Impossible
from client.control.snapshot import InvitedMember, Membership
from client.errors import ExitCode
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of

FOUNDER, FRIEND, BAD = "12D3KooWFounder", "12D3KooWFriend", "12D3KooWBad\x1b[31m"


class Club(FakeProvider):
    """A node of a swarm whose founder has invited two, and expelled one."""

    def members(self) -> Membership:
        tree = [
            InvitedMember(peer=FOUNDER, invited_by="", depth=0, linked=True, ours=False),
            InvitedMember(peer=FRIEND, invited_by=FOUNDER, depth=1, linked=False, ours=True),
            InvitedMember(
                peer=BAD,
                invited_by=FOUNDER,
                depth=1,
                linked=False,
                ours=True,
                expelled_by=FOUNDER,
                reason="sends noise",
            ),
        ]
        return Membership(swarm="ab" * 32, swarm_name="club", by_invitation=True, members=tree)

    def expel(self, member: str, reason: str) -> InvitedMember:
        for one in self.members().members:
            if one.peer.endswith(member):
                return one
        raise Impossible(f"no member met here is called {member}; see: volunteer status members")


@pytest.fixture
def home(home: Path) -> Path:
    find_home().signer()
    return home


def test_who_answers_for_whom_is_a_tree(home: Path, within: Within) -> None:
    with node_of(home, Club()):
        done = within("status", "members")
        answer = json.loads(within("status", "members", "--json").stdout)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[1].startswith(FOUNDER)
    assert "founder" in lines[1]
    assert lines[2].startswith(f"  {FRIEND}"), "below who has invited it"
    assert "yours to expel" in lines[2]
    assert "expelled by ounder: sends noise" in lines[3]
    assert "\x1b" not in done.stdout, "a name cannot colour the terminal"
    assert [one["peer"] for one in answer["members"]] == [FOUNDER, FRIEND, BAD]


def test_who_is_expelled_is_said(home: Path, within: Within) -> None:
    with node_of(home, Club()):
        done = within("expel", FRIEND, "--reason", "why not")
        answer = json.loads(within("expel", FRIEND, "--json").stdout)
        unknown = within("expel", "Nobody")
    assert done.returncode == 0
    assert f"expelled {FRIEND} from" in done.stdout
    assert (answer["member"]["peer"], answer["schema_version"]) == (FRIEND, 1)
    assert unknown.returncode == ExitCode.RUNTIME
    assert "no member met here is called Nobody" in unknown.stderr
