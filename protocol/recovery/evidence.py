"""Evidence: a volunteer's own observations of the run, by which it weighs others' claims.

Anybody can publish a record that names any lineage and any checkpoint. So claims are weighed by
work. A peer is *proven* once a step that we have applied contains its work: it sent a contribution
or a sum for our stage's round, or an activation or a gradient that we counted. For our own stage we
know the hash of every version that we have made; for other stages, the hashes that proven peers
have named.

State: proven peers and their last records, hashes, and the electors of the latest decrees, all
bounded. ``Kept`` is its form on disk. Times are monotonic seconds.

A newcomer has worked with nobody. If a chain of waypoints (``protocol/waypoints``) leads from the
manifest to a version, the members that the last one names are proven to the newcomer.

Who names a state, and does not give it when it is asked for, is *doubted*: it still counts where
nobody else names anything that would do.

Every decree names the electors of the next step, and without a majority of them nobody closes it
(``protocol/decree``). So they alone know whether the run has gone on since, and they alone can say
that it goes on elsewhere: voices are for life and identities are free, so those that have come and
gone may be more than those that are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain, repeat
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.decree.decree import is_majority
from protocol.ids import PeerId
from protocol.recovery.stored import Copy, Lineage, Stored, belongs
from protocol.view import SwarmView
from protocol.wire.fields import PeerText, StageIndex, StepIndex

MAX_PROVEN: Final = 256
"""Peers; the one proven longest ago is forgotten first."""
MAX_DOUBTED: Final = 256
DOUBTED_AFTER: Final = 3
"""Attempts to have a state that a peer has named."""
MAX_MADE: Final = 1024
"""Hashes of versions that we made ourselves."""
AHEAD_STEPS: Final = 2
"""No stage is further ahead of our last commit at the moment at which we make it."""
MAX_ELECTORATES: Final = 16
"""Different sets of electors that are remembered, the latest: they change when members come or
go."""


class LastRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last record of a proven peer: it counts after the record has expired."""

    author: PeerText
    stored: Stored


class Electorate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The electors that a decree of a stage has named, in rising order."""

    stage: StageIndex
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ELECTORS)]


class Kept(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of the evidence that is saved."""

    version: StepIndex = 0
    """Newest version that one of our seats has ever made; 0: none."""
    stages: Annotated[tuple[StageIndex, ...], Meta(max_length=limits.MAX_STAGES)] = ()
    """Stages in which we have closed steps."""
    proven: Annotated[tuple[PeerText, ...], Meta(max_length=MAX_PROVEN)] = ()
    """The latest last."""
    last_records: Annotated[tuple[LastRecord, ...], Meta(max_length=MAX_PROVEN)] = ()
    made: Annotated[tuple[Copy, ...], Meta(max_length=MAX_MADE)] = ()
    """Stage, version and hash of what our seats have made."""
    together: Annotated[tuple[StepIndex, ...], Meta(max_length=MAX_PROVEN)] = ()
    """Of each proven peer, the newest version that its work is in."""
    electorates: Annotated[tuple[Electorate, ...], Meta(max_length=MAX_ELECTORATES)] = ()
    """Of the latest decrees, each once; the newest last."""
    saw_training: bool = False
    """Whether a version of the run was ever served here or before our eyes."""


class Evidence:
    """See the module's docstring.

    Args:
        kept: what an earlier process had seen.
    """

    def __init__(self, kept: Kept | None = None) -> None:
        kept = Kept() if kept is None else kept
        self.version = kept.version
        self.closed_at: float | None = None
        """When a seat of this process last closed a step of our lineage."""
        self._stages = set(kept.stages)
        together = chain(kept.together, repeat(0))
        self._proven = dict(zip(map(PeerId, kept.proven), together, strict=False))
        """By peer: the newest version that its work is in."""
        self._made = {(one.stage, one.version): one.hash for one in kept.made}
        self._last_records = {PeerId(one.author): one.stored for one in kept.last_records}
        self._not_given: dict[PeerId, int] = {}
        """By peer: how often a state that it has named was not to be had."""
        self._electorates = list(kept.electorates)
        self.saw_training = kept.saw_training

    @property
    def any(self) -> bool:
        """Whether any peer may be proven: we have closed a step, or a waypoint names members."""
        return bool(self._stages or self._proven)

    @property
    def worked(self) -> bool:
        """Whether we have ever closed a step."""
        return bool(self._stages)

    def kept(self) -> Kept:
        """Return what is to be saved."""
        records = tuple(
            LastRecord(author, said) for author, said in sorted(self._last_records.items())
        )
        stages, proven = tuple(sorted(self._stages)), tuple(self._proven)
        made = tuple(Copy(*of, state) for of, state in self._made.items())
        together = tuple(self._proven.values())
        named = tuple(self._electorates)
        of_others = (proven, records, made, together, named)
        return Kept(self.version, stages, *of_others, self.saw_training)

    # --- inputs ------------------------------------------------------------------------------

    def closed(
        self,
        stage: int,
        version: int,
        state: bytes,
        with_whom: Collection[PeerId],
        now: float,
        electors: Collection[PeerId] = (),
    ) -> bool:
        """Note that one of our seats has closed a step.

        Args:
            stage: its stage.
            version: the new version.
            state: hash of the version.
            with_whom: peers whose work is in it.
            now: monotonic seconds.
            electors: that the decree names.

        Returns:
            Whether it proves a new peer, names other electors or is the stage's first, and should
            be saved.
        """
        news = stage not in self._stages or not self._proven.keys() >= set(with_whom)
        if electors:
            news |= self._named(Electorate(stage, tuple(sorted(electors))))
        self.saw_training = True
        self.version = max(self.version, version)
        self.closed_at = now
        self._stages.add(stage)
        for peer in sorted(with_whom):
            self._proven.pop(peer, None)
            self._proven[peer] = version
        for peer in list(self._proven)[:-MAX_PROVEN]:
            del self._proven[peer]
            self._last_records.pop(peer, None)
        self._made[stage, version] = state
        for old in list(self._made)[:-MAX_MADE]:
            del self._made[old]
        return news

    def _named(self, electorate: Electorate) -> bool:
        """Remember electors; return whether they are others than those of the stage before."""
        before = self._last_electorates().get(electorate.stage)
        self._electorates = [one for one in self._electorates if one != electorate]
        self._electorates = [*self._electorates, electorate][-MAX_ELECTORATES:]
        return before != electorate

    def _last_electorates(self) -> dict[int, Electorate]:
        return {one.stage: one for one in self._electorates}

    def certify(self, version: int, peers: Collection[PeerId]) -> None:
        """Begin with what a waypoint says, where we have not worked ourselves: its version, and the
        members that it names."""
        self._proven = dict.fromkeys(sorted(peers)[:MAX_PROVEN], 0)
        self.version = version

    def reopened(self, stage: int) -> None:
        """Note that our seat restarts from others' state; the versions it made before may have
        differed from theirs."""
        self._made = {k: v for k, v in self._made.items() if k[0] != stage}

    def begin(self, before: Lineage, lineage: Lineage) -> None:
        """Another lineage begins: newer versions than its beginning belong to the one that ended,
        older ones to both. The records of absent members do not say so, so we note it for them."""
        self.closed_at = None
        for author, said in self._last_records.items():
            shared = [
                copy
                for copy in said.copies
                if copy.version <= lineage.version and belongs(copy.version, said.lineage, before)
            ]
            if shared and said.lineage.era != lineage.era:
                self._last_records[author] = Stored(lineage, tuple(shared))
        self._made = {k: v for k, v in self._made.items() if k[1] <= lineage.version}
        self._proven = {p: min(v, lineage.version) for p, v in self._proven.items()}

    def begins_with(self, version: int, peers: Collection[PeerId]) -> None:
        """What we begin with, at this version, is what these peers have made."""
        for peer in self._proven.keys() & set(peers):
            self._proven[peer] = max(version, self._proven[peer])

    def go_over(self, version: int) -> None:
        """We give up what we have made apart from others, whose line is at this version."""
        self.closed_at, self._made = None, {}
        self.version = version

    def heard(self, author: PeerId, stored: Stored) -> None:
        """Remember the last record of a proven peer; no other peer's is kept."""
        if author in self._proven:
            self._last_records[author] = stored

    def not_had(self, named_by: Collection[PeerId]) -> None:
        """A state that these name could not be had from any of them."""
        for peer in sorted(named_by):
            self._not_given[peer] = self._not_given.pop(peer, 0) + 1
        for old in list(self._not_given)[:-MAX_DOUBTED]:
            del self._not_given[old]

    def had(self, named_by: Collection[PeerId]) -> None:
        """A state that these name was had."""
        for peer in named_by:
            self._not_given.pop(peer, None)

    # --- queries -----------------------------------------------------------------------------

    def proves(self, peer: PeerId) -> bool:
        """Whether we have worked with a peer."""
        return peer in self._proven

    def doubts(self, peer: PeerId) -> bool:
        """Whether a peer has named states and not given them."""
        return self._not_given.get(peer, 0) >= DOUBTED_AFTER

    def vetted(self, view: SwarmView) -> SwarmView:
        """Return the view without serving replicas that do not count.

        Where a member that a newcomer's waypoint names serves a stage, no other replica of that
        stage counts; nor does one that is doubted, where another serves.
        """
        by_waypoint = bool(self._proven) and not self.worked
        if not by_waypoint and not self._not_given:
            return view
        stages = []
        for stage, replicas in enumerate(view.stages):
            serving = {r.peer for r in view.serving(stage)}
            known = serving & self._proven.keys() if by_waypoint else serving
            known = known or serving
            known = {peer for peer in known if not self.doubts(peer)} or known
            stages.append([r for r in replicas if r.peer in known or not r.serving])
        return SwarmView.of(stages, view.unseen, view.relayed)

    @property
    def last_electors(self) -> list[frozenset[PeerId]]:
        """By stage in which we have closed steps: the electors that the newest decree names."""
        return [frozenset(map(PeerId, one.electors)) for one in self._last_electorates().values()]

    def seconded(
        self, follows: Callable[[PeerId], bool], is_gone: Callable[[PeerId], bool]
    ) -> bool:
        """Whether a majority of the electors of one decree are such; of earlier ones, too, because
        parts of a split swarm name only their own members since they parted.

        Args:
            follows: whether a peer follows the lineage in question.
            is_gone: whether its process has certainly ended: it counts for neither side.
        """
        named = [frozenset(map(PeerId, one.electors)) for one in self._electorates]
        there = ({p for p in one if follows(p) and not is_gone(p)} for one in named)
        found = (is_majority(*pair, is_gone) for pair in zip(there, named, strict=True))
        return not named or any(found)

    @property
    def any_proven(self) -> bool:
        """Whether we know a member whose work is in ours."""
        return bool(self._proven)

    def together(self, peers: Collection[PeerId]) -> int:
        """Return the newest version that one of these has had a part in; 0: none, or unknown."""
        return max((self._proven.get(peer, 0) for peer in peers), default=0)

    def is_near(self, stage: int) -> bool:
        """Whether we have served a stage or a neighbour of it: there we know the replicas."""
        return not self._stages.isdisjoint((stage - 1, stage, stage + 1))

    def contradicts(self, lineage: Lineage) -> bool:
        """Whether a lineage begins at a version that we made ourselves, with another state."""
        made = ((self._made.get((s, lineage.version)), h) for s, h in enumerate(lineage.hashes))
        return any(ours is not None and ours != theirs for ours, theirs in made)

    def denies(self, copy: Copy) -> bool:
        """Whether we made this version ourselves, and it was another state."""
        return self._made.get((copy.stage, copy.version), copy.hash) != copy.hash

    def vouches(self, copy: Copy, lineage: Lineage) -> bool:
        """Whether a proven peer has named just that state of a lineage."""
        return any(
            copy in said.copies and belongs(copy.version, said.lineage, lineage)
            for said in self._last_records.values()
        )
