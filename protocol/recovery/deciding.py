"""Who decides where the run goes on, when, and with which electors.

The first live member by rank decides, and each next one a little later in its place. Before that,
newer copies are waited for as long as they may save more than the wait costs. Pure decisions over
what is known.
"""

from typing import Final

from protocol.decree.decree import electors
from protocol.ids import PeerId, rank, short
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, MANY_CHECKPOINTS, PATIENCE_S, Knowledge
from protocol.recovery.stored import Lineage
from protocol.recovery.trouble import Trouble

SILENT_SHARE: Final = 0.5
"""A lost stage's replica that is only silent is waited for, for this share of the time in which the
steps that it alone has would be made again. If it never returns, they cost half as much again."""
MAX_TURNS: Final = 8
"""After so many turns every member may decide."""
MOST_NAMES: Final = 3
"""Number of the awaited members that a message names."""


class Deciding:
    """See the module's docstring."""

    def __init__(self, known: Knowledge, trouble: Trouble) -> None:
        self._known, self._trouble = known, trouble

    def may_begin_again(self) -> bool:
        """Whether we may begin a run at its seed that others have trained: only if we have a part
        in it, were there when its lineage began, or are its founder, or else one liar could keep a
        run from beginning."""
        known = self._known
        served = any(known.me in there for there in known.context.serving)
        began = known.me in known.lineage.electors or known.me == known.founder
        return known.evidence.worked or served or began or not known.was_trained()

    def patience_s(self, lost: int, version: int) -> float:
        """Return how long to wait for copies that would save ``lost`` steps beyond ``version``.

        A wait costs more while others could train than after a shutdown, and saves nothing where
        there is nothing yet.
        """
        known = self._known
        if known.is_new():
            return 0.0
        if known.open:
            if lost > MANY_CHECKPOINTS * known.every:
                return PATIENCE_S
            again_s = max(0, lost) * self._trouble.step_s
            patience_s = min(PATIENCE_S, SILENT_SHARE * again_s)
            return patience_s if self._trouble.may_return() else 0.0
        last, here = known.evidence.last_electors, known.stored_live().keys()
        if version and lost <= known.every and last and not self._away():
            return 0.0
        if any(2 * len(electors & here) <= len(electors) for electors in last):
            return PATIENCE_S
        if lost <= 0:
            return 0.0
        return PATIENCE_S if lost > known.every else BRIEF_PATIENCE_S

    def _away(self) -> frozenset[PeerId]:
        """Return the absent electors of the newest decrees that we know: without them nobody has
        made a version that those who are here do not know of."""
        known = self._known
        return frozenset[PeerId]().union(*known.evidence.last_electors) - known.stored_live().keys()

    def awaited(self) -> str:
        """Name the absent members that may have newer copies."""
        names = sorted(map(short, self._away()))
        if not names or len(names) > MOST_NAMES:
            return "those"
        return f"{', '.join(names)},"

    def plan(self, began: float) -> tuple[Lineage, int, float]:
        """Return where we would begin a lineage, how many steps are made again then, and until when
        newer copies are waited for in a trouble that ``began`` so."""
        known = self._known
        target = known.newest_whole()
        named = known.claims(known.stored, known.lineage).newest(known.reached())
        lost = max(known.newest, named) - target.version
        return target, lost, began + self.patience_s(lost, target.version)

    def before(self, peer: PeerId) -> list[PeerId]:
        """Return the members that may decide before a member: those with a voice, and for one turn
        one linked stranger. What each of them decides is heard in ``HEARD_S``. The order differs
        in each lineage, and nobody who begins one chooses it."""
        known = self._known

        def by_rank(peer: PeerId) -> bytes:
            of = known.lineage
            return rank("restore", of.number, *of.hashes, peer)

        there = {known.me, *(known.linked() & known.stored.keys())}
        before = sorted((p for p in there if by_rank(p) < by_rank(peer)), key=by_rank)
        voters = known.voters() | {known.me}
        with_voice = [peer for peer in before if peer in voters]
        strangers = [peer for peer in before if peer not in voters]
        return [*with_voice, *strangers[:1]][:MAX_TURNS]

    def first_electors(self) -> tuple[PeerId, ...]:
        """Return the electors of a lineage that we decide: members with a voice that are here, but
        for those that serve another one: they go on in it."""
        known = self._known
        era, eras = known.lineage.era, known.context.eras
        there = known.voters() & known.stored.keys()
        here = [known.me, *(p for p in there if era in eras.get(p, (era,)))]
        return tuple(electors(era, here))
