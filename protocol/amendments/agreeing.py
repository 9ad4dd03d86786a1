"""How the stages agree from which step on an amendment holds.

The first stage decides: the plan of a step adds what its leader knows to the list of agreed
amendments, each with the first step for which it holds (``Amendments.propose``), and the commit
makes it so. Heartbeats carry the list that a replica's version was made with. The next stage takes
over what most replicas of the stage before have agreed on: they have all that they need for a step
only when their version of it is known, so a stage knows the list in time for its plan of two steps
later at most, and so on to the last. Whoever is away learns it with the state.

An amendment can therefore not come too late. It holds from the step that it names or, if that is
too near, from the first one that every stage can reach with it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.agreed import AgreedList
from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no


def common(one: AgreedList, other: AgreedList) -> int:
    """Return how many entries two lists have in common from the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def goes_beyond(one: AgreedList, other: AgreedList) -> bool:
    """Whether a list has all of another one, and perhaps more."""
    return one[: len(other)] == other


def takes_back(own: AgreedList, other: AgreedList, step: int) -> bool:
    """Whether a list lacks something that already holds at a step by ours."""
    return any(entry.from_step <= step for entry in own[common(own, other) :])


def told_by(amendments: Amendments, lists: Sequence[AgreedList], replicas: int) -> AgreedList:
    """Return the longest list with which most replicas of a stage agree, of what we know; empty:
    there is none. One replica of two, or two of four, are not believed.

    Args:
        amendments: what we know.
        lists: of its replicas, as far as they are at our step.
        replicas: how many it has.
    """
    for theirs in sorted(set(lists), key=lambda one: (-len(one), one)):
        for length in range(len(theirs), 0, -1):
            part = theirs[:length]
            agree = sum(goes_beyond(one, part) for one in lists)
            if 2 * agree > replicas and amendments.knows(part):
                return part
    return ()


def to_agree_on(
    amendments: Amendments, own: AgreedList, told: AgreedList | None, step: int, unsure: bool
) -> AgreedList:
    """Return the list that a leader plans a step with.

    Args:
        amendments: what we know.
        own: our stage's list, as the last commit made it.
        told: that of the stage before; None: ours is the first, which decides.
        step: the step.
        unsure: whether we have closed no step since we began from a copy.
    """
    if told is None:
        return amendments.propose(own, step)
    other = unsure and len(told) >= len(own) and not takes_back(own, told, step)
    return told if goes_beyond(told, own) or other else own


def may_follow(
    amendments: Amendments,
    own: AgreedList,
    named: AgreedList,
    told: AgreedList | None,
    step: int,
    unsure: bool,
) -> Answer:
    """Whether a plan's list is one that its leader may name; see ``to_agree_on``."""
    if not amendments.knows(named):
        return no("a plan names an amendment of the founder that we have not got yet")
    if takes_back(own, named, step):
        return no("a plan takes back an amendment of the founder that holds already")
    if unsure:
        return YES
    if not goes_beyond(named, own):
        return no("a plan leaves out an amendment on which our stage has agreed")
    if told is None:
        chosen = amendments.propose(own, step)
        right = goes_beyond(chosen, named)
        return YES if right else no("a plan lets an amendment hold from another step than it may")
    if not goes_beyond(told, named) and named != own:
        return no("a plan names an amendment on which the stage before has not agreed")
    if goes_beyond(told, own) and takes_back(told, named, step):
        return no("a plan leaves out an amendment that holds in the stage before")
    return YES
