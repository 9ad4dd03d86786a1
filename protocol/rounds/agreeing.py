"""The amendment by which our stage goes, as one of its seats sees it.

The plan of a step names the amendment that holds for its update, by what its leader knows; the
decree makes it so. A stage that hears of an amendment later turns later.

State: the amendment of the last step that we have closed.
"""

from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no
from protocol.wire.messages import Plan


class Agreeing:
    """See the module's docstring.

    Args:
        amendments: what this volunteer knows of the founder's; None: nothing.
        steps: of the run without amendments.
    """

    def __init__(self, amendments: Amendments | None, steps: int) -> None:
        self._known, self.unamended_steps = amendments, steps
        self._agreed = b""
        """Empty before we have closed a step: in a copy siblings may go by any."""

    @property
    def steps(self) -> int:
        """Steps of the whole run, as far as we know."""
        return self._known.steps if self._known else self.unamended_steps

    def closed(self, plan: Plan) -> None:
        """Our stage has closed a step."""
        self._agreed = plan.amended

    def to_plan(self, step: int) -> bytes:
        """Return the amendment that we plan a step with."""
        return self._known.due(step) if self._known else b""

    def may_hold(self, plan: Plan) -> Answer:
        """Whether the amendment that a plan names may hold: it is due, and not an older one than
        our stage goes by."""
        named, known = plan.amended, self._known
        if known is None:
            return YES if not named else no("a plan names an amendment, and we know of none")
        if not known.knows(named):
            return no("a plan names an amendment of the founder that we have not got yet")
        if not known.may_hold(named, plan.step):
            return no("a plan names an amendment that does not hold yet")
        if known.is_older(named, self._agreed):
            return no("a plan leaves out an amendment by which our stage goes")
        return YES

    def rate(self, plan: Plan) -> float | None:
        """Return the learning rate of a plan's step; None: the manifest's."""
        return self._known.rate(plan.amended, plan.step) if self._known else None
