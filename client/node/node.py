"""The node: the one place where network, worker, machines and control socket are wired together.

A node never imports torch; its worker is a child process. It ends on ``stop``, when the run is
complete (if asked to end then), or with an error that says what to do.
"""

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import nacl.utils
import trio
from msgspec import structs

from client.config import LIVE, SETTINGS, Settings
from client.control.amended import ONLY_THE_FOUNDER, amended
from client.control.curve import LossCurve
from client.control.methods import ControlApi, Impossible
from client.control.server import serve_control
from client.control.snapshot import (
    WHEN_DONE,
    Amended,
    InvitedMember,
    InviteView,
    MatchesView,
    PauseView,
    Snapshot,
)
from client.control.sockets import listening_sockets, socket_path
from client.control.updates import MAX_POINTS, Curve, StepPoint, Update
from client.errors import ExitCode, UserError
from client.events import Event
from client.inviting import NEEDS_VOUCHING, fresh, notes, ticket_note
from client.net.connection_limiter import HostLimits
from client.net.errors import ListenError, NetworkError, PortInUse
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import NetEvent
from client.net.pacing import Rates
from client.node.matches import describe_matching
from client.node.relaying import Relaying
from client.node.status import limits_view, take_snapshot
from client.node.trust import member_of
from client.quantities import plural
from client.store.checkpoints import CheckpointFolder
from client.store.identity import ensure_identity, load_identity
from client.store.last_run import RunRecord
from client.store.paths import Folders, Kept, find_folders, make_private
from client.store.persisted import Persisted
from client.store.swarms import SwarmStore
from client.train.engine import Engine
from client.train.machine.capacity import advert
from client.train.machine.heap import keep_heap_small
from client.train.machine.limiting import Limiting, Senses
from client.train.machine.pausing import Pauses
from client.train.messaging.admission import Vouching
from client.train.messaging.bootstrap import find_swarm, remember_swarm
from client.train.messaging.kept_links import KeptLinks
from client.train.reporting.event_sink import EventSink
from client.train.stage.held_stages import HeldStages
from client.train.training import Training
from client.train.transfer.state_size import largest_payload, round_bytes, usual_payload
from protocol.address import Address, parse_address, parse_peer_address
from protocol.amendments.amendment import sign_amendment
from protocol.amendments.changes import Changes
from protocol.amendments.draft import draft
from protocol.effects import Explain
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.invite import SwarmFile, Target
from protocol.vouching.register import KeptRegister, Register
from protocol.vouching.ticket import MAX_USES, TICKET_BYTES, TICKET_LIFE_S
from protocol.wire.envelope import Signer

CHECK_S = 0.2
SAVE_EVERY_S = 60.0
MEET_S = 10.0
"""Between two looks at whom we are linked with."""
LINGER_S = 30.0
"""Seconds that a node that ends with the run stays for neighbours that still close their last
step."""
EVALUATED_S = 5.0
"""And then for the held-out loss of the last version."""
RENEW_SETTINGS_S = 5.0
MATCHES_EVERY_S = 2.0
HELLO_S = 15.0
"""Seconds within which a peer must send an acceptable Hello."""
STOP_S = 15.0
"""Seconds to send the goodbye."""
UNSAVED = "free space and try again; finish or pause with --discard leaves anyway"
ASK_FOR_INVITE = "ask a member for an invite, which it makes with: volunteer invite"


@dataclass(frozen=True)
class NodeOptions:
    """The options of a node's start."""

    settings: Settings
    target: Target
    data_path: Path | None = None
    exit_when_done: bool = False
    relay_only: bool = False
    """Relay for others; hold no stage, and take no part in the matching."""
    ready: Callable[[ControlApi], None] | None = None
    """Called once, when the node answers on its control socket."""
    renewed: Callable[[Settings], Settings] | None = None
    """Returns the settings with what the owner has changed since; None: they stay."""


async def run_node(
    options: NodeOptions, *, on_event: Callable[[Event], None], stop: trio.Event
) -> ExitCode:
    """Run a node until it is done or ``stop`` is set; the caller holds the lock of its identity.
    Raises UserError: a problem that the user can fix; carries the exit code."""
    settings = options.settings
    data_dir = Path(settings.data_dir).absolute() if settings.data_dir else None
    folders = find_folders(data=data_dir)
    make_private(folders.runtime)
    signer = ensure_identity(make_private(folders.data))
    seed = load_identity(folders.data)
    assert seed is not None, "it was there a moment ago"
    _note_begin(folders, options.target)
    known = RunRecord(folders.data).load()
    async with AsyncExitStack() as stack:
        try:
            network = await listening(stack, settings, seed, 0 if known is None else known.port)
        except PortInUse as error:
            raise UserError(str(error), "see --listen-port", ExitCode.TEMPORARY) from error
        except (ListenError, NetworkError) as error:
            raise UserError(str(error), "see --listen-host", ExitCode.CONFIG) from error
        store = SwarmStore(folders.swarms)
        seen: list[NetEvent] = []
        me, timeout_s = signer.peer, settings.dial_timeout_s
        find = partial(find_swarm, network, options.target, store, me, seen, timeout_s)
        swarm = await _unless_stopped(find, stop)
        if swarm is None:
            return ExitCode.OK
        _note_begin(folders, swarm, parse_address(network.addresses[0]).port)
        remember_swarm(swarm, store, on_event)
        node = Node(options, folders, signer, network, swarm, store, on_event, seen)
        return await node.run(stop)


async def listening(
    stack: AsyncExitStack, settings: Settings, seed: bytes, last_port: int
) -> Libp2pNetwork:
    """Open the network on the owner's port, else on that of the last run if it is free: members
    that were shut down together dial each other where they were. Raises PortInUse, ListenError,
    NetworkError: as ``open_network``."""
    limits = HostLimits(hello_s=HELLO_S)

    async def listen(port: int) -> Libp2pNetwork:
        at = settings.listen_host, port
        opened = open_network(seed, at, limits=limits, rates=_rates(settings))
        return await stack.enter_async_context(opened)

    if last_port and not settings.listen_port:
        with suppress(ListenError):
            return await listen(last_port)
    return await listen(settings.listen_port)


def _rates(settings: Settings) -> Rates:
    return Rates(settings.upload_limit_bytes_per_s, settings.download_limit_bytes_per_s)


def _note_begin(folders: Folders, target: Target, port: int = 0) -> None:
    """Note in the data folder that this process is its node, of which swarm, and on which port."""
    swarm = "" if isinstance(target, Address) else target.swarm
    name = target.manifest.name if isinstance(target, SwarmFile) else ""
    RunRecord(folders.data).begin(swarm, name, port)


async def _unless_stopped(
    find: Callable[[], Awaitable[SwarmFile]], stop: trio.Event
) -> SwarmFile | None:
    """Return what ``find`` finds; None: ``stop`` came first."""
    found, failure = None, None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            found = await find()
        except UserError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return found


class Node(ControlApi):
    """A running node of one swarm; it answers on the control socket."""

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
        paths = [folders.of(swarm.swarm, kept) for kept in (Kept.CURVE, Kept.HELD_OUT)]
        self._curve_files = [Persisted(path, list[StepPoint]) for path in paths]
        curves = (LossCurve(file.peek() or ()) for file in self._curve_files)
        self._event_sink = EventSink(on_event, *curves)
        self._started = time.monotonic()
        self._stop_asked = trio.Event()
        self._asked = self._discards = False
        """Whether the user has asked to leave; also if a state is lost by it."""
        self._seen = seen
        self._refused: UserError | None = None
        self._register = self._load_register()
        self._pauses = Pauses(folders.data, self._event_sink.explain)
        senses = Senses(self._carried_bytes)
        self._limiting = Limiting(options.settings, folders.data, self._pauses, senses)
        self._engine: Engine
        self._training: Training
        self._relaying: Relaying
        self._matches: MatchesView | None = None
        self._matches_due = -math.inf

    def status(self) -> Snapshot:
        stopping, paused = self._stop_asked.is_set(), self._pauses.now
        held_stages = self._training.held_stages
        now = take_snapshot(self._engine, held_stages, self._started, stopping, paused)
        used_bytes, threads = self._limiting.used_bytes, held_stages.capacity.threads
        started = self._engine.own_advert.entered or paused is not None
        state, reason = now.state, now.reason
        if not started and not stopping:
            state, reason = "connecting", self._training.phase
        elif self._options.relay_only and not stopping:
            state, reason = "relaying", "it holds no stage"
        return structs.replace(
            now,
            state=state,
            reason=reason,
            limits=limits_view(self._options.settings, used_bytes, threads),
            started=started,
            relay=self._relaying.view(),
            reach=structs.replace(now.reach, change=self._network.watch.words(trio.current_time())),
            matches=self._matching(),
        )

    def _matching(self) -> MatchesView | None:
        """Describe the matching, which costs much in a large swarm, as it was lately."""
        now = self._engine.now()
        if now >= self._matches_due:
            self._matches_due = now + MATCHES_EVERY_S
            self._matches = describe_matching(self._engine)
        return self._matches

    def update(self, since: int = 0) -> Update:
        events, missed = self._event_sink.log.since(since)
        return Update(time=time.time(), snapshot=self.status(), events=events, missed=missed)

    def finish(self, *, discard: bool = False) -> None:
        self._may_lose(discard=discard)
        self._asked, self._discards = True, self._discards or discard
        self._stop_asked.set()

    def history(self, points: int = MAX_POINTS) -> Curve:
        sink = self._event_sink
        return Curve(sink.curve.points(points), sink.held_out_curve.points(points))

    def pause(
        self, until: float | None = None, reason: str = "", *, discard: bool = False
    ) -> PauseView:
        self._may_lose(discard=discard)
        return self._pauses.pause(until, reason)

    def _may_lose(self, *, discard: bool) -> None:
        """Refuse what would lose a state that nobody else has, unless the user agrees to it."""
        held_stages = self._training.held_stages
        if discard:
            held_stages.let_go.set()
        elif problem := held_stages.not_to_be_saved():
            raise Impossible(f"{problem}; {UNSAVED}")

    def resume(self) -> bool:
        return self._pauses.resume()

    def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
        """Return a fresh invite: ourselves, and the members met lately that are linked now.

        Where members vouch for those they invite, it names us alone, because the newcomer has to
        show it to us.
        """
        if (vouching := self._engine.handshake.vouching) is not None:
            return self._ticket_invite(vouching, once, life_s or TICKET_LIFE_S)
        if once or life_s is not None:
            raise Impossible(NEEDS_VOUCHING)
        met = self._engine.kept_links.met
        linked = [met[peer] for peer in self._network.statistics().peers if peer in met]
        return described(fresh(self._swarm, [_parsed(self._reach()), *linked]))

    def _ticket_invite(self, vouching: Vouching, once: bool, life_s: float) -> InviteView:
        secret, uses = nacl.utils.random(TICKET_BYTES), 1 if once else MAX_USES
        try:
            ticket = vouching.draw_ticket(secret, uses, life_s)
        except LocalProtocolError as error:
            raise Impossible(str(error)) from error
        own = fresh(self._swarm, [_parsed(self._reach())])
        view = described(replace(own, ticket=ticket.secret))
        return structs.replace(view, notes=[*view.notes, ticket_note(ticket, life_s)])

    def expel(self, member: str, reason: str = "") -> InvitedMember:
        vouching = self._engine.handshake.vouching
        if vouching is None:
            raise Impossible("nobody vouches for anybody in this swarm, so nobody is expelled")
        fitting = [peer for peer in vouching.register.known() if peer.endswith(member)]
        if len(fitting) != 1:
            what = f"{len(fitting)} members end in" if fitting else "no member met here is called"
            raise Impossible(f"{what} {member}; see: volunteer status members")
        try:
            vouching.expel(fitting[0], reason)
        except LocalProtocolError as error:
            raise Impossible(str(error)) from error
        return member_of(vouching.register, fitting[0], linked=False)

    def amend(self, changes: Changes = Changes(), *, sign: bool = False) -> Amended:  # noqa: B008
        run, book = self._swarm.manifest, self._engine.amending.book
        if run.founder != self._signer.peer:
            raise Impossible(ONLY_THE_FOUNDER.format(run.founder))
        done = self.status().step
        try:
            said = draft(book, run.optimizer.lr, changes, done)
            if sign:
                signed = sign_amendment(self._signer, said, self._swarm.swarm)
                self._engine.amending.publish(signed)
        except LocalProtocolError as error:
            raise Impossible(str(error)) from error
        return amended(book, said, done, signed=sign)

    async def run(self, stop: trio.Event) -> ExitCode:
        async with trio.open_nursery() as nursery:
            self._wire(nursery)
            try:
                await self._serve(stop, nursery)
            finally:
                self._engine.shelf.close()
                nursery.cancel_scope.cancel()
        if (failure := self._failure()) is not None:
            raise failure
        return ExitCode.OK

    def _failure(self) -> UserError | None:
        """Return why it has ended, or what was lost by that; None: all is as the user wishes."""
        held_stages = self._training.held_stages
        lost = [] if self._discards else held_stages.lost
        next_step = "free space: the run goes on from an earlier version"
        loss = UserError("; ".join(lost), next_step) if lost else None
        return self._refused or held_stages.failure or loss

    async def _serve(self, stop: trio.Event, nursery: trio.Nursery) -> None:
        path = socket_path(self._folders.runtime, self._swarm.swarm, self._signer.peer)
        self._say_who_else_runs_here(path)
        async with serve_control(path, self):
            if self._options.ready is not None:
                self._options.ready(self)
            nursery.start_soon(self._forward_stop, stop)
            await nursery.start(self._limiting.run)
            nursery.start_soon(self._follow_settings)
            nursery.start_soon(self._engine.run, self._seen)
            nursery.start_soon(self._engine.reach.run)
            if not self._options.settings.no_port_mapping:
                nursery.start_soon(self._engine.reach.keep_mapped)
            if self._options.relay_only:
                nursery.start_soon(self._take_part_as_relay)
            else:
                nursery.start_soon(self._training.run)
                nursery.start_soon(self._training.held_stages.history.run)
            nursery.start_soon(self._pauses.run)
            saves = [
                self._engine.contributions.save,
                self._engine.expulsions.save,
                self._save_curves,
            ]
            nursery.start_soon(save_every_minute, saves)
            nursery.start_soon(keep_heap_small)
            nursery.start_soon(self._relaying.run)
            nursery.start_soon(self._keep_meeting)
            await self._until_over()
            await self._leave()

    def _save_curves(self) -> None:
        curves = self._event_sink.curve, self._event_sink.held_out_curve
        for file, curve in zip(self._curve_files, curves, strict=True):
            if points := curve.points():
                file.keep(points)

    def _say_who_else_runs_here(self, own: Path) -> None:
        """Warn where volunteers of one machine would all take its cores and memory."""
        others = len({*listening_sockets()} - {own})
        if others and not self._options.settings.threads:
            words = f"{plural(others, 'other volunteer')} on this machine: give each of them "
            words += "--threads and --memory-limit, or they take each other's cores and memory"
            self._event_sink.explain(Explain("swarm", words, "warning"))

    def _wire(self, nursery: trio.Nursery) -> None:
        swarm, me = self._swarm, self._signer.peer
        largest, usual = largest_payload(swarm.manifest), usual_payload(swarm.manifest)
        self._network.expect_payloads(largest, usual, round_bytes(swarm.manifest))
        checkpoints = self._folders.of(swarm.swarm, Kept.CHECKPOINTS)
        engine = Engine(
            self._network,
            self._signer,
            swarm,
            self._event_sink,
            nursery,
            self._folders,
            CheckpointFolder(checkpoints, self._options.settings.checkpoint_keep),
        )
        engine.handshake.vouching = self._vouching(engine)
        engine.handshake.greets = self._greets
        known = self._store.load(swarm.swarm)
        named = (*swarm.peers, *(known.peers if known else ()))
        engine.kept_links = KeptLinks(named)
        self._network.named(map(str, named))
        engine.reach.announced = _parsed(announced(self._options.settings, me))
        engine.own_advert.addresses = self._reach
        where = self._folders.data, self._options.data_path
        held_stages = HeldStages(engine, self._options.settings, *where)
        self._engine, self._training = engine, Training(held_stages, self._pauses)
        self._relaying = Relaying(
            engine,
            self._options.settings.relay,
            lambda: not self._limiting.used_up,
            always=self._options.relay_only,
        )
        if self._options.relay_only:
            engine.history = None
        engine.shelf.is_closed = self._serves_nothing
        self._network.watch.explain = self._event_sink.explain
        self._network.watch.renew = engine.reach.renew

    async def _follow_settings(self) -> None:
        """Take the limits that the owner changes while we run."""
        while self._options.renewed is not None:
            await trio.sleep(RENEW_SETTINGS_S)
            before = self._options.settings
            settings = self._options.renewed(before)
            for name in LIVE:
                if (value := getattr(settings, name)) != getattr(before, name):
                    words = f"{name} is {SETTINGS[name].words(value)} from now on"
                    self._event_sink.explain(Explain("swarm", words))
            if settings != before:
                self._options = replace(self._options, settings=settings)
                self._limiting.change(settings)
                self._network.limit(_rates(settings))
                self._training.held_stages.settings = settings
                self._engine.own_advert.update(settings, self._folders.data)

    async def _take_part_as_relay(self) -> None:
        """Be a member that holds no stage: nothing is measured, and no worker starts."""
        data, own_advert = self._folders.data, self._engine.own_advert
        await self._training.clock_agrees()
        joined, here = int(self._engine.wall()), tuple(self._reach())
        own_advert.enter(advert(self._options.settings, here, joined, data), {})
        await own_advert.keep_current(lambda: self._options.settings, data)

    def _greets(self, peer: PeerId) -> bool:
        """Whether to say Hello: before a member has vouched for us, to nobody but the maker of our
        invite, which it names first. All others would refuse us, and whoever relays what we say to
        the maker ends our link with it."""
        if self._register is None or self._register.belongs:
            return True
        return peer in {address.peer for address in self._swarm.peers[:1]}

    def _load_register(self) -> Register | None:
        """Return the register of members; None: members do not vouch for each other. Raises
        UserError: we do not belong to it, and have no invite."""
        swarm = self._swarm
        if not swarm.manifest.policy.private:
            return None
        path = self._folders.of(swarm.swarm, Kept.VOUCHES)
        self._vouches = Persisted(path, KeptRegister, self._warn)
        kept = self._vouches.load()
        register = Register(self._signer, swarm.manifest.founder, swarm.swarm, kept)
        if not (answer := register.standing(register.me)) and register.is_used_up(swarm.ticket):
            raise UserError(answer.reason, ASK_FOR_INVITE, ExitCode.REFUSED)
        if not register.is_member and swarm.ticket is None:
            words = f"{swarm.manifest.name} is entered by invitation, and nobody has invited us"
            raise UserError(words, ASK_FOR_INVITE, ExitCode.REFUSED)
        if not register.belongs:
            words = "we take part once the member that made our invite has vouched for us"
            self._event_sink.explain(Explain("membership", words))
        return register

    def _vouching(self, engine: Engine) -> Vouching | None:
        """Return what admits members to the swarm; None: it is open."""
        if self._register is None:
            return None
        return Vouching(
            self._register,
            self._swarm.ticket,
            engine,
            self._vouches.keep,
            engine.greet_all,
            engine.expel,
            self._end_refused,
        )

    def _warn(self, words: str) -> None:
        self._event_sink.explain(Explain("membership", words, "warning"))

    def _end_refused(self, reason: str) -> None:
        """End: the swarm does not want us, or no longer."""
        self._refused = UserError(reason, ASK_FOR_INVITE, ExitCode.REFUSED)
        self._stop_asked.set()

    def _reach(self) -> list[str]:
        """Return the addresses at which others reach us."""
        chosen = announced(self._options.settings, self._signer.peer)
        if chosen:
            return [*chosen, *self._network.reaching.addresses]
        return self._engine.reach.advertised(self._network.addresses)

    def _carried_bytes(self) -> int:
        carried = self._network.statistics()
        return carried.bytes_in + carried.bytes_out

    def _serves_nothing(self) -> bool:
        """Handing over our stages takes precedence over the quota; helping others does not."""
        return self._limiting.used_up and not self._training.held_stages.held

    async def _forward_stop(self, stop: trio.Event) -> None:
        await stop.wait()
        self._training.held_stages.let_go.set()  # as nobody may be there to make room
        self._stop_asked.set()

    async def _until_over(self) -> None:
        """Wait for the user, a failure, or the end of the run."""
        told = 0
        while not self._stop_asked.is_set() and self._training.held_stages.failure is None:
            steps = self._engine.amending.book.steps
            if told != steps and self._is_finished():
                told = steps
                words = f"the run is complete after {steps} steps; {WHEN_DONE}"
                self._event_sink.explain(Explain("swarm", words))
            if self._options.exit_when_done and await self._complete():
                return
            with trio.move_on_after(CHECK_S):
                await self._stop_asked.wait()

    async def _complete(self) -> bool:
        """Whether our part is done and every stage has closed its last step."""
        known = self._training.held_stages.history.machine.known
        if not self._is_finished():
            return False
        with trio.move_on_after(LINGER_S):
            while not (known.is_over() or self._stop_asked.is_set()):
                await trio.sleep(CHECK_S)
        with trio.move_on_after(EVALUATED_S):
            while self._awaits_evaluation() and not self._stop_asked.is_set():
                await trio.sleep(CHECK_S)
        return True

    def _awaits_evaluation(self) -> bool:
        """Whether the last version is to be evaluated, and nothing is known of that."""
        terms, known = self._swarm.manifest.evaluation, self._event_sink.held_out
        steps = self._engine.amending.book.steps
        return terms is not None and (known is None or known.version < steps)

    def _is_finished(self) -> bool:
        """Whether we serve a stage and all our stages are at the last step."""
        drivers = self._training.held_stages.drivers()
        return bool(drivers) and all(driver.seat.finished for driver in drivers)

    async def _keep_meeting(self) -> None:
        """Remember whom we are linked with, until cancelled: to look up the names that members
        advertise takes as long as those who answer for them like."""
        while True:
            await self._meet()
            await trio.sleep(MEET_S)

    async def _meet(self) -> None:
        """Remember the members' addresses, for the next start: those whom work has proven first,
        as there is room for few."""
        roster = self._engine.membership.roster
        met = list[str]()
        for peer in sorted(self._network.statistics().peers, key=roster.is_guest):
            met += await self._network.in_reach(roster.addresses(peer))
        parsed = _parsed(met)
        self._engine.kept_links.meet(parsed)
        try:
            await trio.to_thread.run_sync(self._store.meet, self._swarm.swarm, parsed)
        except OSError:
            return  # a full disk must not stop training; the invite still works

    async def _leave(self) -> None:
        """Hand over and save our stages while they keep working, then announce that we leave."""
        self._stop_asked.set()
        if not self._asked:  # nobody may be there to make room
            self._training.held_stages.let_go.set()
        self._training.held_stages.history.end()
        await self._training.drain(for_good=True)
        await self._relaying.leave()
        self._engine.own_advert.change(leaving=True)
        with trio.move_on_after(STOP_S):
            for peer in self._network.statistics().peers:
                await self._network.disconnect(peer, "this volunteer leaves")


async def save_every_minute(saves: Sequence[Callable[[], object]]) -> None:
    """Save each until cancelled, and once more then: what may be a minute old after a crash."""
    try:
        while True:
            await trio.sleep(SAVE_EVERY_S)
            for save in saves:
                save()
    finally:
        for save in saves:
            save()


def described(swarm: SwarmFile) -> InviteView:
    """Return an invite as it is shown, with what a person who shares it should know."""
    return InviteView(
        swarm=swarm.swarm,
        swarm_name=swarm.manifest.name,
        invite=str(swarm.invite),
        file=str(swarm),
        members=[str(address) for address in swarm.peers],
        private=swarm.ticket is not None,
        notes=notes(swarm),
    )


def _parsed(texts: Iterable[str]) -> list[Address]:
    """Return those of the addresses that name a peer and can be dialled."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(parse_peer_address(text))
    return found


def announced(settings: Settings, me: PeerId) -> list[str]:
    """Return the addresses the user wants advertised, each with our peer id behind it."""
    return [str(replace(parse_address(text), peer=me)) for text in settings.announce]
