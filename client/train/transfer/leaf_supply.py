"""Supplies the first stage with the leaves of token data that its microbatches need.

Where this machine has the whole data folder, that is all. Elsewhere the leaves of the samples that
come next are fetched ahead of time from members, proven against the manifest's root, and kept in a
cache with a budget. Which samples come next is known: they are numbered, whoever computes them. A
task whose samples are not here yet waits, and no other does. What is here is given to members that
ask for it.

A volunteer without the whole data asks the members that it is linked with, and those that have
some answer with an offer; adverts are not trusted. Stage 0 can be taken while a member offers some.
While nobody does, the owner is told what to do, in the same words everywhere.

``protocol.transfer.leaves`` decides whom to ask for what. State: the plan (the leaves of the next
samples), who offers data, and what tasks wait for.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import trio

from client.store.leaves import DataFolder, LeafCache, WrongFolder
from client.store.texts import TextStore
from client.train.ports import Ports
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES, is_proven
from model_zoo.specs.state_hash import file_hash
from model_zoo.specs.windows import leaves_of
from protocol.effects import Explain
from protocol.ids import PeerId, Stage, short
from protocol.pipeline.effects import held_out
from protocol.transfer.leaves import LeafEffect, LeafFetch, StoreChunk, Verdict
from protocol.wire.messages import Chunk, ChunkRequest

TICK_S = 0.5
MOST_AHEAD = 512
"""Leaves of the plan, for each part of the data: 128 MiB, the places of two groups of samples."""
SAMPLES_AHEAD = 16_384
STEPS_AHEAD, AHEAD_S = 8, 20.0
"""Samples of this many steps, and of at least this many seconds, are fetched ahead. More would take
the line from this step's rounds for what a much later step needs."""
PLANNED_AT_ONCE = 1024
"""Samples that are worked out in one go: some ms."""
PROVEN_AT_ONCE = 16
"""Leaves of an earlier process that are read again in one go."""
ASK_AGAIN_S = 5.0
"""Seconds between questions to all members while nobody offers data; after the first the owner is
told."""
MOST_DONORS = 4
"""Offers beside which newcomers are not asked for more."""
DISK_AGAIN_S = 10.0
"""Seconds after an error of the disk before leaves are fetched again."""


class LeafSupply:
    """See the module's docstring; ``sources`` are folders that may have the whole data."""

    def __init__(
        self, ports: Ports, store: TextStore, sources: Sequence[Path], budget_bytes: int
    ) -> None:
        manifest = ports.manifest
        self._ports, self._data = ports, manifest.data
        self._store, self._sources, self._budget = store, sources, budget_bytes
        self._batch, self._seed = manifest.sequences_per_microbatch, manifest.seed
        self._per_step = manifest.microbatches_per_step * self._batch
        self._samples_ahead = 0
        self._began: tuple[int, float] | None = None
        """The newest step, and when it began."""
        self._width = self._data.token_bytes
        self._context = manifest.model.context
        self._windows = self._data.windows(self._context)
        self._most_ahead = MOST_AHEAD * max(1, len(self._data.parts))
        self._leaves_of = lru_cache(maxsize=4096)(self._work_out)
        self._whole: DataFolder | None = None
        self._cache: LeafCache | None = None
        self.root = bytes.fromhex(self._data.digest)
        """What proves the leaves."""
        self._fetch = LeafFetch(self.root)
        self.offering: set[PeerId] = set()
        """The members that offer data."""
        self._ask_at, self._told = math.inf, False
        self._supplied = False
        """Stage 0 fetches data as it needs them."""
        self.starved = False
        """Whether stage 0 is held here and lacks data that no member gives."""
        self._first: int | None = None
        """The first sample of the step; None: no stage needs any."""
        self._planned = 0
        """The samples before this one are planned."""
        self._plan: dict[int, int] = {}
        """Leaf to the last planned sample that lies in it, the most urgent first."""
        self._needed: Counter[int] = Counter()
        """Microbatches that tasks wait for or read, and how many do: their leaves stay."""
        self._rests_until = float("-inf")
        self._changed, self._arrived = trio.Event(), trio.lowlevel.ParkingLot()

    # --- what is here -----------------------------------------------------------------------

    async def open(self) -> str:
        """Look for the data on this disk; return why not all of it is here, empty: it is. Raises
        `OSError` where the cache cannot be read."""
        if self._whole is not None:
            return ""
        problem = await trio.to_thread.run_sync(self._find)
        if not problem:
            self.offering.clear()
            self._ask_at, self._told = math.inf, False
            self._supplied = self.starved = False
        elif self._cache is None:
            folder = self._store.leaves(self._data.digest)
            self._cache = await trio.to_thread.run_sync(LeafCache, folder, self._data, self._budget)
            self._ask_all()
        self._ports.ability_changed()
        return problem

    @property
    def empty(self) -> bool:
        """Whether no leaf is here."""
        return self._whole is None and (self._cache is None or self._cache.empty)

    @property
    def folder(self) -> Path:
        """The folder that the worker reads samples from."""
        whole = self._whole
        return whole.folder if whole is not None else self._store.leaves(self._data.digest)

    @property
    def tokenizer(self) -> Path:
        """The place of the tokenizer that the data bring."""
        whole = self._whole
        return whole.tokenizer if whole is not None else self._store.tokenizer(self._data.digest)

    def has_tokenizer(self) -> bool:
        """Whether the tokenizer that the data bring is here, if they bring one."""
        brought = self._data.tokenizer
        if brought is None:
            return True
        try:
            found = self.tokenizer.read_bytes()
        except OSError:
            return False
        return file_hash(found) == brought.digest

    async def read(self, index: int | None) -> bytes:
        """Return a leaf for a member, with its path behind it; empty: it is not here. For None:
        the root, if any leaf is here."""
        if index is None:
            return b"" if self.empty else self.root
        if (whole := self._whole) is not None:
            return await trio.to_thread.run_sync(whole.load, index) or b""
        if (cache := self._cache) is None:
            return b""
        return cache.note(index, await trio.to_thread.run_sync(cache.load, index)) or b""

    def _find(self) -> str:
        problem = "this machine does not have the swarm's training data"
        for folder in (*self._sources, self._store.tokens(self._data.digest)):
            try:
                if not folder.is_dir():
                    continue
                self._whole = DataFolder(folder, self._data)
            except WrongFolder as error:
                problem = str(error)
            except OSError as error:
                problem = f"cannot read {error.filename}: {error.strerror}"
            else:
                if self.has_tokenizer():
                    return ""
                problem = f"{folder} has the swarm's tokens, but another tokenizer beside them"
                self._whole = None
        return problem

    # --- who offers it ----------------------------------------------------------------------

    @property
    def _missing_here(self) -> bool:
        return self._whole is None and self._cache is not None

    @property
    def problem(self) -> str:
        """The problem in words for the owner; empty if the data are found or the search
        continues."""
        missing = self.starved or (self._told and not self._supplied)
        return _words(self._data) if missing else ""

    def unable(self) -> dict[Stage, str]:
        """Return the stage that cannot be taken without the data, with the reason."""
        if not self._missing_here or self._supplied or self.offering:
            return {}
        return {Stage(0): self.problem or "asking members for the training data"}

    def linked(self, peer: PeerId) -> None:
        """A member has come."""
        if self._missing_here and len(self.offering) < MOST_DONORS:
            self._ports.send(peer, ChunkRequest(self.root, None))

    def _ask_all(self) -> None:
        self._ask_at = self._ports.now() + ASK_AGAIN_S
        for peer in sorted(self._ports.linked()):
            self._ports.send(peer, ChunkRequest(self.root, None))

    def _ask_again(self, now: float) -> None:
        """Ask again while nobody offers data."""
        if self._ask_at <= now:
            if not self._told and not self._supplied:
                self._told = True
                self._ports.perform(Explain("transfer", _words(self._data), "warning"))
            self._ask_all()
            self._ports.ability_changed()

    def _offered(self, peer: PeerId) -> None:
        self.offering.add(peer)
        self._ask_at = math.inf
        if self._told:
            self._told = False
            words = f"{short(peer)} has training data"
            self._ports.perform(Explain("transfer", words, members=(peer,)))
        self._ports.ability_changed()

    def _withdrawn(self, peer: PeerId) -> None:
        """A member is gone, or gives nothing although it has offered data."""
        if peer in self.offering:
            self.offering.discard(peer)
            if not self.offering:
                self._ask_at = self._ports.now() + ASK_AGAIN_S
            self._ports.ability_changed()

    def _note_supply(self, *, fetching: bool, starved: bool) -> None:
        supplied = fetching and not starved
        if (self._supplied, self.starved) == (supplied, starved):
            return
        if starved and not self.starved:
            self._ports.perform(Explain("transfer", _words(self._data), "warning"))
        self._supplied, self.starved = supplied, starved
        self._ports.ability_changed()

    # --- what is needed ---------------------------------------------------------------------

    def at(self, step: int) -> None:
        """The first stage is at a step here: fetch what it and the next ones need."""
        if self._whole is not None:
            return
        before, now, ahead = self._began, self._ports.now(), STEPS_AHEAD
        if before is None or step != before[0]:
            if before is not None and step == before[0] + 1:
                ahead = max(ahead, int(AHEAD_S / max(0.01, now - before[1])))
            self._samples_ahead = min(SAMPLES_AHEAD, ahead * self._per_step)
            self._began = step, now
        first = step * self._per_step
        if self._first is None or first < self._first:
            self._plan.clear()
            self._planned = first
        self._first, self._planned = first, max(first, self._planned)
        self._changed.set()

    def rest(self) -> None:
        """No stage here needs samples any more: members are asked for none, also in a pause."""
        self._first = None
        self._plan.clear()
        self._needed.clear()
        self._perform(self._fetch.want((), (), self._ports.now()))

    def here(self, microbatch: int) -> bool:
        """Whether a microbatch's samples can be read; held-out ones have negative numbers."""
        if self._whole is not None:
            return True
        cache = self._cache
        return cache is not None and all(map(cache.has, self._leaves_of(microbatch)))

    async def wait(self, microbatch: int, over: Callable[[], bool]) -> None:
        """Wait until a microbatch's samples can be read, or nobody needs them (``over``)."""
        while not (self.here(microbatch) or over()):
            self._changed.set()
            with trio.move_on_after(TICK_S):
                await self._arrived.park()

    def begin(self, microbatch: int) -> None:
        """A task needs a microbatch's samples from now on."""
        self._needed[microbatch] += 1

    def end(self, microbatch: int) -> None:
        """A task has read them."""
        self._needed -= Counter([microbatch])

    def _work_out(self, microbatch: int) -> tuple[int, ...]:
        number = microbatch if microbatch >= 0 else held_out(microbatch)
        samples = range(number * self._batch, (number + 1) * self._batch)
        if microbatch >= 0:
            return tuple(self._leaves(samples))
        found = map(self._leaves_from, map(self._windows.held_out_start, samples))
        return tuple(dict.fromkeys(leaf for leaves in found for leaf in leaves))

    def _leaves_from(self, start: int) -> range:
        return leaves_of(start, self._context, self._width)

    def _leaves(self, samples: Iterable[int]) -> dict[int, int]:
        """Return the leaves of samples, each with the last sample in it."""
        return {
            leaf: sample
            for sample in samples
            for leaf in self._leaves_from(self._windows.training_start(sample, self._seed))
        }

    # --- fetching ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch what is needed, until cancelled."""
        while True:
            await self._read_again()
            self._look()
            with trio.move_on_after(TICK_S):
                await self._changed.wait()
            self._changed = trio.Event()

    async def _read_again(self) -> None:
        """Read and prove leaves of an earlier process that are needed, a few at a time."""
        if self._whole is not None or (cache := self._cache) is None:
            return
        needed = dict.fromkeys((*self._of(self._needed), *self._plan))
        unread = [leaf for leaf in needed if cache.has_unread(leaf)]
        for leaf in unread[:PROVEN_AT_ONCE]:
            cache.note(leaf, await trio.to_thread.run_sync(cache.load, leaf))
        if unread:
            self._changed.set()
            self._arrived.unpark_all()

    def receive(self, peer: PeerId, message: Chunk, payload: bytes) -> None:
        """Take what a member sends."""
        now = self._ports.now()
        if message.index is not None:
            verdict = self._verdict(message.index, payload)
            self._perform(self._fetch.chunk(peer, message, verdict, now), payload)
            if verdict == "lie":
                self._withdrawn(peer)
        elif not payload:
            self._withdrawn(peer)
            self._perform(self._fetch.refused(peer, now))
        elif self._missing_here and peer not in self.offering:
            self._offered(peer)
        self._changed.set()

    def lost(self, peer: PeerId) -> None:
        """A member is gone."""
        self._withdrawn(peer)
        self._perform(self._fetch.lost(peer, self._ports.now()))

    def _verdict(self, index: int, payload: bytes) -> Verdict:
        if not payload:
            return "lacks"
        proven = is_proven(payload, index, self._data.size_bytes, self._data.digest)
        return "proven" if proven else "lie"

    def _look(self) -> None:
        """Plan further, and ask for what is not here."""
        cache, now = self._cache, self._ports.now()
        if self._whole is not None or cache is None:
            return
        self._ask_again(now)
        self._plan_further()
        awaited, ahead = self._missing(cache) if now >= self._rests_until else ([], [])
        self._perform(self._fetch.offer(self.offering, now))
        self._perform(self._fetch.want(awaited, ahead, now))
        self._perform(self._fetch.tick(now))
        self._note_supply(fetching=bool(self._plan), starved=self._fetch.starved(now))

    def _plan_further(self) -> None:
        if self._first is None:
            return
        first, most = self._first, min(self._most_ahead, self._budget // LEAF_BYTES // 2)
        self._plan = {leaf: last for leaf, last in self._plan.items() if last >= first}
        until = min(first + self._samples_ahead, self._planned + PLANNED_AT_ONCE)
        while self._planned < until and len(self._plan) < most:
            self._plan.update(self._leaves([self._planned]))
            self._planned += 1
        if self._planned == until < first + self._samples_ahead:
            self._changed.set()

    def _missing(self, cache: LeafCache) -> tuple[list[int], list[int]]:
        """Return what tasks wait for, and what else of the plan is not here."""

        def missing(leaves: Iterable[int]) -> list[int]:
            return [leaf for leaf in leaves if not cache.has(leaf) and not cache.has_unread(leaf)]

        awaited = self._of(self._needed)
        return missing(awaited), missing(leaf for leaf in self._plan if leaf not in awaited)

    def _of(self, microbatches: Iterable[int]) -> dict[int, None]:
        """Return the leaves of microbatches."""
        found = (leaf for microbatch in microbatches for leaf in self._leaves_of(microbatch))
        return dict.fromkeys(found)

    def _perform(self, effects: Sequence[LeafEffect], payload: bytes = b"") -> None:
        for effect in effects:
            if isinstance(effect, StoreChunk):
                self._keep(effect.index, payload)
            else:
                self._ports.perform(effect)

    def _keep(self, index: int, proven: bytes) -> None:
        if self._cache is None:
            return
        needed = {*self._plan, *self._of(self._needed)}
        try:
            self._cache.keep(index, proven, needed)
        except OSError as error:
            self._rests_until = self._ports.now() + DISK_AGAIN_S
            words = (
                f"training data cannot be kept in {self._cache.folder}: {error.strerror}: free "
                "space, or lower --data-cache"
            )
            self._ports.perform(Explain("transfer", words, "warning"))
            return
        self._arrived.unpark_all()


def _words(data: DataSpec) -> str:
    """Say what is missing and what to do; the first words fit a narrow screen."""
    return (
        f"the training data {data.name} are missing: join with --data FOLDER, or wait for a member "
        f"who has them ({data.kept_bytes / 1e6:.1f} MB, root begins with {data.digest[:12]})"
    )
