"""Copying the swarm's model out of the swarm: the newest version that every stage has on disk.

An observer with a throw-away identity: it links to the members, holds no seat and is in nobody's
way. Every replica offers its newest checkpoints; the newest version that all stages offer is
downloaded, each stage striped over its replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nacl.utils
import trio

from client import __version__
from client.errors import ExitCode, UserError
from client.events import Event, EventLog
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import NetEvent
from client.train.blobs import DiskFailed, Download, DownloadFailed
from client.train.bootstrap import dial_first, fetch_manifest
from client.train.engine import Engine
from client.train.handshake import PROTOCOL, Handshake
from client.train.news import News
from protocol.address import Address
from protocol.admission import admission_proof
from protocol.ids import PeerId
from protocol.invite import Invite, SwarmFile, Target
from protocol.view import SwarmView
from protocol.wire.envelope import Signer
from protocol.wire.messages import BlobOffer, BlobQuery, Hello, Message, NoBlob
from protocol.wire.parts import SeatStatus

CLIENT = f"volunteer/{__version__}"
FIND_S = 20.0
DOWNLOAD_S = 3600.0
ATTEMPTS = 5
Progress = Callable[[str], None]


class Observer:
    """Sits on an engine without a seat: collects offers, feeds the download under way."""

    def __init__(self, stages: int) -> None:
        self.view = SwarmView(((),) * stages)
        self.offers: dict[int, dict[int, set[PeerId]]] = {s: {} for s in range(stages)}
        """Donors by stage and version."""
        self.download: Download | None = None
        self.changed = trio.Event()

    def receive(self, peer: PeerId, message: Message, payload: bytes) -> None:
        """Take offers and chunks; nothing else concerns an observer."""
        if self.download is not None:
            self.download.receive(peer, message, payload)
        elif isinstance(message, BlobOffer) and message.stage in self.offers:
            self.offers[message.stage].setdefault(message.version, set()).add(peer)
        elif isinstance(message, NoBlob):
            return
        self._notify()

    def peer_lost(self, peer: PeerId) -> None:
        """A donor is gone."""
        if self.download is not None:
            self.download.lost(peer)

    def update_view(self, view: SwarmView) -> None:
        """Learn who serves what."""
        self.view = view
        self._notify()

    def assign(self, stage: int) -> None:
        """Never happens: an observer does not take part in the matching."""

    def unassign(self, stage: int, reason: str) -> None:
        """Never happens."""

    def allow_training(self) -> None:
        """Nothing to do."""

    def seats(self) -> list[SeatStatus]:
        """Return no seats."""
        return []

    def tick(self, now: float) -> None:
        """Nothing to do."""

    def next_deadline(self) -> float | None:
        """Return None: no deadlines."""
        return None

    def common_versions(self) -> list[int]:
        """Return the versions that every stage offers, newest last."""
        versions = [set(by_version) for by_version in self.offers.values()]
        return sorted(set.intersection(*versions)) if versions else []

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


async def gather(
    target: Target, out_dir: Path, *, dial_timeout_s: float, say: Progress
) -> tuple[SwarmFile, list[Path]]:
    """Download the newest complete checkpoint of a swarm into ``out_dir``.

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
            engine = _engine(network, Signer(seed), swarm, observer, nursery)
            nursery.start_soon(engine.run, seen)
            paths = await _copy_newest(engine, observer, swarm, out_dir, say)
            nursery.cancel_scope.cancel()
    return swarm, paths


async def _find(
    network: Libp2pNetwork, target: Target, timeout_s: float, seen: list[NetEvent]
) -> SwarmFile:
    named = (target,) if isinstance(target, Address) else target.peers
    member = await dial_first(network, named, timeout_s)
    if isinstance(target, SwarmFile):
        return target
    swarm = target.swarm if isinstance(target, Invite) else None
    secret = target.secret if isinstance(target, Invite) else None
    proof = admission_proof(secret, swarm, network.peer_id, member) if secret and swarm else b""
    hello = Hello(PROTOCOL, swarm, CLIENT, proof)
    found = await fetch_manifest(network, member, swarm, hello, seen)
    return SwarmFile(found.manifest, found.encoded, found.signature, named, secret)


def _engine(
    network: Libp2pNetwork,
    signer: Signer,
    swarm: SwarmFile,
    observer: Observer,
    nursery: trio.Nursery,
) -> Engine:
    engine = Engine(
        network, signer, swarm.manifest, swarm.swarm, News(EventLog(), _ignore), nursery
    )
    engine.handshake = Handshake(
        signer.peer, swarm.swarm, CLIENT, swarm.encoded, swarm.signature, engine, swarm.secret
    )
    engine.staging = observer
    return engine


async def _copy_newest(
    engine: Engine, observer: Observer, swarm: SwarmFile, out_dir: Path, say: Progress
) -> list[Path]:
    """Copy the newest common version; a newer one when that is forgotten while we copy."""
    for attempt in range(ATTEMPTS):
        version = await _agree(engine, observer, swarm)
        try:
            return [
                await _copy(engine, observer, stage, version, out_dir, say)
                for stage in range(swarm.manifest.stage_count)
            ]
        except DiskFailed as error:
            raise UserError(
                str(error), "make room, or let TMPDIR name a folder that has it"
            ) from error
        except DownloadFailed as error:
            say(f"version {version}: {error}")
            observer.offers = {stage: {} for stage in observer.offers}
            if attempt == ATTEMPTS - 1:
                raise UserError(str(error), "try again", ExitCode.TEMPORARY) from error
    raise UserError("no version could be copied", "try again", ExitCode.TEMPORARY)


async def _agree(engine: Engine, observer: Observer, swarm: SwarmFile) -> int:
    """Ask for offers until one version is offered by every stage."""
    every = swarm.manifest.policy.checkpoint_every
    deadline = engine.now() + FIND_S
    while engine.now() < deadline:
        for stage in observer.offers:
            for replica in observer.view.serving(stage):
                engine.send(replica.peer, BlobQuery("state", stage, None))
                for version in _elsewhere(observer, stage):
                    engine.send(replica.peer, BlobQuery("state", stage, version))
        with trio.move_on_after(0.5):
            await observer.changed.wait()
        if versions := observer.common_versions():
            return versions[-1]
        await trio.sleep(0.1)
    if empty := observer.view.empty_stages():
        raise UserError(
            f"nobody serves stage {', '.join(map(str, empty))} now", "", ExitCode.TEMPORARY
        )
    raise UserError(
        "no version is on the disks of every stage yet",
        f"try again later: every volunteer saves its stage each {every} steps",
        ExitCode.TEMPORARY,
    )


def _elsewhere(observer: Observer, stage: int) -> set[int]:
    """Versions that other stages offer and this one does not."""
    others = {v for s, offers in observer.offers.items() if s != stage for v in offers}
    return others - observer.offers[stage].keys()


async def _copy(
    engine: Engine, observer: Observer, stage: int, version: int, out_dir: Path, say: Progress
) -> Path:
    path = out_dir / f"stage-{stage}-v{version}.safetensors"
    say(f"downloading stage {stage} at version {version}")
    donors = sorted(observer.offers[stage][version])
    observer.download = Download(engine, BlobQuery("state", stage, version), donors, path)
    try:
        return await observer.download.run(DOWNLOAD_S)
    finally:
        observer.download = None


def _ignore(event: Event) -> None:
    """An observer tells its user only what it downloads."""
