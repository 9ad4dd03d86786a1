"""How the stages agree from which step on an amendment holds.

The first stage decides: the plan of a step adds what its leader knows to the list of agreed
amendments, each with the first step for which it holds (``Amendments.propose``), and the commit
makes it so. Every message in which a replica reports what the stage before has counted
(``Returned``) carries the sender's list, and no stage closes a step before it has those of that
step. So the next stage has the list for its plan of two steps later at most, and so on to the last:
all have agreed before the first step for which it counts. Whoever is away learns it with the state.

An amendment can therefore not come too late. It holds from the step that it names or, if that is
too near, from the first one that every stage can reach with it. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from protocol.amendments.book import AgreedList, Amendments
from protocol.answer import YES, Answer, no
from protocol.wire.parts import AgreedAmendment


@dataclass(frozen=True, slots=True)
class Told:
    """What the stage before has told of its list, for one step.

    Fields:
        usual: what most of those say that have told us anything; a leader goes by it.
        sure: what most replicas of that stage say; empty: nothing. Only that can make us refuse a
            plan, or one replica could keep a stage from closing steps.
        entries: all that anybody has told.
    """

    usual: AgreedList = ()
    sure: AgreedList = ()
    entries: Collection[AgreedAmendment] = frozenset()


NOTHING_TOLD = Told()


def told_by(amendments: Amendments, lists: Iterable[AgreedList], replicas: int) -> Told:
    """Return what lists of the stage before come to; those that nobody could have agreed on do not
    count.

    Args:
        amendments: what we know.
        lists: one of each replica that has told us anything.
        replicas: how many replicas that stage has.
    """
    said = Counter(one for one in lists if amendments.knows(one))
    usual = max(said, key=lambda one: (said[one], len(one), one), default=())
    sure = usual if 2 * said[usual] > replicas else ()
    return Told(usual, sure, frozenset(entry for one in said for entry in one))


def common(one: AgreedList, other: AgreedList) -> int:
    """Return how many entries two lists have in common from the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def takes_back(own: AgreedList, other: AgreedList, step: int) -> bool:
    """Whether a list lacks something that already holds at a step by ours."""
    return any(entry.from_step <= step for entry in own[common(own, other) :])


def merged(own: AgreedList, told: Told, step: int) -> AgreedList:
    """Return the list that a later stage plans a step with: what the stage before has told, if it
    goes beyond ours and takes nothing back.

    Args:
        own: our stage's list.
        told: that of the stage before.
        step: the step.
    """
    theirs = told.usual
    if len(theirs) < len(own) or takes_back(own, theirs, step):
        return own
    return theirs


def may_follow(
    amendments: Amendments,
    own: AgreedList,
    named: AgreedList,
    told: Told | None,
    step: int,
) -> Answer:
    """Whether a plan's list is one that its leader may name.

    Args:
        amendments: what we know.
        own: our stage's list, as the last commit made it.
        named: the plan's.
        told: that of the stage before; None: ours is the first, which decides.
        step: the step.
    """
    if not amendments.knows(named):
        return no("a plan names an amendment of the founder that we have not got yet")
    if takes_back(own, named, step):
        return no("a plan takes back an amendment of the founder that holds already")
    if told is None:
        return YES if named == own else _decided(amendments, own, named, step)
    differs = common(named, told.sure) < min(len(named), len(told.sure))
    if differs or takes_back(told.sure, named, step):
        return no("a plan contradicts what the stage before has agreed on")
    new = named[common(own, named) :]
    if any(entry.from_step <= step and entry not in told.entries for entry in new):
        return no("a plan names an amendment on which the stage before has not agreed")
    return YES


def _decided(amendments: Amendments, own: AgreedList, named: AgreedList, step: int) -> Answer:
    """Whether the first stage's leader has chosen the steps as everybody would."""
    kept = common(own, named)
    chosen = amendments.propose(own[:kept], step)
    if named == chosen[: len(named)]:
        return YES
    again = kept < len(own) and len(named) <= len(chosen)
    pairs = zip(named[kept:], chosen[kept:], strict=False)
    if again and all(step < entry.from_step <= by.from_step for entry, by in pairs):
        return YES  # after a roll-back, some had agreed on it before and others not
    return no("a plan lets an amendment hold from another step than it may")
