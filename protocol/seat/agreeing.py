"""The amendments on which our stage has agreed, as one of its seats goes by them.

State: the list that the last closed step has agreed on, and whether we closed it.
"""

from __future__ import annotations

from protocol.agreed import AgreedList
from protocol.amendments.agreeing import may_follow, to_agree_on, told_by
from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Plan


class Agreeing:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        amendments: what this volunteer knows of the founder's; None: nothing.
        steps: of the run without amendments.
        sure: whether we begin with the run itself. In a copy siblings may have agreed on another
            list than we knew of then, until we have closed a step.
    """

    def __init__(
        self, place: Place, amendments: Amendments | None, steps: int, *, sure: bool
    ) -> None:
        self._place, self._known, self.unamended_steps = place, amendments, steps
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

    def to_plan(self, view: SwarmView, step: int) -> AgreedList:
        """Return the amendments that we plan a step with."""
        if self._known is None:
            return ()
        told = self._told(self._known, view, step)
        return to_agree_on(self._known, self.agreed, told, step, not self._sure)

    def may_hold(self, plan: Plan, view: SwarmView) -> Answer:
        """Whether the amendments that a plan names may hold."""
        if self._known is None:
            return YES if not plan.amended else no("a plan names amendments, and we know of none")
        lists = self.agreed, plan.amended, self._told(self._known, view, plan.step)
        return may_follow(self._known, *lists, plan.step, not self._sure)

    def rate(self, plan: Plan) -> float | None:
        """Return the learning rate of a plan's step; None: the manifest's."""
        return self._known.rate(plan.amended, plan.step) if self._known else None

    def _told(self, known: Amendments, view: SwarmView, step: int) -> AgreedList | None:
        """Return on what most replicas of the stage before have agreed; None: ours decides."""
        if self._place.first:
            return None
        before = view.serving(self._place.stage - 1)
        lists = [r.amended for r in before if r.version >= step - 1]
        return told_by(known, lists, len(before))
