"""Whose lineage a volunteer follows when it begins nothing itself.

A returning member goes to the lineage that trains. Who is in trouble follows one member's decision
if it would have decided the same; who only stands still, or has nothing to judge by, if half of the
members with a voice follow it, too; both follow most of these. A member that trains follows none.
Pure decisions over what is known.
"""

from collections import Counter
from collections.abc import Collection

from protocol.ids import short
from protocol.recovery.choice import order
from protocol.recovery.knowledge import Knowledge
from protocol.recovery.lines import Lines
from protocol.recovery.stored import Lineage
from protocol.recovery.trouble import IN_VAIN_S, Trouble

Reason = str


class Following:
    """See the module's docstring."""

    def __init__(self, known: Knowledge, trouble: Trouble, lines: Lines) -> None:
        self._known, self._trouble, self._lines = known, trouble, lines

    def lineage(self) -> tuple[Lineage, Reason] | None:
        """Return the lineage of others that we ought to be in, and why."""
        known, voters = self._known, self._known.voters()
        apart = self._lines.trained_apart()
        said = {
            peer: of
            for peer, of in known.lineages_of(known.linked()).items()
            if of not in apart and known.is_credible(of)
        }
        count = Counter(
            of for peer, of in said.items() if peer in voters and known.has_part(peer, of)
        )
        looks = not (known.open and (known.newest or known.evidence.version))
        serving = self._most_served(count) if looks else None
        if serving is not None:
            if self._goes_to(serving):
                self._trouble.seen_at = None
                return serving, "others already do"
            if not known.open:
                return None  # it may have been trained apart from ours
        if self._trouble.is_healthy() or not self._may_leave():
            return None
        comes_back = self._would_come_back if serving == known.lineage else lambda _: False
        later = {
            of: peer
            for peer, of in said.items()
            if order(of) > order(known.lineage) and not (known.is_refused(of) or comes_back(of))
        }
        for of in later:
            if 2 * count[of] > len(voters) + (known.open or known.evidence.any):
                return of, "most volunteers do"
        for of in sorted(later, key=order, reverse=True):
            one_is_enough = self._trouble.was_seen() and known.is_next(of)
            if (one_is_enough or 2 * count[of] >= len(voters)) and self._would_choose(of):
                return of, f"{short(later[of])} decided it"
        return None

    def _goes_to(self, serving: Lineage) -> bool:
        """Whether we go to the lineage in which most members serve: no more of our own than a
        checkpoint interval is lost, and no roll-back is undone."""
        known = self._known
        lost = known.newest_whole().version - serving.version
        undone = known.open and serving.number < known.lineage.number
        return serving != known.lineage and lost <= known.every and not undone

    def _most_served(self, lineages: Collection[Lineage]) -> Lineage | None:
        """Return the lineage in which most members serve, if its beginning is known.

        An earlier one than ours counts only if it has gone on beyond the beginning of ours, because
        a replica that was suspended during the roll-back serves too, and so does a newcomer that
        began from the seed alone.
        """
        ours, eras = self._known.lineage, self._known.context.eras
        further = self._eras_beyond(ours.version)
        by_era = {
            lineage.era: lineage
            for lineage in [*lineages, ours]
            if order(lineage) >= order(ours) or lineage.era in further
        }
        serving = Counter(era for peer in self._known.voters() for era in eras.get(peer, ()))
        known = [(count, era) for era, count in serving.items() if era in by_era]
        return by_era[max(known)[1]] if known else None

    def _eras_beyond(self, version: int) -> set[int]:
        """Return the lineages in which seats have gone on beyond a version."""
        served = self._known.context.eras.values()
        return {era for of in served for era, reached in of.items() if reached > version}

    def _would_come_back(self, lineage: Lineage) -> bool:
        """Whether we would leave a lineage at once for ours, in which most seats serve: as many
        roll-backs have led to both, and ours trains."""
        ours = self._known.lineage
        return ours.era in self._eras_beyond(lineage.version) and lineage.number == ours.number

    def _may_leave(self) -> bool:
        """Whether others' word is reason enough to leave our lineage: we see trouble too, have just
        come back, have not trained for long, or have nothing to judge it by."""
        known = self._known
        has_part = known.open and known.evidence.any
        return not has_part or self._trouble.was_seen() or known.is_stalled()

    def _would_choose(self, lineage: Lineage) -> bool:
        """Whether we would have decided it: it is the next one, or after a long standstill, and for
        a newcomer, any; nothing newer is whole, or nobody gives it; and it begins at the states
        that we believe, with electors most of whom are here and have a voice; where nobody here has
        one, with electors most of whom are here."""
        known, version = self._known, lineage.version
        if not (known.is_next(lineage) or known.is_stalled() or not known.evidence.any):
            return False
        if version < known.newest_whole().version and not self._begins_in_vain():
            return False
        voices = known.voters() or known.linked()
        here = voices.union({known.me}).intersection(lineage.electors)
        if 2 * len(here) <= len(lineage.electors):
            return False
        reached, claims = known.reached(), known.claims(known.stored_live())
        if reached is not None and version > reached and claims.witnesses(version) < 2:
            return False
        return not version or claims.hashes(version) == lineage.hashes

    def _begins_in_vain(self) -> bool:
        """Whether our lineage has begun and some stage has long been without its state: who tries
        to hold that stage knows better whether anybody gives it."""
        known = self._known
        lost = known.open and None in known.context.versions and not known.has_begun()
        since_s = known.stalled_since
        return lost and since_s is not None and known.now >= since_s + IN_VAIN_S
