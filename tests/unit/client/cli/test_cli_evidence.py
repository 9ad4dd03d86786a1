"""``volunteer evidence``: proofs are listed and checked without trust in who shows them."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from client.errors import ExitCode
from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptEvidence
from client.store.swarms import SwarmStore
from protocol.audit.charges import CHARGE, KIND, Charge
from protocol.ids import SwarmId
from protocol.invite import parse_swarm_file
from protocol.wire.parts import Proof, VotedOut
from tests.support.cli_process import Within
from tests.support.protocol_examples import peer, proof_of, signer


@pytest.fixture
def swarm(within: Within, tmp_path: Path) -> SwarmId:
    """A swarm known here, of which one member was expelled."""
    path = tmp_path / "x.swarm"
    assert within("create", "--no-measure", "--name", "mine", "--out", str(path)).returncode == 0
    folders, known = home_folders(tmp_path / "home"), parse_swarm_file(path.read_text())
    SwarmStore(folders.swarms).remember(known)
    kept = KeptEvidence((proof_of(swarm=known.swarm),))
    Persisted(folders.of(known.swarm, Kept.PROOFS), KeptEvidence).save(kept)
    return known.swarm


def test_who_was_expelled_is_listed_with_the_fault(swarm: SwarmId, within: Within) -> None:
    done = within.ends(ExitCode.OK, "evidence", "--swarm", "mine")
    assert f"swarm {swarm[:12]}: evidence against 1 member" in done.stdout
    assert f"signed two different adverts with one number: {peer(1)}" in done.stdout
    told = json.loads(within("evidence", "--json").stdout)
    assert (told["swarm"], [one["peer"] for one in told["proofs"]]) == (swarm, [peer(1)])


def test_a_copy_of_the_file_is_checked_by_others(
    swarm: SwarmId, within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = json.loads(within("evidence", "--json").stdout)["file"]
    assert file in within("evidence").stdout
    copy = str(shutil.copy(file, tmp_path / "proofs.bin"))
    monkeypatch.setenv("VOLUNTEER_HOME", str(tmp_path / "another"))
    known = str(tmp_path / "x.swarm")
    assert peer(1) in within.ends(ExitCode.OK, "evidence", copy, "--swarm", known).stdout


def test_a_proof_of_another_swarm_or_with_a_changed_body_proves_nothing(
    swarm: SwarmId, within: Within, tmp_path: Path
) -> None:
    genuine = proof_of(swarm=swarm)
    changed = Proof(genuine.first, replace(genuine.second, body=genuine.second.body + b"!"))
    for bad in (proof_of(swarm=SwarmId("cd" * 32)), changed):
        file = tmp_path / "proofs.bin"
        Persisted(file, KeptEvidence).save(KeptEvidence((genuine, bad)))
        done = within.ends(ExitCode.RUNTIME, "evidence", str(file), "--json")
        told = json.loads(done.stdout)["proofs"]
        assert [bool(one["problem"]) for one in told] == [False, True]
        assert not told[1]["peer"]


def test_members_that_their_stage_has_voted_out_are_listed_with_the_charges(
    swarm: SwarmId, within: Within, tmp_path: Path
) -> None:
    said = Charge(1, peer(1), 12, 0, "lies")
    charges = tuple(signer(n).sign(KIND, CHARGE.encode(said), swarm) for n in (2, 3))
    file = Persisted(home_folders(tmp_path / "home").of(swarm, Kept.PROOFS), KeptEvidence)
    file.save(KeptEvidence((proof_of(swarm=swarm),), (VotedOut(1, peer(1), charges),)))
    told = json.loads(within("evidence", "--json").stdout)["proofs"]
    assert [(one["kind"], one["problem"], one["peer"]) for one in told] == [
        ("contradiction", "", peer(1)),
        ("charges", "", peer(1)),
    ]
    assert "of stage 1; found by 2 members" in told[1]["fault"]
    own = signer(1).sign(KIND, CHARGE.encode(said), swarm)
    for bad in (
        (charges[0], charges[0]),
        (charges[0], own),
        (charges[0], proof_of(swarm=swarm).first),
    ):
        file.save(KeptEvidence((), (VotedOut(1, peer(1), bad),)))
        assert within("evidence").returncode == ExitCode.RUNTIME, bad


def test_what_is_no_file_of_proofs_is_refused(
    swarm: SwarmId, within: Within, tmp_path: Path
) -> None:
    file = tmp_path / "proofs.bin"
    assert within("evidence", str(file)).returncode == ExitCode.USAGE
    file.write_bytes(b"nonsense")
    done = within.ends(ExitCode.USAGE, "evidence", str(file))
    assert str(file) in done.stderr
