"""Changes a run as its founder: through its running volunteer, or on disk for the next start.

Shows what will change and asks once. Everything that decides whether it can be is in
``protocol.amendments.draft``.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from client.cli.reach.home import Home, find_home
from client.cli.reach.running import connect
from client.cli.reach.target import as_name, named_swarm
from client.cli.terminal.ask import confirmed
from client.cli.terminal.output import print_json, say
from client.control.amended import ONLY_THE_FOUNDER, amended
from client.control.client import ControlClient, ControlError
from client.control.snapshot import Amended, AmendmentView
from client.errors import ExitCode, UserError
from client.store.checkpoints import CheckpointFolder
from client.store.identity import IdentityLock
from client.store.paths import make_private
from client.store.persisted import Persisted
from protocol.amendments.amendment import sign_amendment
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.errors import LocalProtocolError
from protocol.invite import SwarmFile

UNKNOWN = "found one with volunteer create, or name it with --swarm"


class AmendedRun(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer amend --json``."""

    swarm: str
    swarm_name: str
    amendment: AmendmentView
    step: int
    """Steps that the run has done, as far as this machine knows."""
    earliest: int
    """The first step for which its learning rate can hold."""
    rates: list[tuple[int, float, float]]
    """Learning rates at some steps: the step, as it was to be, as it will be."""
    told: bool
    """Whether a running volunteer tells the others now; otherwise its next start does."""


def change_run(swarm: str | None, changes: Changes, *, yes: bool, json: bool) -> None:
    """Change the run of a swarm.

    Args:
        swarm: name or beginning of its id; None: the one that runs, or the only one known.
        changes: what is to change.
        yes: do not ask.
        json: print JSON.

    Raises:
        UserError: it cannot be changed like that, or not by us.
    """
    home = find_home()
    try:
        with connect(home.folders, swarm) as node:
            greeting = node.greeting
            if not _agreed(_of_node(node, changes, sign=False), yes=yes):
                return
            done = _of_node(node, changes, sign=True)
            _report(greeting.swarm, greeting.swarm_name, done, told=True, json=json)
            return
    except UserError as error:
        if error.exit_code != ExitCode.NOT_RUNNING:
            raise
    found = named_swarm(home, as_name(swarm))
    if found is None:
        named = f"no swarm {swarm!r}" if swarm else "no swarm"
        raise UserError(f"{named} is known on this machine", UNKNOWN, ExitCode.NOT_RUNNING)
    make_private(home.folders.data)
    with IdentityLock(home.folders.data):
        _on_disk(home, found, changes, yes=yes, json=json)


def _of_node(node: ControlClient, changes: Changes, *, sign: bool) -> Amended:
    try:
        return node.amend(changes, sign=sign)
    except ControlError as error:
        if str(error).startswith(ONLY_THE_FOUNDER.partition("{")[0]):
            raise _refused(str(error)) from error
        raise


def _on_disk(home: Home, swarm: SwarmFile, changes: Changes, *, yes: bool, json: bool) -> None:
    """Sign an amendment that the next start of the volunteer tells."""
    signer, run = home.signer(), swarm.manifest
    if signer.peer != run.founder:
        raise _refused(ONLY_THE_FOUNDER.format(run.founder))
    path = home.folders.amendments(swarm.swarm)
    file = Persisted(path, KeptAmendments)
    book = Amendments(run, swarm.swarm, file.load(say))
    entries = CheckpointFolder(home.folders.checkpoints(swarm.swarm)).entries()
    done = max((entry.version for entry in entries), default=0)
    try:
        said = draft(book, run.optimizer.lr, changes, done)
    except LocalProtocolError as error:
        raise UserError(str(error), "nothing was changed", ExitCode.USAGE) from error
    preview = amended(book, said, done, signed=False)
    if not _agreed(preview, yes=yes):
        return
    book.take(sign_amendment(signer, said, swarm.swarm))
    try:
        file.save(book.kept)
    except OSError as error:
        words = f"cannot write {path}: {error.strerror}"
        raise UserError(words, "make room: volunteer cache prune", ExitCode.CONFIG) from error
    _report(swarm.swarm, run.name, preview, told=False, json=json)


def _refused(words: str) -> UserError:
    return UserError(words, "ask the founder to do it", ExitCode.REFUSED)


def _agreed(preview: Amended, *, yes: bool) -> bool:
    """Show what will change, and ask once."""
    for line in described(preview):
        say(line)
    if confirmed("Sign it? It cannot be taken back, only changed again.", yes=yes):
        return True
    say("nothing was done")
    return False


def described(change: Amended) -> Iterator[str]:
    """Yield lines about a change that is to be signed."""
    yield f"step {change.step:,} is done; {change.amendment.words}"
    if all(before == after for _, before, after in change.rates):
        last = change.rates[-1][2] if change.rates else 0.0
        yield f"the learning rate stays as it was, {last:.3g} at the end: see volunteer amend"
        return
    yield f"from step {change.earliest:,} on, or a few later: as soon as all stages have agreed"
    yield f"{'step':>12}  {'as it was':>10}  {'as it will be':>13}"
    for step, before, after in change.rates:
        yield f"{step:>12,}  {before:>10.3g}  {after:>13.3g}"


def _report(swarm: str, name: str, done: Amended, *, told: bool, json: bool) -> None:
    if json:
        answer = AmendedRun(
            swarm=swarm,
            swarm_name=name,
            amendment=done.amendment,
            step=done.step,
            earliest=done.earliest,
            rates=done.rates,
            told=told,
        )
        print_json(answer)
        return
    say(f"signed amendment {done.amendment.number} of {name}")
    if told:
        say("members are told now; volunteer status says from which step on it holds")
    else:
        say("members are told when this volunteer joins again: volunteer join")
