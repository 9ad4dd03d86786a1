"""Gets the model for ``sample`` and ``export``: from checkpoints on disk, else from the swarm."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import trio

from client.cli.models.model_source import Trained, kept_tokenizer, load_newest, read_tokenizer
from client.cli.reach.home import Home
from client.cli.reach.target import with_manifest
from client.cli.terminal.output import say
from client.control.amended import amendment_views
from client.errors import ExitCode, UserError, system_errors
from client.node.gather import TOKENIZER_FILE, gather
from client.store.last_run import RunRecord
from client.store.paths import HOME_VARIABLE, Entry, Kept, create_folders
from client.store.persisted import Persisted
from client.store.texts import TextStore
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.invite import SwarmFile, Target
from protocol.vouching.register import KeptRegister, Register


def newest_model(home: Home, target: Target, folders: Sequence[Path]) -> Trained:
    """Return the newest complete model: from ``folders``, else this volunteer's, else the swarm's.

    Raises:
        UserError: no version is complete anywhere, or nobody answers.
    """
    trained = _newest(home, target, folders)
    known = Persisted(home.folders.of(trained.swarm, Kept.AMENDMENTS), KeptAmendments).peek()
    amendments = Amendments(trained.manifest, trained.swarm, known)
    trained = replace(trained, amendments=amendment_views(amendments))
    kept = kept_tokenizer(trained.manifest, TextStore(home.folders.texts))
    return replace(trained, tokenizer=kept) if kept else trained


def needed_tokenizer(trained: Trained) -> Bpe | None:
    """Return the tokenizer of a model; None: its tokens are bytes.

    Raises:
        UserError: it is not at hand.
    """
    data = trained.manifest.data
    if data.tokenizer is None:
        return None
    if trained.tokenizer is None:
        raise UserError(
            "this machine does not have the swarm's tokenizer",
            "leave --checkpoint out while a volunteer of stage 0 runs, or give the tokens that "
            "this volunteer trains on: volunteer join --data FOLDER",
            ExitCode.TEMPORARY,
        )
    return trained.tokenizer


def file_tokenizer(trained: Trained) -> Bpe | None:
    """Return what is written as ``tokenizer.json`` beside a model, also where tokens are bytes;
    None: it is not at hand."""
    return trained.tokenizer if trained.manifest.data.tokenizer is not None else byte_tokenizer()


def _newest(home: Home, target: Target, folders: Sequence[Path]) -> Trained:
    store = TextStore(home.folders.texts)
    if folders:
        return load_newest(with_manifest(target), folders, store)
    if isinstance(target, SwarmFile):
        try:
            return load_newest(target, [home.folders.of(target.swarm, Kept.CHECKPOINTS)], store)
        except UserError as error:
            if _nobody_to_ask(home, target):
                next_step = "start it: volunteer join; a version is saved after its first steps"
                words = "no volunteer runs here, and no other member is known"
                raise UserError(f"{error.message}; {words}", next_step, error.exit_code) from error
            say("this volunteer does not hold every stage; asking the swarm")
    return _from_the_swarm(home, target)


def _nobody_to_ask(home: Home, swarm: SwarmFile) -> bool:
    """Whether the volunteer of this home is the only member that is known, and does not run."""
    own, run = home.known_peer(), RunRecord(home.folders.data).running
    return run is None and all(address.peer == own for address in swarm.peers)


def _from_the_swarm(home: Home, target: Target) -> Trained:
    with _gathered(home.folders.data) as folder:

        async def fetch() -> SwarmFile:
            timeout_s, lend = home.settings.dial_timeout_s, partial(lent, home)
            swarm, _ = await gather(target, folder, dial_timeout_s=timeout_s, say=say, lend=lend)
            return swarm

        trained = load_newest(trio.run(fetch), [folder], TextStore(home.folders.texts))
        found = read_tokenizer(folder / TOKENIZER_FILE, trained.manifest.data)
        return replace(trained, tokenizer=found)


@contextmanager
def _gathered(data: Path) -> Iterator[Path]:
    """Yield a folder for a copy of the model; it is removed afterwards.

    It is below the data folder, because the system's temporary one is in memory on many machines.
    """
    place = data / Entry.GATHERED
    next_step = f"make it writable, or set {HOME_VARIABLE} to another folder"
    with system_errors(f"cannot write {place}", next_step):
        create_folders(place)
        folder = tempfile.TemporaryDirectory(dir=place)
    with folder as name:
        yield Path(name)


def lent(home: Home, swarm: SwarmFile, key: PeerId) -> KeptRegister:
    """Vouch for the key with which this program looks on, as the volunteer of this home.

    Args:
        home: of the volunteer.
        swarm: one whose members vouch for those they invite.
        key: for whom.

    Raises:
        UserError: the volunteer does not belong to the swarm.
    """
    path = home.folders.of(swarm.swarm, Kept.VOUCHES)
    kept = Persisted(path, KeptRegister).peek() or KeptRegister()
    register = Register(home.signer(), swarm.manifest.founder, swarm.swarm, kept)
    try:
        chain = register.lend(key, time.time())
    except LocalProtocolError as error:
        words = f"{swarm.manifest.name} is entered by invitation: {error}"
        raise UserError(words, "join it first: volunteer join", ExitCode.REFUSED) from error
    return msgspec.structs.replace(kept, chain=chain, tickets=())
