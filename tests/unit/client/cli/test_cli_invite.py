"""``volunteer invite``, ``status members`` and ``expel``: what a running volunteer answers."""

import json
import stat
from pathlib import Path

from client.control.methods import Impossible
from client.control.snapshot import InvitedMember, InviteView
from client.errors import ExitCode
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_invite
from tests.support.nodes import node_of


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
        lost = within("invite", "--out", str(tmp_path / "none" / "x.swarm"))
        assert lost.returncode == ExitCode.USAGE
        assert f"there is no folder {tmp_path / 'none'}" in lost.stderr
        out.write_text("precious")
        done = within("invite", "--out", str(out))
        assert (done.returncode, "--force" in done.stderr) == (ExitCode.USAGE, True)
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


# --- members ---------------------------------------------------------------------------------

FOUNDER, FRIEND, BAD = "12D3KooWFounder", "12D3KooWFriend", "12D3KooWBad\x1b[31m"


MEMBERS = [
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


class Club(FakeProvider):
    """A node of a swarm whose founder has invited two, and expelled one."""

    def __init__(self) -> None:
        super().__init__(members=MEMBERS)

    def expel(self, member: str, reason: str) -> InvitedMember:
        for one in MEMBERS:
            if one.peer.endswith(member):
                return one
        raise Impossible(f"no member met here is called {member}; see: volunteer status members")


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
