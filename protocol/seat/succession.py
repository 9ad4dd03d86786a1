"""The line of leaders: who leads our step, as one of its replicas sees it, and who comes next.

State: the line of the present step.
"""

from protocol.decree.decree import Verify, bound_by, promises_of
from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.standing import Standing
from protocol.view import SwarmView, leaders
from protocol.wire.messages import Plan
from protocol.wire.parts import Ballot


class Succession:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        era: of the seat.
        standing: who counts.
        quorum: knows roll and electors.
        verify: checks a signature.
    """

    def __init__(
        self, place: Place, era: int, standing: Standing, quorum: Quorum, verify: Verify
    ) -> None:
        self._place, self._era, self._standing = place, era, standing
        self._quorum, self._verify = quorum, verify
        self._known: tuple[tuple[SwarmView, int, frozenset[PeerId]] | None, list[PeerId]]
        self._known = None, []
        """The line, and its inputs."""

    def of(self, step: int) -> list[PeerId]:
        """Return the leaders of our step, in order."""
        inputs = view, _, roll = self._standing.view, step, self._quorum.roll
        known = self._known[0]
        if known is None or known[0] is not view or known[1:] != inputs[1:]:
            self._known = inputs, leaders(view, self._place.stage, step, among=roll)
        return self._known[1]

    def first(self, step: int) -> PeerId | None:
        """Return the leader of our step."""
        return next(iter(self.of(step)), None)

    def may_lead(self, peer: PeerId) -> bool:
        """Whether a replica may lead our step: it is on the roll, if anybody serves who is."""
        serving, roll = self._standing.view.serving(self._place.stage), self._quorum.roll
        return peer in roll or all(replica.peer not in roll for replica in serving)

    def is_attempt_of(self, sender: PeerId, plan: Plan) -> bool:
        """Whether a step's attempt is its sender's: the first one is that of the leader whom the
        decree before designates; a later one takes the promises of a majority of the electors, that
        have voted for nothing. So nobody leaves an attempt that may be decreed."""
        if plan.attempt == 1:
            return sender == self._quorum.designated
        where = Ballot(plan.stage, self._era, plan.step, plan.attempt, sender, 0, b"")
        electors = self._quorum.electors
        promised = promises_of(where, plan.promises, electors, self._verify)
        bound = bound_by(promised.values(), electors)
        return not bound and self._quorum.suffice(promised)

    def leads_those_behind(self, step: int) -> bool:
        """Whether we are the first in line of those that are not past our step."""
        stage, view = self._place.stage, self._standing.view
        here = {r.peer for r in view.serving(stage) if r.version <= step}
        line = leaders(view, stage, step, among=self._quorum.roll & here)
        return next((peer for peer in line if peer in here), None) == self._place.me
