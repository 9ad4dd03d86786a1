"""Found a swarm: write its signed .swarm file and print an invite.

Group: the swarm

$ volunteer create --preset tiny --out x.swarm  # found a small swarm; give x.swarm to others

Tokens of the training text are kept in the founder's home, from where members get them.
Afterwards the founder is a volunteer like any other; the invite names its address so that others
find a member.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from client.cli.founding.options import RUN, ModelChoices, OptimizerChoices, RunChoices
from client.cli.founding.outlook import outlook
from client.cli.founding.tokenizing import tokenized
from client.cli.reach.home import find_home, founder_addresses
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.mixture_text import times_read
from client.cli.terminal.output import check_output, say
from client.cli.terminal.swarm_text import introduction
from client.errors import ExitCode, UsageError, system_errors
from client.inviting import ticket_note
from client.store.atomic import write_atomic
from client.store.paths import Kept
from client.store.persisted import Persisted
from client.store.swarms import SwarmStore
from client.store.texts import TextStore, keep_folder
from client.views.words import size as human_bytes
from protocol.address import Address
from protocol.ids import PeerId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest
from protocol.vouching.register import KeptRegister, Register
from protocol.vouching.ticket import MAX_USES, TICKET_BYTES
from protocol.wire.envelope import Signer

if TYPE_CHECKING:
    from client.cli.founding.manifest import Founding  # which imports numpy
    from client.plan.model import Machine


@answered
def create(
    *,
    run: RunChoices = RunChoices(),  # noqa: B008  (frozen)
    model: ModelChoices = ModelChoices(),  # noqa: B008
    optimizer: OptimizerChoices = OptimizerChoices(),  # noqa: B008
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), group=RUN)] = None,
    announce: Annotated[tuple[str, ...], Parameter(group=RUN)] = (),
    force: Annotated[bool, Parameter(group=RUN)] = False,
) -> Answer:
    """Found a swarm: write its signed .swarm file and print an invite.

    Args:
        out: File to write (default: the swarm's name and .swarm).
        announce: Address where others reach you, such as /ip4/203.0.113.7/tcp/4001; may be repeated
            (default: this machine's address and the configured port).
        force: Replace the file if it is there.
    """
    home = find_home({"announce": announce or None})
    signer = home.signer()
    addresses = founder_addresses(home.settings, signer.peer)
    path = out or default_file(run.swarm_name)
    check_output(path, force=force)

    from client.cli.founding.importing import imported_model, with_own_tokenizer
    from client.cli.planning.machines import this_machine

    store = TextStore(home.folders.texts)
    with imported_model(run, model):  # refused before its tokenizer is used, which may take long
        run = with_own_tokenizer(run)
    here = partial(this_machine, home, run.compute_dtype)
    founding, text = _found(signer.peer, run, model, optimizer, store, here)
    swarm = sign(founding.manifest, signer, addresses)
    try:  # its own invite, or its name, is enough to join it
        SwarmStore(home.folders.swarms).remember(swarm)
    except OSError as error:  # the founder has the file
        where = f"{home.folders.swarms}: {error.strerror}"
        say(f"note: cannot save the swarm in {where}; join with the file")
    if swarm.manifest.policy.private:
        swarm = with_ticket(swarm, signer, home.folders.of(swarm.swarm, Kept.VOUCHES))
    write_swarm_file(path, swarm)
    notes = list(_notes(swarm, path, text, founding))
    return Answer(_created(swarm, path, text, founding), str(swarm.invite), notes)


def default_file(name: str) -> Path:
    """Return the file of a swarm's name in the current folder.

    Raises:
        UserError: the name would lead to another folder, or is no name of a file.
    """
    if name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        problem = f"{name!r} cannot be a file name"
        next_step = "choose a --name without / and without a dot at its start, or a file with --out"
        raise UsageError(problem, next_step)
    return Path(f"{name}.swarm")


def _found(
    founder: PeerId,
    run: RunChoices,
    model: ModelChoices,
    optimizer: OptimizerChoices,
    store: TextStore,
    machine: Callable[[], Machine],
) -> tuple[Founding, Path]:
    """Make tokens of the text, and build the manifest on them; see ``found_swarm``.

    Returns:
        The manifest with its facts, and where the tokens are kept: in the founder's ``store``, or
        where the user has them, if that is on another disk.

    Raises:
        UserError: as ``found_swarm``, or the disk has no room for the tokens.
    """
    from client.cli.founding.manifest import found_swarm

    with tokenized(run, store.folder) as chosen:
        founding = found_swarm(founder, chosen, model, optimizer, store, machine)
        data, made = founding.manifest.data, Path(chosen.data).expanduser().absolute()
        problem = f"cannot keep the tokens in {store.folder}"
        next_step = "free space, or set data_dir to another disk"
        with system_errors(problem, next_step, ExitCode.CONFIG):
            path = keep_folder(made, data, store)
            store.remember(data.digest, made if chosen == run else None)
    return founding, path


def sign(manifest: Manifest, signer: Signer, addresses: tuple[Address, ...]) -> SwarmFile:
    """Return the swarm file, signed by the founder, whose addresses have its peer id."""
    encoded, signature = signer.sign_manifest(manifest)
    return SwarmFile(manifest, encoded, signature, addresses)


def with_ticket(swarm: SwarmFile, signer: Signer, path: Path) -> SwarmFile:
    """Return the swarm with a ticket, which its founder redeems; kept in the founder's home.

    Args:
        swarm: a private one.
        signer: its founder.
        path: where the founder keeps its tickets.

    Raises:
        UserError: the disk refuses.
    """
    register = Register(signer, signer.peer, swarm.swarm)
    ticket = register.draw_ticket(secrets.token_bytes(TICKET_BYTES), MAX_USES, time.time())
    problem, next_step = f"cannot keep the invite in {path}", "make room: volunteer cache --prune"
    with system_errors(problem, next_step, ExitCode.CONFIG):
        Persisted(path, KeptRegister).save(register.kept)
    say(ticket_note(ticket))
    return replace(swarm, ticket=ticket.secret)


def write_swarm_file(path: Path, swarm: SwarmFile) -> None:
    """Write the ``.swarm`` file, readable by its owner alone when it carries a ticket.

    Raises:
        UserError: the folder cannot be written.
    """
    with system_errors(f"cannot write {path}", "choose another --out"):
        write_atomic(path, str(swarm).encode(), 0o600 if swarm.ticket else 0o644)


def _created(swarm: SwarmFile, path: Path, text: Path, founding: Founding) -> dict[str, object]:
    manifest = swarm.manifest
    return {
        "swarm": swarm.swarm,
        "name": manifest.name,
        "invite": str(swarm.invite),
        "file": str(path),
        "text": str(text),  # the founder's copy of the training data
        "layers_per_stage": manifest.layers_per_stage,
        "parameters": sum(stage.parameters for stage in manifest.stages),
        "warnings": founding.warnings,
        "averaging": founding.averaging,
        "epochs": times_read(manifest, manifest.steps),  # how often the run reads its data
        "seconds": founding.seconds,  # of the run with volunteers like this machine; None: unknown
    }


def _notes(swarm: SwarmFile, path: Path, text: Path, founding: Founding) -> Iterator[str]:
    manifest = swarm.manifest
    yield from (f"note: {warning}" for warning in founding.warnings)
    yield from introduction(manifest, swarm.swarm)
    yield from (*founding.averaging, *outlook(manifest, founding.seconds))
    size = human_bytes(manifest.data.size_bytes)
    yield f"the tokens, {size}, are in {text}"
    yield "  leave them there: members of stage 0 copy the parts that they need from you"
    yield f"wrote {path}; join as the first volunteer: volunteer join --swarm {quote(str(path))}"
    yield "others join with this invite, or with a copy of the file:"
