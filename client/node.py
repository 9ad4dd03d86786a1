"""The node: the one place where network, worker, machines and control socket are wired together.

A node never imports torch; its worker is a child process. It ends when it is told to stop, when the
run is complete (if asked to end then), or with an error that says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from client import __version__
from client.config import Settings
from client.control.matches import MatchesSnapshot
from client.control.server import serve_control
from client.control.snapshot import EventView, LeavingView, Snapshot
from client.control.sockets import SocketFolderError, socket_path
from client.errors import ExitCode, UserError
from client.events import Event, EventLog
from client.net.errors import ListenError, NetworkError, PortInUse
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import NetEvent
from client.store.checkpoints import CheckpointFolder
from client.store.identity import IdentityLock, ensure_identity, load_identity
from client.store.paths import Folders, find_folders, make_private
from client.store.swarms import SwarmStore
from client.train.bootstrap import find_swarm
from client.train.buddies import Buddies
from client.train.capacity import (
    Capacity,
    advert,
    kept_line,
    measured_capacity,
    usable_memory_bytes,
)
from client.train.engine import Engine
from client.train.finishing import Finishing
from client.train.handshake import Handshake
from client.train.history import History
from client.train.inventory import checkpoint_folder, offer_stored
from client.train.matches import describe_matching
from client.train.news import News
from client.train.opening import check_fits
from client.train.presence import Presence
from client.train.staging import Staging
from client.train.status import leaving_views, take_snapshot
from client.train.taking import Folders as StageFolders
from client.train.taking import Terms
from client.train.views import hosts
from protocol.address import parse_address, parse_peer_address
from protocol.ids import PeerId
from protocol.invite import SwarmFile, Target
from protocol.wire.envelope import Signer

CLIENT = f"volunteer/{__version__}"
CHECK_S = 0.2
LINGER_S = 30.0
"""A node that ends with the run stays so long for neighbours that still close their last step."""
FINISH_S = 240.0
"""For handing over, saving, and a copy elsewhere; each of these is bounded, too."""
STOP_S = 15.0
"""For the goodbye."""
USUAL_SEATS = 2
"""The home and a second stage beside it; whether memory holds both, the matching reckons."""


@dataclass(frozen=True)
class NodeOptions:
    """How a node is started."""

    settings: Settings
    target: Target
    manifest_bytes: bytes | None = None
    manifest_signature: bytes | None = None
    data_path: Path | None = None
    exit_when_done: bool = False


async def run_node(
    options: NodeOptions, *, on_event: Callable[[Event], None], stop: trio.Event
) -> ExitCode:
    """Run a node until it is done or ``stop`` is set.

    Raises:
        UserError: something the user can mend; carries the exit code.
    """
    data_dir = options.settings.data_dir
    folders = find_folders(data=Path(data_dir).absolute() if data_dir else None)
    signer = ensure_identity(make_private(folders.data))
    seed = load_identity(folders.data)
    if seed is None:
        raise UserError(f"the identity in {folders.data} vanished", "start again")
    with IdentityLock(folders.data):
        return await _run(options, folders, signer, seed, on_event, stop)


async def _run(
    options: NodeOptions,
    folders: Folders,
    signer: Signer,
    seed: bytes,
    on_event: Callable[[Event], None],
    stop: trio.Event,
) -> ExitCode:
    settings = options.settings
    async with AsyncExitStack() as stack:
        listen = [(settings.listen_host, settings.listen_port)]
        try:
            network = await stack.enter_async_context(open_network(seed, listen))
        except PortInUse as error:
            raise UserError(str(error), "see --listen-port", ExitCode.TEMPORARY) from error
        except (ListenError, NetworkError) as error:
            raise UserError(str(error), "see --listen-host", ExitCode.CONFIG) from error
        store = SwarmStore(folders.swarms)
        seen: list[NetEvent] = []
        find = partial(find_swarm, network, options.target, store, signer.peer, CLIENT, seen)
        swarm = await _with_stop(find, stop, settings.dial_timeout_s)
        if swarm is None:
            return ExitCode.OK
        store.remember(swarm)
        node = Node(options, folders, signer, network, swarm, store, on_event, seen)
        return await node.run(stop)


class _Stopped(Exception):
    """The user stopped the node before it had found its swarm."""


async def _with_stop(
    find: Callable[..., object], stop: trio.Event, *arguments: object
) -> SwarmFile | None:
    """Run ``find`` unless ``stop`` comes first."""
    found: list[SwarmFile] = []
    failure: UserError | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            found.append(await find(*arguments))  # type: ignore[misc]
        except UserError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found[0] if found else None


class Node:
    """A running node of one swarm; lends itself to the control server as its ``Provider``."""

    def __init__(
        self,
        options: NodeOptions,
        folders: Folders,
        signer: Signer,
        network: Libp2pNetwork,
        swarm: SwarmFile,
        store: SwarmStore,
        on_event: Callable[[Event], None],
        seen: list[NetEvent],
    ) -> None:
        self._options, self._folders, self._signer = options, folders, signer
        self._network, self._swarm, self._store = network, swarm, store
        self._news = News(EventLog(), on_event)
        self._started = time.monotonic()
        self._stop_asked = trio.Event()
        self._capacity: Capacity | None = None
        self._seen = seen
        self._engine: Engine
        self._history: History
        self._staging: Staging
        self._folder: CheckpointFolder

    # --- what the control server may ask -----------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Describe the node now."""
        stopping = self._stop_asked.is_set()
        return take_snapshot(self._engine, self._staging, self._started, stopping)

    def matches(self, everything: bool) -> MatchesSnapshot:
        """Describe the matching now."""
        return describe_matching(self._engine, self._staging.seats(), everything)

    def events(self, since: int) -> list[EventView]:
        """Return the remembered events after ``since``."""
        return [EventView.of(entry) for entry in self._news.log.since(since).entries]

    def stop(self) -> None:
        """Begin to leave in order."""
        self._stop_asked.set()

    def finish(self) -> list[LeavingView]:
        """Begin to leave in order; return what becomes of our stages."""
        self.stop()
        return leaving_views(self._staging.view, self._signer.peer)

    # --- running -----------------------------------------------------------------------------

    async def run(self, stop: trio.Event) -> ExitCode:
        """Run until done or stopped."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            self._wire(nursery)
            try:
                await self._serve(stop, nursery)
            except SocketFolderError as error:
                failure = UserError(str(error), "", ExitCode.TEMPORARY)
            finally:
                self._engine.shelf.close()
                nursery.cancel_scope.cancel()
        failure = failure or self._staging.failure
        if failure is not None:
            raise failure
        return ExitCode.OK

    async def _serve(self, stop: trio.Event, nursery: trio.Nursery) -> None:
        path = socket_path(self._folders.runtime, self._swarm.swarm, self._signer.peer)
        async with serve_control(path, self):
            nursery.start_soon(self._forward_stop, stop)
            nursery.start_soon(self._engine.run, self._seen)
            nursery.start_soon(self._staging.run)
            nursery.start_soon(self._history.run)
            nursery.start_soon(self._offer_copies)
            nursery.start_soon(self._enter)
            await self._until_over()
            await self._leave()

    def _wire(self, nursery: trio.Nursery) -> None:
        swarm, me = self._swarm, self._signer.peer
        engine = Engine(
            self._network,
            self._signer,
            swarm.manifest,
            swarm.swarm,
            self._news,
            nursery,
        )
        engine.handshake = Handshake(
            me, swarm.swarm, CLIENT, swarm.encoded, swarm.signature, engine, swarm.secret
        )
        engine.agreements.keep_in(self._folders.agreements(swarm.swarm))
        folder = checkpoint_folder(self._folders.checkpoints(swarm.swarm), self._options.settings)
        history = engine.history = self._history = History(
            engine,
            me,
            swarm.manifest,
            swarm.swarm,
            engine.membership.contacts,
            folder,
            engine.shelf,
        )
        data = swarm.manifest.data
        source = str(self._options.data_path) if self._options.data_path else data.source
        terms = Terms(
            hub=engine,
            news=self._news,
            me=me,
            manifest=swarm.manifest,
            swarm=swarm.swarm,
            settings=self._options.settings,
            capacity=self._known_capacity,
            folders=StageFolders(
                checkpoints=self._folders.checkpoints(swarm.swarm),
                snapshots=self._folders.data / "snapshots",
                data=self._folders.data / "texts" / f"{data.digest}.bin",
            ),
            data_source=source,
            shelf=engine.shelf,
            history=history,
        )
        staging = Staging(engine, terms)
        staging.buddies = Buddies(
            engine,
            me,
            swarm.manifest,
            swarm.swarm,
            folder,
            engine.shelf,
            engine.history,
            view=lambda: staging.view,
            held=lambda: staging.tenancies.keys(),
            places=partial(hosts, engine.membership.roster),
        )
        self._folder = folder
        engine.staging = history.seats = staging
        self._engine, self._staging = engine, staging

    async def _offer_copies(self) -> None:
        """Offer the checkpoints on our disk; then keep copies of our neighbours' as well."""
        manifest, engine = self._swarm.manifest, self._engine
        stages, swarm = manifest.stage_count, self._swarm.swarm
        await offer_stored(self._folder, swarm, stages, engine.shelf, engine)
        if self._staging.buddies is not None:
            await self._staging.buddies.run()

    def _known_capacity(self) -> Capacity:
        if self._capacity is None:
            raise RuntimeError("a stage is only assigned after our capacity was advertised")
        return self._capacity

    async def _enter(self) -> None:
        """Measure what we can do and enter the swarm with it."""
        settings = self._options.settings
        worker = await self._staging.worker_ready()
        self._capacity = await measured_capacity(worker, settings, self._folders.data)
        try:
            check_fits(self._swarm.manifest, usable_memory_bytes(self._capacity, settings))
        except UserError as error:
            self._staging.failure = error
            return
        addresses = announced(settings, self._signer.peer) or self._network.addresses
        seats = settings.seats or USUAL_SEATS
        line, now = kept_line(self._folders.data), int(time.time())
        own = advert(self._capacity, settings, tuple(addresses), seats, now, line)
        problem = await self._staging.text_problem()
        if problem and self._options.data_path is not None:
            next_step = "give --data the swarm's text, or leave it out to copy it from a member"
            self._staging.failure = UserError(problem, next_step, ExitCode.CONFIG)
            return
        self._engine.describe(own, has_text=not problem)
        await Presence(self._engine, settings, self._folders.data).run()

    async def _forward_stop(self, stop: trio.Event) -> None:
        await stop.wait()
        self._stop_asked.set()

    async def _until_over(self) -> None:
        """Wait for the user, a failure, or the end of the run."""
        remembered = 0.0
        while not self._stop_asked.is_set() and self._staging.failure is None:
            if self._options.exit_when_done and await self._complete():
                return
            if trio.current_time() > remembered + 10:
                remembered = trio.current_time()
                self._meet()
            with trio.move_on_after(CHECK_S):
                await self._stop_asked.wait()

    async def _complete(self) -> bool:
        """Whether our part is done and every stage has closed its last step."""
        drivers, steps = self._staging.drivers(), self._swarm.manifest.steps
        if not drivers or not all(driver.seat.finished for driver in drivers):
            return False
        with trio.move_on_after(LINGER_S):
            while not self._stop_asked.is_set():
                if min(self._staging.newest) >= steps:
                    break
                await trio.sleep(CHECK_S)
        return True

    def _meet(self) -> None:
        """Remember where members listen, for the next start."""
        roster = self._engine.membership.roster
        addresses: Mapping[PeerId, tuple[str, ...]] = {
            peer: roster.addresses(peer) for peer in self._network.statistics().peers
        }
        met = [text for texts in addresses.values() for text in texts]
        parsed = []
        for text in met:
            with suppress(ValueError):
                parsed.append(parse_peer_address(text))
        try:
            self._store.meet(self._swarm.swarm, parsed)
        except OSError:
            return  # a full disk must not stop training; the invite still works

    async def _leave(self) -> None:
        """Hand over and save what we hold, then say goodbye: until then we do our part."""
        self._stop_asked.set()
        self._history.end()
        staging = self._staging
        finishing = Finishing(self._engine, self._signer.peer, staging, staging.buddies)
        with trio.move_on_after(FINISH_S):
            finishing.prepare()
            self._engine.withdraw()
            await finishing.run()
        self._engine.leave()
        with trio.move_on_after(STOP_S):
            for peer in self._network.statistics().peers:
                await self._network.disconnect(peer, "leaving")


def announced(settings: Settings, me: PeerId) -> list[str]:
    """Return the addresses the user wants advertised, each with our peer id behind it."""
    return [str(replace(parse_address(text), peer=me)) for text in settings.announce]
