"""Keeps copies of a neighbouring stage's checkpoints, and has ours copied when we leave.

Every few seconds a task finds the stages of which we are the buddy (``protocol.transfer.buddy``)
and fetches their newest checkpoint, one at a time and with few chunks in flight, so that training
is hardly slowed. A copy counts once all of it is verified; then it is stored beside our own
checkpoints and offered like them. Unsolicited offers come from replicas that saved a checkpoint out
of turn, as the last replica of a stage does before it leaves: it waits until we offer the same
version. Only the newest such offer of each peer counts. A failed one delays the others briefly, and
none replaces the newest copy that was due or that the run may be rolled back to.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import trio

from client.compute.checkpoint import CheckpointInfo
from client.compute.errors import CheckpointError
from client.store.checkpoints import Checkpoint, CheckpointFolder
from client.train.ports import Copied, Ports
from client.train.recovery.copies import CopyFetch
from client.train.recovery.history import History
from client.train.transfer.blobs import DiskFailed, DownloadFailed, Shelf
from client.train.transfer.state_size import data_bytes, is_plausible
from protocol.effects import Explain
from protocol.ids import PeerId, short
from protocol.manifest import Manifest
from protocol.transfer.buddy import FOREIGN_KEPT, buddy, due_version, is_beside, kept_by
from protocol.view import SwarmView
from protocol.wire.messages import BlobOffer

LOOK_S = 2.0
ASK_S = 1.0
RETRY_S = 30.0
"""Seconds before a failed copy is tried again, unless it is offered again."""
WINDOW = 1
SPARE_BYTES = 256 << 20
"""Disk space that a copy leaves free for our own checkpoints."""


class Buddies:
    """See the module's docstring.

    Args:
        history: the others' records of what they have; it is told of every copy.
        view: the present swarm.
        held: the stages we hold or are taking.
        places: hosts of the peers, to choose a buddy on another one.
        steps: steps of the whole run, with its amendments; None: the manifest's.
    """

    def __init__(
        self,
        ports: Ports,
        me: PeerId,
        manifest: Manifest,
        swarm: str,
        folder: CheckpointFolder,
        shelf: Shelf,
        history: History,
        view: Callable[[], SwarmView],
        held: Callable[[], Collection[int]],
        places: Callable[[], Mapping[PeerId, str]] = dict,
        steps: Callable[[], int] | None = None,
    ) -> None:
        self._ports, self._me, self._manifest = ports, me, manifest
        self._folder, self._shelf, self._history = folder, shelf, history
        self._view, self._held, self._places = view, held, places
        self._steps = steps or (lambda: manifest.steps)
        self._copies = CopyFetch(ports, manifest, swarm, WINDOW)
        self._announced: dict[tuple[int, PeerId], int] = {}
        """The version of a stage that a peer offered without being asked."""
        self._not_before: dict[tuple[int, int], float] = {}
        self._handing: dict[tuple[int, int], trio.Event] = {}
        self._said_full = ""
        """The complaint that holds; empty: copies are kept."""
        self._event_sink = trio.Event()
        self.kept = 0
        """Copies placed since the start."""

    # --- called by HeldStages --------------------------------------------------------------------

    def receive(self, peer: PeerId, message: Copied, payload: bytes) -> bool:
        """Handle a message about a copy; False if it concerns something else."""
        match message:
            case BlobOffer(kind="state") if self._is_kept_now(peer, message):
                return True
            case _ if message.stage in self._held():
                return False
            case _ if self._copies.receive(peer, message, payload):
                return True
            case BlobOffer(kind="state"):
                self._note(peer, message)
                return True
            case _:
                return False

    def peer_lost(self, peer: PeerId) -> None:
        """A donor may have been lost."""
        self._forget_announced(lambda _stage, by, _version: by == peer)
        self._copies.peer_lost(peer)

    def _is_kept_now(self, peer: PeerId, offer: BlobOffer) -> bool:
        """Whether an offer shows that the peer has the checkpoint that we hand over."""
        waiting = self._handing.get((offer.stage, offer.version))
        ours = self._shelf.offer(offer.stage, offer.version)
        if waiting is None or ours is None or ours.root != offer.root:
            return False
        waiting.set()
        return True

    def _note(self, peer: PeerId, offer: BlobOffer) -> None:
        """Remember a neighbour's unsolicited offer."""
        view, stage = self._view(), offer.stage
        speaks = any(replica.peer == peer for replica in view.serving(stage))
        plausible = is_plausible(self._manifest, offer)
        if not speaks or not is_beside(view, self._me, stage) or not plausible:
            return
        if offer.version > self._reached(stage):
            return  # if its heartbeat arrives later than the offer, the offer is repeated
        if (ours := self._shelf.offer(stage, offer.version)) is not None:
            self._ports.send(peer, ours)
            return
        if offer.version >= self._due(stage):
            self._announced[stage, peer] = offer.version
            self._not_before.pop((stage, offer.version), None)
            self._event_sink.set()

    def _reached(self, stage: int) -> int:
        """Return the newest version that a neighbouring stage can have, one more than ours; it
        bounds what a liar can claim."""
        view = self._view()
        beside = [*view.serving(stage - 1), *view.serving(stage + 1)]
        ours = max((r.version for r in beside if r.peer == self._me), default=0)
        return min(view.committed(stage), ours + 1, self._steps())

    def _due(self, stage: int) -> int:
        """Return the newest version that the stage's replicas checkpoint."""
        every, steps = self._manifest.policy.checkpoint_every, self._steps()
        due, reached = due_version(self._view(), stage, every, steps), self._reached(stage)
        return due if due <= reached else reached - reached % every

    def _forget_announced(self, which: Callable[[int, PeerId, int], bool]) -> list[PeerId]:
        """Forget the unsolicited offers; return their senders."""
        gone = [key for key, version in self._announced.items() if which(*key, version)]
        for key in gone:
            del self._announced[key]
        return [peer for _, peer in gone]

    # --- keeping -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch the copies that we are to keep, until cancelled."""
        while True:
            self._event_sink = trio.Event()
            for stage, version in self._wanted():
                await self._keep(stage, version)
            with trio.move_on_after(LOOK_S):
                await self._event_sink.wait()

    def _wanted(self) -> list[tuple[int, int]]:
        """The stages of which we lack a copy, with their versions."""
        now = self._ports.now()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        self._forget_announced(lambda stage, _by, version: version < self._due(stage))
        due = {
            (stage, self._due(stage)) for stage in kept_by(self._view(), self._me, self._places())
        }
        announced = {(stage, version) for (stage, _), version in self._announced.items()}
        return [
            (stage, version)
            for stage, version in (*sorted(due), *sorted(announced - due))
            if version > 0
            and stage not in self._held()
            and (stage, version) not in self._not_before
            and not self._folder.path(stage, version).exists()
        ]

    async def _keep(self, stage: int, version: int) -> None:
        """Fetch one copy, verify it and put it in its place."""
        try:
            await self._fetch(stage, version)
        except DiskFailed as error:
            self._say_disk(str(error))
        except (DownloadFailed, CheckpointError) as error:
            words = f"no copy of stage {stage} at version {version}: {error}"
            self._ports.perform(Explain("transfer", words, "debug"))
        except OSError as error:
            self._say_disk(f"{error.strerror or error}")
        else:
            self._end_complaint()
            return
        self._forget_announced(lambda s, _by, v: (s, v) == (stage, version))
        self._not_before[stage, version] = self._ports.now() + RETRY_S

    async def _fetch(self, stage: int, version: int) -> None:
        self._folder.folder.mkdir(parents=True, exist_ok=True)
        self._check_room(stage)
        path = self._folder.folder / f".stage-{stage}-v{version}.buddy.tmp"
        era, donors = self._history.lineage.era, self._donors(stage, version)
        blob = await self._copies.fetch(
            stage, version, donors, path, lambda info: self._check(info, era)
        )
        target = await trio.to_thread.run_sync(self._folder.adopt, path, stage, version)
        if self._history.lineage.era != era:
            self._folder.set_aside(Checkpoint(stage, version, target))
            raise DownloadFailed("the run has been rolled back meanwhile")
        self._shelf.put(blob, target, temporary=False)
        self.kept += 1
        self._history.stored(stage, version)
        for donor in self._forget_announced(lambda s, _by, v: (s, v) == (stage, version)):
            self._ports.send(donor, blob.offer)
        for removed in self._folder.retain(self._protected(stage), stage=stage, keep=FOREIGN_KEPT):
            self._shelf.withdraw(removed.stage, removed.version)
        words = f"kept a copy of stage {stage} at version {version}"
        self._ports.perform(Explain("transfer", words, "debug"))

    def _donors(self, stage: int, version: int) -> list[PeerId]:
        """The peers that may have it; for a checkpoint saved out of turn only its offerers, because
        others do not answer."""
        offering = {by for (s, by), v in self._announced.items() if (s, v) == (stage, version)}
        if offering and version != self._due(stage):
            return sorted(offering)
        serving = {r.peer for r in self._view().serving(stage)} - {self._me}
        return sorted(serving | offering)

    def _protected(self, stage: int) -> set[tuple[int, int]]:
        """Return the versions to keep: those the run may be rolled back to, and the newest one
        due."""
        every = self._manifest.policy.checkpoint_every
        due = [c.version for c in self._folder.entries() if c.stage == stage]
        newest = max((version for version in due if version % every == 0), default=0)
        return {*self._history.protected(), (stage, newest)}

    def _check(self, info: CheckpointInfo, era: int) -> None:
        if self._history.lineage.era != era:
            raise CheckpointError("the run has been rolled back meanwhile")
        said = Counter(
            copy.hash.hex()
            for one in self._history.machine.stored_live().values()
            for copy in one.copies
            if one.lineage.era == era and (copy.stage, copy.version) == (info.stage, info.version)
        )
        if said and info.hash != max(said, key=lambda h: (said[h], h)):
            raise CheckpointError("its hash differs from the one that its holders announced")

    def _check_room(self, stage: int) -> None:
        needed = data_bytes(self._manifest, stage) + SPARE_BYTES
        if shutil.disk_usage(self._folder.folder).free < needed:
            raise OSError(f"less than {needed >> 20} MiB are free in {self._folder.folder}")

    def _say_disk(self, problem: str) -> None:
        """Report once that there is no room, until there is again."""
        if not self._said_full:
            words = f"no copies of neighbouring stages are kept: {problem}; free space on the disk"
            self._said_full = words
            self._ports.perform(Explain("transfer", words, "warning"))

    def _end_complaint(self) -> None:
        if self._said_full:
            words = "copies of neighbouring stages are kept again"
            self._ports.perform(Explain("transfer", words, over=self._said_full))
            self._said_full = ""

    # --- being kept --------------------------------------------------------------------------

    async def hand_over(self, stage: int, version: int, timeout_s: float) -> bool:
        """Have our buddy copy a checkpoint of ours; return whether it did within ``timeout_s``.

        Args:
            stage: stage of the checkpoint.
            version: its version.
            timeout_s: longest wait.
        """
        keeper, offer = self._keeper(stage), self._shelf.offer(stage, version)
        if keeper is None or offer is None:
            return False
        kept = self._handing[stage, version] = trio.Event()
        words = f"{short(keeper)} is asked to keep stage {stage} at version {version}"
        self._ports.perform(Explain("transfer", words, members=(keeper,)))
        try:
            with trio.move_on_after(timeout_s):
                while not kept.is_set():
                    if (keeper := self._keeper(stage)) is None:
                        return False
                    self._ports.send(keeper, offer)
                    with trio.move_on_after(ASK_S):
                        await kept.wait()
        finally:
            del self._handing[stage, version]
        return kept.is_set()

    def _keeper(self, stage: int) -> PeerId | None:
        return buddy(self._view(), stage, self._places())
