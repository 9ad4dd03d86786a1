"""The amendments on which our stage has agreed, as one of its seats goes by them.

The plan of a step adds what its leader knows to the list, each amendment with the first step for
which it holds (``Amendments.propose``); the decree makes it so, and whoever is away learns it with
the state. Each stage decides for itself. Its founder names a step by which all have heard of an
amendment, so they turn together; a stage that hears of it later turns later.

State: the list that the last closed step has agreed on, and whether we closed it.
"""

from __future__ import annotations

from protocol.agreed import AgreedList
from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no
from protocol.wire.messages import Plan


class Agreeing:
    """See the module's docstring.

    Args:
        amendments: what this volunteer knows of the founder's; None: nothing.
        steps: of the run without amendments.
        sure: whether we begin with the run itself. In a copy siblings may have agreed on another
            list than we knew of then, until we have closed a step.
    """

    def __init__(self, amendments: Amendments | None, steps: int, *, sure: bool) -> None:
        self._known, self.unamended_steps = amendments, steps
        self.agreed: AgreedList = amendments.agreed if amendments else ()
        self._sure = sure

    @property
    def steps(self) -> int:
        """Steps of the whole run, as far as we know."""
        return self._known.steps if self._known else self.unamended_steps

    def settle(self, agreed: AgreedList) -> bool:
        """Our stage has agreed with the step that it has closed; return whether the list is new to
        this volunteer."""
        self.agreed, self._sure = agreed, True
        return self._known is not None and self._known.settle(agreed)

    def to_plan(self, step: int) -> AgreedList:
        """Return the amendments that we plan a step with."""
        return self._known.propose(self.agreed, step) if self._known else ()

    def may_hold(self, plan: Plan) -> Answer:
        """Whether the amendments that a plan names may hold: all on which our stage has agreed, and
        some of those that we would add."""
        named, known = plan.amended, self._known
        if known is None:
            return YES if not named else no("a plan names amendments, and we know of none")
        if not known.knows(named):
            return no("a plan names an amendment of the founder that we have not got yet")
        if not self._sure:
            return YES
        if named[: len(self.agreed)] != self.agreed:
            return no("a plan leaves out an amendment on which our stage has agreed")
        if named != known.propose(self.agreed, plan.step)[: len(named)]:
            return no("a plan lets an amendment hold from another step than it may")
        return YES

    def rate(self, plan: Plan) -> float | None:
        """Return the learning rate of a plan's step; None: the manifest's."""
        return self._known.rate(plan.amended, plan.step) if self._known else None
