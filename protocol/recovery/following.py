"""Whose lineage a volunteer follows when it begins nothing itself.

A returning member goes to the lineage that trains. Who sees itself that it cannot go on follows one
member's decision if it would have decided the same, now and in that one's place, or if another
member follows it already; who only stands still, or has nothing to judge by, if half of the members
with a voice follow it, too; all these follow most of those. A member that trains follows none. Pure
decisions over what is known.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from protocol.ids import PeerId, short
from protocol.pace import ANSWER_S, HEARD_S
from protocol.recovery.choice import order
from protocol.recovery.deciding import Deciding
from protocol.recovery.knowledge import Knowledge
from protocol.recovery.lines import Lines
from protocol.recovery.stored import Lineage
from protocol.recovery.trouble import IN_VAIN_S, Trouble

Reason = str


class Following:
    """See the module's docstring."""

    def __init__(
        self, known: Knowledge, trouble: Trouble, lines: Lines, deciding: Deciding
    ) -> None:
        self._known, self._trouble, self._lines = known, trouble, lines
        self._deciding = deciding

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
                return serving, "others already do"
            if not known.open:
                return None  # it may have been trained apart from ours
        if self._trouble.is_healthy():
            return None
        cannot_go_on = self._cannot_go_on()
        if known.open and known.evidence.any and not (cannot_go_on or known.is_stalled()):
            return None
        comes_back = self._would_come_back if serving == known.lineage else lambda _: False
        later = {
            of: peer
            for peer, of in said.items()
            if order(of) > order(known.lineage) and not (known.is_refused(of) or comes_back(of))
        }
        for of in sorted(later, key=lambda of: (count[of], order(of)), reverse=True):
            if 2 * count[of] > len(voters) + (known.open or known.evidence.any):
                return of, "most volunteers do"
            enough = cannot_go_on and (count[of] > 1 or self._has_turn(of, said))
            if (enough or 2 * count[of] >= len(voters)) and self._would_choose(of):
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

    def _has_turn(self, lineage: Lineage, said: Mapping[PeerId, Lineage]) -> bool:
        """Whether it was the turn of a member that follows a lineage to decide it: in its place we
        would have decided now, too, and after ours, or the same member would be the first again."""
        known, since_s = self._known, self._trouble.since
        if not known.open:
            return known.is_next(lineage)
        if since_s is None or lineage.number != known.lineage.number + 1:
            return False
        *_, until = self._deciding.plan(since_s + ANSWER_S)
        followers = (peer for peer, of in said.items() if of == lineage)
        before = min(len(self._deciding.before(peer)) for peer in followers)
        return known.now >= until + HEARD_S * before

    def _cannot_go_on(self) -> bool:
        """Whether we see ourselves that our lineage cannot go on, or begin the run: then one
        member's decision is enough."""
        known = self._known
        return self._trouble.lasts() or known.is_left() or (not known.open and known.is_new())

    def _would_choose(self, lineage: Lineage) -> bool:
        """Whether we would have decided it: it is the next one, or after a long standstill, and for
        a newcomer, any; nothing newer is whole, or nobody gives it; and it begins at the states
        that we believe, with electors most of whom are here, follow no later one, and have a voice
        if anybody here has one."""
        known, version = self._known, lineage.version
        far = not (known.is_next(lineage) or known.is_left())
        if far and known.evidence.any and not known.is_stalled():
            return False
        if version < known.newest_whole().version and not self._begins_in_vain():
            return False
        voices = known.voters() or known.linked()
        there = voices.union({known.me}).intersection(lineage.electors)
        here = [peer for peer in there if not known.has_left(peer, lineage)]
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
