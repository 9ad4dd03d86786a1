"""Show, save and check the evidence by which members were expelled.

Group: watch

$ volunteer evidence ls  # who was expelled in the only swarm known here, and why
$ volunteer evidence save bad.bin  # a file for others
$ volunteer evidence verify bad.bin  # on any machine; exit code 1 if it proves nothing
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm, with_manifest
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import one_line, say
from client.cli.terminal.parameters import KnownSwarm
from client.errors import ExitCode, UserError, system_errors
from client.quantities import plural
from client.store.persisted import DamagedFile, Persisted
from client.store.records import KeptEvidence, ShownEvidence
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import check
from protocol.ids import SwarmId
from protocol.verdicts import Certificate
from protocol.wire.parts import Proof

app = nested_app("evidence")
Kind = Literal["contradiction", "charges"]


class CheckedProof(Struct, frozen=True, kw_only=True):
    """The evidence against one member, and the result of its check."""

    kind: Kind
    """A contradiction convicts by itself. Charges are the words of members of its stage, which
    were a majority to those that saw the stage then."""
    valid: bool
    problem: str = ""
    """The reason why it proves nothing."""
    peer: str = ""
    """The expelled member; empty if it proves nothing."""
    fault: str = ""
    """What the member did, in one sentence; empty if it proves nothing."""


class EvidenceList(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer evidence ls --json`` and ``verify --json``."""

    swarm: str
    proofs: list[CheckedProof]


@app.command
@answered
def ls(*, swarm: KnownSwarm = None) -> Answer:
    """List the expelled members with the evidence, each checked; returns 1 if it proves nothing."""
    return _report(_kept(swarm))


@app.command
def save(out: Path, *, swarm: KnownSwarm = None) -> None:
    """Save the evidence in a file that anybody can check with volunteer evidence verify.

    Parameters
    ----------
    out
        The file, which must not exist yet.
    """
    kept = _kept(swarm)
    if not (kept.proofs or kept.voted_out):
        raise UserError("no member was expelled by evidence", "there is nothing to save")
    if out.exists():
        raise UserError(f"{out} exists", "choose another name", ExitCode.USAGE)
    with system_errors(f"cannot write {out}", "choose another folder"):
        Persisted(out, ShownEvidence).save(kept)
    say(f"saved in {out}; to check it: volunteer evidence verify {out}")


@app.command
@answered
def verify(file: Path) -> Answer:
    """Check the evidence of a file: signatures, swarm, contradictions; returns 1 if one is bad.

    Needs no volunteer, no network, and no trust in the sender of the file.

    Parameters
    ----------
    file
        A file of volunteer evidence save.
    """
    try:
        with system_errors(f"cannot read {file}", "check the name", ExitCode.USAGE):
            shown = Persisted(file, ShownEvidence).read()
    except DamagedFile as error:
        words = f"{file} is damaged: {error}"
        raise UserError(words, "ask for the file again", ExitCode.USAGE) from error
    if shown is None:
        raise UserError(f"there is no {file}", "check the name", ExitCode.USAGE)
    return _report(shown)


def _kept(text: str | None) -> ShownEvidence:
    home = find_home()
    swarm = with_manifest(find_swarm(home, text)).swarm
    path = home.folders.proofs(swarm)
    try:
        with system_errors(f"cannot read {path}", "make it readable"):
            kept = Persisted(path, KeptEvidence).read() or KeptEvidence()
    except DamagedFile as error:
        words = f"{path} is damaged: {error}"
        raise UserError(words, "remove it; the volunteer begins a new one") from error
    return ShownEvidence(kept.proofs, kept.voted_out, swarm=swarm)


def _report(shown: ShownEvidence) -> Answer:
    swarm = SwarmId(shown.swarm)
    pieces: list[Certificate] = [*shown.proofs, *shown.voted_out]
    found = [_checked(piece, swarm) for piece in pieces]
    lines = [f"swarm {shown.swarm[:12]}: evidence against {plural(len(found), 'member')}"]
    for one in found:
        words = f"{one.fault}: {one.peer}" if one.valid else f"PROVES NOTHING: {one.problem}"
        lines.append(f"  {one_line(words)}")
    code = ExitCode.OK if all(one.valid for one in found) else ExitCode.RUNTIME
    return Answer(EvidenceList(swarm=shown.swarm, proofs=found), lines, code=code)


def _checked(piece: Certificate, swarm: SwarmId) -> CheckedProof:
    """Check a piece of evidence: its signatures, its swarm, and what it shows."""
    kind: Kind = "contradiction" if isinstance(piece, Proof) else "charges"
    try:
        verdict = check(piece, swarm)
    except RemoteProtocolError as error:
        return CheckedProof(kind=kind, valid=False, problem=str(error))
    return CheckedProof(kind=kind, valid=True, peer=verdict.culprit, fault=verdict.words)
