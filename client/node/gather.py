"""Copies the swarm's model out of the swarm: the newest version that every stage has on disk.

An observer with a throw-away identity: it links to the members, holds no seat and delays nobody.
The members' signed records name the complete versions and the members that have them
(``witnesses``). Those are asked, and each stage is downloaded striped over the peers that offer it.
A file that differs from the records is discarded, and its donor is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import nacl.utils
import trio

from client import __version__
from client.compute.checkpoint import examine
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.errors import ExitCode, UserError
from client.events import Event, EventLog
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import NetEvent
from client.train.engine import Engine
from client.train.messaging.admission import Vouching
from client.train.messaging.bootstrap import dial_first, fetch_manifest
from client.train.messaging.handshake import Handshake
from client.train.ports import Copied, StageHolder
from client.train.recovery.witnesses import Candidate, Witnesses
from client.train.reporting.event_sink import EventSink
from client.train.transfer.blobs import DiskFailed, Download, DownloadFailed
from client.train.transfer.data_search import TOKENIZER
from client.train.transfer.inventory import checked
from model_zoo.specs.data import DataSpec
from protocol.address import Address
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.invite import Invite, SwarmFile, Target
from protocol.manifest import FIRST_SAVED
from protocol.recovery.stored import STORED, Stored, parse_stored
from protocol.view import SwarmView
from protocol.vouching.register import KeptRegister, Register
from protocol.wire.envelope import Signer
from protocol.wire.messages import BlobOffer, BlobQuery

CLIENT = f"volunteer/{__version__}"
FIND_S = 20.0
ASK_S = 0.5
MORE_S = 0.1
"""Extra wait for others that have the same or a better version."""
DOWNLOAD_S = 3600.0
TOKENIZER_S = 20.0
"""Seconds without a part of it after which another member is asked for the tokenizer."""
TOKENIZER_FILE = "tokenizer.json"
ATTEMPTS = 5
Progress = Callable[[str], None]
Lend = Callable[[SwarmFile, PeerId], KeptRegister]
"""Vouches for a key of our own that only observes."""


class Observer(StageHolder):
    """Sits on an engine without a seat: collects offers, feeds the download under way."""

    def __init__(self, stages: int) -> None:
        super().__init__(stages)
        self.wanted: list[Candidate] = []
        """Versions that are asked for now, the best first."""
        self.offers: dict[tuple[int, int], set[PeerId]] = {}
        """By stage and version: who of those asked offers it."""
        self.download: Download | None = None
        self.tokenizer_bytes = 0
        """Size of the tokenizer that is copied; offers of other sizes are ignored."""
        self.changed = trio.Event()

    def copied(self, peer: PeerId, message: Copied, payload: bytes) -> None:
        """Take an offer or a chunk: ``message`` of ``peer``, with its ``payload``."""
        other = isinstance(message, BlobOffer) and message.size_bytes != self.tokenizer_bytes
        if self.download is not None and not (message.kind == "data" and other):
            self.download.receive(peer, message, payload)
        elif isinstance(message, BlobOffer) and self._is_awaited(peer, message):
            self.offers.setdefault((message.stage, message.version), set()).add(peer)
        else:
            return
        self._notify()

    def want(self, candidates: list[Candidate]) -> None:
        """Wait for offers of these from now on; other offers are forgotten."""
        self.wanted = candidates
        named = {
            (stage, one.version): set(donors)
            for one in candidates
            for stage, donors in enumerate(one.donors)
        }
        self.offers = {
            place: peers & named[place] for place, peers in self.offers.items() if place in named
        }

    def whole(self) -> Candidate | None:
        """Return the best version that is offered for every stage."""
        for one in self.wanted:
            if all(self.offers.get((s, one.version)) for s in range(len(one.donors))):
                return one
        return None

    def _is_awaited(self, peer: PeerId, offer: BlobOffer) -> bool:
        return offer.kind == "state" and any(
            one.version == offer.version
            and offer.stage < len(one.donors)
            and peer in one.donors[offer.stage]
            for one in self.wanted
        )

    def peer_lost(self, peer: PeerId) -> None:
        """A donor was lost."""
        if self.download is not None:
            self.download.lost(peer)

    def update_view(self, view: SwarmView) -> None:
        """Note the replicas of every stage."""
        super().update_view(view)
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


async def gather(
    target: Target, out_dir: Path, *, dial_timeout_s: float, say: Progress, lend: Lend
) -> tuple[SwarmFile, list[Path]]:
    """Download the newest complete checkpoint of a swarm.

    Args:
        target: an invite, a swarm file or an address.
        out_dir: folder for the files; the swarm's tokenizer comes to ``tokenizer.json`` there, if
            it has one and a member has it.
        dial_timeout_s: limit for reaching a member.
        say: gets progress in words.
        lend: vouches for our observing key, in a swarm whose members vouch.

    Returns:
        The swarm, and one checkpoint file per stage in pipeline order.

    Raises:
        UserError: nobody answers, or no version is offered by every stage.
    """
    seed = nacl.utils.random(32)
    async with open_network(seed, [("0.0.0.0", 0)]) as network:
        seen: list[NetEvent] = []
        swarm = await _find(network, target, dial_timeout_s, seen)
        async with trio.open_nursery() as nursery:
            observer = Observer(swarm.manifest.stage_count)
            engine = _engine(network, Signer(seed), swarm, observer, nursery, lend)
            nursery.start_soon(engine.run, seen)
            paths = await _copy_newest(engine, observer, swarm, out_dir, say)
            if swarm.manifest.data.tokenizer is not None:
                await _copy_tokenizer(engine, observer, swarm.manifest.data, out_dir, say)
            nursery.cancel_scope.cancel()
    return swarm, paths


async def read_swarm(target: Target, *, dial_timeout_s: float) -> SwarmFile:
    """Return a swarm's description, with the members that ``target`` names; it reveals nothing of
    ours.

    Raises:
        UserError: nobody answers, or the swarm is not the one that was asked for.
    """
    async with open_network(nacl.utils.random(32), [("0.0.0.0", 0)]) as network:
        return await _find(network, target, dial_timeout_s, [])


async def _find(
    network: Libp2pNetwork, target: Target, timeout_s: float, seen: list[NetEvent]
) -> SwarmFile:
    named = (target,) if isinstance(target, Address) else target.peers
    member = await dial_first(network, named, timeout_s)
    if isinstance(target, SwarmFile):
        return target
    swarm = target.swarm if isinstance(target, Invite) else None
    found = await fetch_manifest(network, member, swarm, CLIENT, seen)
    if isinstance(target, Address):
        return replace(found, peers=named)
    return replace(found, peers=named, ticket=target.ticket)


def _engine(
    network: Libp2pNetwork,
    signer: Signer,
    swarm: SwarmFile,
    observer: Observer,
    nursery: trio.Nursery,
    lend: Lend,
) -> Engine:
    engine = Engine(
        network, signer, swarm.manifest, swarm.swarm, EventSink(EventLog(), _ignore), nursery
    )
    vouching = None
    if swarm.manifest.policy.private:
        kept = lend(swarm, signer.peer)
        register = Register(signer, swarm.manifest.founder, swarm.swarm, kept)
        linked, greet = lambda: engine.handshake.admitted, engine.greet_all
        vouching = Vouching(
            register, None, engine, engine.wall, _drop, linked, greet, engine.expel, _drop
        )
    engine.handshake = Handshake(
        signer.peer, swarm.swarm, CLIENT, swarm.encoded, swarm.signature, engine, vouching
    )
    engine.held_stages = observer
    return engine


async def _copy_newest(
    engine: Engine, observer: Observer, swarm: SwarmFile, out_dir: Path, say: Progress
) -> list[Path]:
    """Copy the best version, or another one if that is deleted meanwhile or proves false."""
    liars = set[PeerId]()
    for attempt in range(ATTEMPTS):
        chosen = await _agree(engine, observer, swarm, liars)
        try:
            return [
                await _copy(engine, observer, swarm, stage, chosen, out_dir, say, liars)
                for stage in range(swarm.manifest.stage_count)
            ]
        except DiskFailed as error:
            next_step = "free space, or set TMPDIR to a folder on another disk"
            raise UserError(str(error), next_step) from error
        except DownloadFailed as error:
            say(f"version {chosen.version}: {error}")
            observer.want([])
            if attempt == ATTEMPTS - 1:
                raise UserError(str(error), "try again", ExitCode.TEMPORARY) from error
    raise UserError("no version could be copied", "try again", ExitCode.TEMPORARY)


async def _agree(
    engine: Engine, observer: Observer, swarm: SwarmFile, liars: set[PeerId]
) -> Candidate:
    """Ask the claimed owners of the best versions until one version is offered completely."""
    every, stages = swarm.manifest.policy.checkpoint_every, swarm.manifest.stage_count
    first = min(every, FIRST_SAVED)
    deadline = engine.now() + FIND_S
    while engine.now() < deadline:
        stored = _stored_records(engine, stages)
        observer.want(Witnesses(stored, observer.view, frozenset(liars)).candidates())
        for one in observer.wanted:
            for stage, donors in enumerate(one.donors):
                for donor in set(donors) - observer.offers.get((stage, one.version), set()):
                    engine.send(donor, BlobQuery("state", stage, one.version))
        with trio.move_on_after(ASK_S):
            while observer.whole() is None:
                await observer.changed.wait()
        await trio.sleep(MORE_S)
        if (whole := observer.whole()) is not None:
            return whole
    if empty := observer.view.empty_stages():
        raise UserError(
            f"nobody serves stage {', '.join(map(str, empty))} now", "", ExitCode.TEMPORARY
        )
    raise UserError(
        "no version is on the disks of every stage yet",
        f"try again later: every volunteer saves its stage after {first} steps, and each {every}",
        ExitCode.TEMPORARY,
    )


def _stored_records(engine: Engine, stages: int) -> dict[PeerId, Stored]:
    found = {}
    for held in engine.membership.records:
        if held.envelope.kind == STORED:
            with suppress(RemoteProtocolError):  # refused on arrival already
                body = held.record.body
                found[held.signer] = parse_stored(body, held.record.key, held.signer, stages)
    return found


async def _copy(
    engine: Engine,
    observer: Observer,
    swarm: SwarmFile,
    stage: int,
    chosen: Candidate,
    out_dir: Path,
    say: Progress,
    liars: set[PeerId],
) -> Path:
    version = chosen.version
    path = out_dir / f"stage-{stage}-v{version}.safetensors"
    say(f"downloading stage {stage} at version {version}")
    donors = sorted(observer.offers[stage, version] - liars)
    query = BlobQuery("state", stage, version)
    download = observer.download = Download(engine, query, donors, path)
    try:
        await download.run(DOWNLOAD_S)
    finally:
        observer.download = None
    try:
        info, _ = await trio.to_thread.run_sync(examine, path)
        checked(info, swarm.swarm, swarm.manifest.stage_count)
        named = chosen.hashes[stage].hex()
        if (info.stage, info.version, info.hash) != (stage, version, named):
            raise CheckpointError("its hash differs from the one that its holders announced")
    except CheckpointUnreadable as error:  # our own disk failed: no donor lied
        path.unlink(missing_ok=True)
        raise DiskFailed(f"stage {stage}: {error}") from error
    except CheckpointError as error:
        liars.update(download.sources)
        path.unlink(missing_ok=True)
        raise DownloadFailed(f"stage {stage}: {error}") from error
    return path


async def _copy_tokenizer(
    engine: Engine, observer: Observer, data: DataSpec, out_dir: Path, say: Progress
) -> None:
    """Copy the swarm's tokenizer from any member that has it; each is asked by itself."""
    if (brought := data.tokenizer) is None:
        return
    observer.tokenizer_bytes = brought.size_bytes
    path = out_dir / TOKENIZER_FILE
    for donor in sorted(engine.handshake.admitted):
        query = BlobQuery("data", 0, TOKENIZER)
        download = observer.download = Download(engine, query, [donor], path)
        try:
            await download.run(TOKENIZER_S)
        except DownloadFailed:
            continue
        finally:
            observer.download = None
        if blake2b(path.read_bytes(), digest_size=32).hexdigest() == brought.digest:
            return
        path.unlink()
    say("no member that could be reached has the swarm's tokenizer")


def _drop(_: object) -> None:
    """An observer keeps nothing; what it misses for being refused, it says itself."""


def _ignore(event: Event) -> None:
    """An observer reports only its downloads to its user."""
