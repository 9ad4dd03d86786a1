"""``volunteer evidence``: shows, saves and checks the proofs by which members were expelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import one_line, print_json, printable, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.store.packed import DamagedFile
from client.store.proofs import load_proofs, load_shown_proofs, show_proofs
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import check, words_of
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from protocol.wire.parts import Proof

app = nested_app("evidence")
KnownSwarm = Annotated[
    str | None, Parameter(help="Name or beginning of the id of the swarm, where several are known.")
]


class CheckedProof(Struct, frozen=True, kw_only=True):
    """A proof and the result of its check."""

    valid: bool
    problem: str = ""
    """The reason why it proves nothing."""
    peer: str = ""
    """The member that it convicts; empty if it proves nothing."""
    fault: str = ""
    """What the member did, in one sentence; empty if it proves nothing."""


class EvidenceList(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer evidence ls --json`` and ``verify --json``."""

    swarm: str
    proofs: list[CheckedProof]
    schema_version: int = 1


@app.command
def ls(*, swarm: KnownSwarm = None, json: AsJson = False) -> int:
    """List the members that proofs have expelled, each proof checked; returns 1 if one is bad."""
    return _report(*_kept(swarm), as_json=json)


@app.command
def save(out: Path, *, swarm: KnownSwarm = None) -> None:
    """Save the proofs in a file that anybody can check with volunteer evidence verify.

    Parameters
    ----------
    out
        The file, which must not exist yet.
    """
    named, proofs = _kept(swarm)
    if not proofs:
        raise UserError("no member was expelled by a proof", "there is nothing to save")
    if out.exists():
        raise UserError(f"{out} exists", "choose another name", ExitCode.USAGE)
    try:
        show_proofs(out, named, proofs)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}", "choose another folder") from error
    say(f"{_count(proofs)} saved in {out}; to check: volunteer evidence verify {out}")


@app.command
def verify(file: Path, *, json: AsJson = False) -> int:
    """Check the proofs of a file: signatures, swarm and contradiction; returns 1 if one is bad.

    Needs no volunteer, no network, and no trust in the sender of the file.

    Parameters
    ----------
    file
        A file of volunteer evidence save.
    """
    try:
        swarm, proofs = load_shown_proofs(file)
    except DamagedFile as error:
        raise UserError(str(error), "ask for the file again", ExitCode.USAGE) from error
    except OSError as error:
        problem = f"cannot read {file}: {error.strerror}"
        raise UserError(problem, "check the name", ExitCode.USAGE) from error
    return _report(swarm, proofs, as_json=json)


def _kept(text: str | None) -> tuple[SwarmId, tuple[Proof, ...]]:
    home = find_home()
    target = find_swarm(home, text)
    if not isinstance(target, SwarmFile):
        raise UserError("this swarm is not known on this machine", "join it first", ExitCode.USAGE)
    path = home.folders.proofs(target.swarm)
    try:
        return target.swarm, load_proofs(path)
    except DamagedFile as error:
        raise UserError(str(error), "remove it; the volunteer begins a new one") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "make it readable") from error


def _report(swarm: SwarmId, proofs: tuple[Proof, ...], *, as_json: bool) -> int:
    checked = [_check(proof, swarm) for proof in proofs]
    if as_json:
        print_json(EvidenceList(swarm=swarm, proofs=checked))
    else:
        print(f"swarm {swarm[:12]}: {_count(proofs)}")
        for one in checked:
            words = f"{one.fault}: {one.peer}" if one.valid else f"NOT A PROOF: {one.problem}"
            print("  " + one_line(printable(words)))
    return ExitCode.OK if all(one.valid for one in checked) else ExitCode.RUNTIME


def _check(proof: Proof, swarm: SwarmId) -> CheckedProof:
    try:
        return CheckedProof(valid=True, peer=check(proof, swarm), fault=words_of(proof))
    except RemoteProtocolError as error:
        return CheckedProof(valid=False, problem=str(error))


def _count(proofs: tuple[Proof, ...]) -> str:
    return "1 proof" if len(proofs) == 1 else f"{len(proofs)} proofs"
