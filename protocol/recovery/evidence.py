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

The electors that the newest decree names alone know whether the run has gone on since: without a
majority of them nobody closes a step (``protocol/decree``).
"""

from collections.abc import Callable, Collection
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

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
MAX_ELECTOR_SETS: Final = 16
"""Different sets of electors that are remembered, the latest: they change when members come or
go."""


class Known(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A proven peer."""

    peer: PeerText
    together: StepIndex = 0
    """The newest version that its work is in."""
    said: Stored | None = None
    """Its last record: it counts after the record has expired."""


class StageElectors(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The electors that a decree of a stage has named, in rising order."""

    stage: StageIndex
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ELECTORS)]


class Kept(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of the evidence that is saved."""

    version: StepIndex = 0
    """Newest version that one of our seats has ever made; 0: none."""
    stages: Annotated[tuple[StageIndex, ...], Meta(max_length=limits.MAX_STAGES)] = ()
    """Stages in which we have closed steps."""
    known: Annotated[tuple[Known, ...], Meta(max_length=MAX_PROVEN)] = ()
    """The proven peers, the latest last."""
    made: Annotated[tuple[Copy, ...], Meta(max_length=MAX_MADE)] = ()
    """Stage, version and hash of what our seats have made."""
    electors: Annotated[tuple[StageElectors, ...], Meta(max_length=MAX_ELECTOR_SETS)] = ()
    """Of the latest decrees, each once; the newest last."""
    saw_training: bool = False
    """Whether a version of the run was ever served here or before our eyes."""
    me: Annotated[str, Meta(max_length=64)] = ""
    """Whose it is."""


class Evidence:
    """See the module's docstring.

    Args:
        kept: what an earlier process had seen.
        me: who we are. Where the key was lost, it takes the earlier one's place among the electors:
            that one never comes back.
    """

    def __init__(self, kept: Kept | None = None, me: str = "") -> None:
        kept = Kept() if kept is None else kept
        self._me = me
        self.version = kept.version
        self.closed_at: float | None = None
        """When a seat of this process last closed a step of our lineage."""
        self.elected: dict[int, frozenset[PeerId]] = {}
        """By stage in which this process has closed steps of our lineage: the electors that the
        newest decree names."""
        self._stages = set(kept.stages)
        self._known = {PeerId(one.peer): one for one in kept.known}
        self._made = {(one.stage, one.version): one.hash for one in kept.made}
        self._not_given: dict[PeerId, int] = {}
        """By peer: how often a state that it has named was not to be had."""
        self._electors = [
            replace(
                one, electors=tuple(sorted({me if it == kept.me else it for it in one.electors}))
            )
            for one in kept.electors
        ]
        self.saw_training = kept.saw_training

    @property
    def any(self) -> bool:
        """Whether any peer may be proven: we have closed a step, or a waypoint names members."""
        return bool(self._stages or self._known)

    @property
    def worked(self) -> bool:
        """Whether we have ever closed a step."""
        return bool(self._stages)

    def kept(self) -> Kept:
        """Return what is to be saved."""
        stages, known = tuple(sorted(self._stages)), tuple(self._known.values())
        made = tuple(Copy(*of, state) for of, state in self._made.items())
        electors = tuple(self._electors)
        return Kept(self.version, stages, known, made, electors, self.saw_training, self._me)

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
        news = stage not in self._stages or not self._known.keys() >= set(with_whom)
        if electors:
            news |= self._named(StageElectors(stage, tuple(sorted(electors))))
            self.elected[stage] = frozenset(electors)
        self.saw_training = True
        self.version = max(self.version, version)
        self.closed_at = now
        self._stages.add(stage)
        for peer in sorted(with_whom):
            self._known[peer] = replace(self._known.pop(peer, Known(peer)), together=version)
        for peer in list(self._known)[:-MAX_PROVEN]:
            del self._known[peer]
        self._made[stage, version] = state
        for old in list(self._made)[:-MAX_MADE]:
            del self._made[old]
        return news

    def _named(self, electors: StageElectors) -> bool:
        """Remember electors; return whether they are others than those of the stage before."""
        before = self._last_of_stages().get(electors.stage)
        others = [one for one in self._electors if one != electors]
        self._electors = [*others, electors][-MAX_ELECTOR_SETS:]
        return before != electors

    def _last_of_stages(self) -> dict[int, StageElectors]:
        return {one.stage: one for one in self._electors}

    def certify(self, version: int, peers: Collection[PeerId]) -> None:
        """Begin with what a waypoint says, where we have not worked ourselves: its version, and the
        members that it names."""
        known = (self._known.get(peer, Known(peer)) for peer in sorted(peers)[:MAX_PROVEN])
        self._known = {PeerId(one.peer): replace(one, together=0) for one in known}
        self.version = version

    def reopened(self, stage: int) -> None:
        """Note that our seat restarts from others' state; the versions it made before may have
        differed from theirs."""
        self._made = {k: v for k, v in self._made.items() if k[0] != stage}

    def begin(self, before: Lineage, lineage: Lineage) -> None:
        """Another lineage begins: newer versions than its beginning belong to the one that ended,
        older ones to both. The records of absent members do not say so, so we note it for them."""
        self.closed_at, self.elected = None, {}
        for peer, known in self._known.items():
            said = known.said or Stored()
            shared = tuple(
                copy
                for copy in said.copies
                if copy.version <= lineage.version and belongs(copy.version, said.lineage, before)
            )
            if shared and said.lineage.era != lineage.era:
                known = replace(known, said=Stored(lineage, shared))
            together = min(known.together, lineage.version)
            self._known[peer] = replace(known, together=together)
        self._made = {k: v for k, v in self._made.items() if k[1] <= lineage.version}

    def go_over(self, version: int) -> None:
        """We give up what we have made apart from others, whose line is at this version."""
        self.closed_at, self._made, self.elected = None, {}, {}
        self.version = version

    def heard(self, author: PeerId, stored: Stored) -> None:
        """Remember the last record of a proven peer; no other peer's is kept."""
        if author in self._known:
            self._known[author] = replace(self._known[author], said=stored)

    def not_had(self, named_by: Collection[PeerId]) -> None:
        """A state that these name could not be had from any of them."""
        for peer in sorted(named_by):
            self._not_given[peer] = self._not_given.pop(peer, 0) + 1
        for old in list(self._not_given)[:-MAX_DOUBTED]:
            del self._not_given[old]

    def misled(self, by: PeerId) -> None:
        """A state that this one named was not that of its version: it is doubted at once."""
        for _ in range(DOUBTED_AFTER):
            self.not_had([by])

    def had(self, named_by: Collection[PeerId]) -> None:
        """A state that these name was had."""
        for peer in named_by:
            self._not_given.pop(peer, None)

    # --- queries -----------------------------------------------------------------------------

    def proves(self, peer: PeerId) -> bool:
        """Whether we have worked with a peer."""
        return peer in self._known

    def doubts(self, peer: PeerId) -> bool:
        """Whether a peer has named states and not given them."""
        return self._not_given.get(peer, 0) >= DOUBTED_AFTER

    def vetted(self, view: SwarmView) -> SwarmView:
        """Return the view without serving replicas that do not count.

        Where a member that a newcomer's waypoint names serves a stage, no other replica of that
        stage counts; nor does one that is doubted, where another serves.
        """
        by_waypoint = bool(self._known) and not self.worked
        if not by_waypoint and not self._not_given:
            return view
        stages = []
        for stage, replicas in enumerate(view.stages):
            serving = {r.peer for r in view.serving(stage)}
            known = serving & self._known.keys() if by_waypoint else serving
            known = known or serving
            known = {peer for peer in known if not self.doubts(peer)} or known
            stages.append([r for r in replicas if r.peer in known or not r.serving])
        return SwarmView.of(stages, view.unseen, view.relayed)

    @property
    def last_electors(self) -> list[frozenset[PeerId]]:
        """By stage in which we have closed steps: the electors that the newest decree names."""
        return [frozenset(map(PeerId, one.electors)) for one in self._last_of_stages().values()]

    def seconded(
        self, follows: Callable[[PeerId], bool], is_gone: Callable[[PeerId], bool]
    ) -> bool:
        """Whether a majority of the electors of one decree are such; of earlier ones, too, because
        parts of a split swarm name only their own members since they parted.

        Args:
            follows: whether a peer follows the lineage in question.
            is_gone: whether its process has certainly ended: it counts for neither side.
        """
        named = [frozenset(map(PeerId, one.electors)) for one in self._electors]
        there = ({p for p in one if follows(p) and not is_gone(p)} for one in named)
        found = (is_majority(*pair, is_gone) for pair in zip(there, named, strict=True))
        return not named or any(found)

    @property
    def any_proven(self) -> bool:
        """Whether we know a member whose work is in ours."""
        return bool(self._known)

    def together(self, peers: Collection[PeerId]) -> int:
        """Return the newest version that one of these has had a part in; 0: none, or unknown."""
        known = (self._known[peer] for peer in peers if peer in self._known)
        return max((one.together for one in known), default=0)

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
            copy in known.said.copies and belongs(copy.version, known.said.lineage, lineage)
            for known in self._known.values()
            if known.said is not None
        )
