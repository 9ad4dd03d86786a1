"""List the expelled members with the evidence against each, which is checked anew.

Group: the swarm

$ volunteer evidence  # of those whom members of the swarm have convicted
$ volunteer evidence FILE --swarm x.swarm  # check a copy of another volunteer's file

Says where the evidence is kept: anybody can check a copy of that file, without a volunteer, a
network, or trust in its sender.

Ends with 1 if a piece of it proves nothing.
"""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm, with_manifest
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import one_line
from client.cli.terminal.parameters import KnownSwarm
from client.errors import ExitCode, UsageError, system_errors
from client.quantities import plural
from client.store.paths import Kept
from client.store.persisted import DamagedFile, Persisted
from client.store.records import KeptEvidence
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import check
from protocol.ids import SwarmId
from protocol.verdicts import Certificate
from protocol.wire.parts import Proof

Kind = Literal["contradiction", "charges"]


class CheckedProof(Struct, frozen=True, kw_only=True):
    """The evidence against one member, and the result of its check."""

    kind: Kind
    """A contradiction convicts by itself. Charges are the words of members of its stage, which
    were a majority to those that saw the stage then."""
    problem: str = ""
    """The reason why it proves nothing; empty: it convicts."""
    peer: str = ""
    """The expelled member; empty if it proves nothing."""
    fault: str = ""
    """What the member did, in one sentence; empty if it proves nothing."""


@answered
def evidence(file: Path | None = None, /, *, swarm: KnownSwarm = None) -> Answer:
    """List the expelled members with the evidence, each checked; returns 1 if it proves nothing.

    Args:
        file: A copy of a file of evidence (default: this volunteer's own).
    """
    home = find_home()
    of = with_manifest(find_swarm(home, swarm)).swarm
    path = file or home.folders.of(of, Kept.PROOFS)
    kept = _read(path)
    if kept is None and file is not None:
        raise UsageError(f"there is no {file}", "check the name")
    pieces: list[Certificate] = [*kept.proofs, *kept.voted_out] if kept is not None else []
    found = [_checked(piece, of) for piece in pieces]
    lines = [f"swarm {of[:12]}: evidence against {plural(len(found), 'member')}"]
    for one in found:
        words = f"PROVES NOTHING: {one.problem}" if one.problem else f"{one.fault}: {one.peer}"
        lines.append(f"  {one_line(words)}")
    if found and file is None:
        lines.append(f"it is in {path}; others check a copy with volunteer evidence COPY")
    code = ExitCode.RUNTIME if any(one.problem for one in found) else ExitCode.OK
    return Answer({"swarm": of, "file": str(path), "proofs": found}, lines, code=code)


def _read(path: Path) -> KeptEvidence | None:
    try:
        with system_errors(f"cannot read {path}", "make it readable", ExitCode.USAGE):
            return Persisted(path, KeptEvidence).read()
    except DamagedFile as error:
        words = f"{path} is damaged: {error}"
        next_step = "ask for a copy again; a volunteer sets its own aside and begins a new one"
        raise UsageError(words, next_step) from error


def _checked(piece: Certificate, swarm: SwarmId) -> CheckedProof:
    """Check a piece of evidence: its signatures, its swarm, and what it shows."""
    kind: Kind = "contradiction" if isinstance(piece, Proof) else "charges"
    try:
        verdict = check(piece, swarm)
    except RemoteProtocolError as error:
        return CheckedProof(kind=kind, problem=str(error) or repr(error))
    return CheckedProof(kind=kind, peer=verdict.culprit, fault=verdict.words)
