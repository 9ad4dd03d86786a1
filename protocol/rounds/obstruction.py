"""Obstruction: which peers a replica waits for in the round, and from when it reports them.

Every replica looks at what it knows best: whose contribution, sum, report, Ready or commit is
missing although nothing else is needed for it. A wait that lasts too long becomes a *claim*:
heartbeats name the peer as missing (``SeatStatus.missing``), and one of the two has to go
(``seat/standing.py``). A peer that makes a claim itself is waited for until that is settled. What
depends on others is waited for longer (SPEC.md, section 11).

A leader gives a plan of its own up when nothing comes of it any more, for messages may be lost with
a link. A round over a slow line takes as long as its bytes, and an abandoned one starts again with
the first byte: the time counts from the last arrival, and doubles with every such attempt.

State: since when each item is waited for, and how long rounds take here. Times are monotonic
seconds.
"""

from collections.abc import Iterable
from typing import Final, Literal

from protocol.ids import PeerId
from protocol.pace import ANSWER_S, FORGET_S, HEARD_S, LOST_S

Kind = Literal[
    "contribution",
    "plan",
    "sum",
    "report",
    "lease",
    "work",
    "behind",
    "ready",
    "commit",
    "spoilt",
]
Wait = tuple[Kind, PeerId]

TIMES: Final[dict[Kind, float]] = {
    "spoilt": 0.0,
    "contribution": 1.0,
    "plan": 1.0,
    "sum": 1.75,
    "report": 2.0,
    "lease": 2.0,
    "ready": 2.5,
    "commit": 3.25,
    "work": 4.5,
    "behind": 6.0,
}
"""How long each is waited for, in units of ``Obstruction.patience_s``."""
BEFORE_A_PLAN: Final = frozenset[Kind](("spoilt", "plan", "report"))
LEASED: Final = frozenset[Kind](("lease", "work"))
SHARED: Final = frozenset[Kind]((*LEASED, "plan", "behind"))
"""These wait for all that the step needs, whichever replica has it."""
FIRST_S: Final = 3 * HEARD_S
"""Before any round has been closed here (memory is touched, kernels are compiled), beside what the
bytes of a round take on a slow line, and while the time of a microbatch is unknown."""
USUAL_TIMES: Final = 2.0
FORGET: Final = 0.7
"""Decay of a long round's weight with each shorter one."""
TASKS: Final = 4.0
"""A member may be in the middle of a microbatch, at a quarter of our speed."""
MOST_DOUBLINGS: Final = 5
"""Of a leader's time for each attempt of a step that comes to nothing."""


class Obstruction:
    """See the module's docstring.

    Args:
        longest_s: a round's bytes take at most so long, on a line that is slow.
    """

    def __init__(self, longest_s: float = 0.0) -> None:
        self._longest_s = longest_s
        self._since: dict[Wait, float] = {}
        self._usual_s: float | None = None
        self._begun_at: float | None = None
        self._not_before = 0.0
        self.planned_at = self._moved_at = 0.0
        """When we planned last as the leader, and when something has come of that."""
        self._came = self._in_vain = 0
        """How much has come, and how many of our attempts have come to nothing in this step."""

    def planned(self, leader: PeerId, now: float) -> None:
        """We follow a plan: what it takes is waited for from now on, except from its leader, which
        cannot put off for ever what it owes by planning anew."""
        self._begun_at = now
        kept = self._since.items()
        self._since = {w: at for w, at in kept if w[0] in BEFORE_A_PLAN or w[1] == leader}

    def arrived(self) -> None:
        """Something of the round has come. Before one has been closed here, the rest is waited for
        from now on: the line may be slower than any that we would think of."""
        if self._usual_s is None:
            self._since = {w: at for w, at in self._since.items() if w[0] in BEFORE_A_PLAN}

    def brought(self) -> None:
        """More of the step is counted: what is leased has time again."""
        self._since = {w: at for w, at in self._since.items() if w[0] not in LEASED}

    def lost_one(self, now: float) -> None:
        """Restart the waits after the loss of a peer of our stage or the next: others take over its
        part of the step, and the step cannot be closed without it before the electors have listed
        it as lost. Waits for the peer itself continue."""
        self._since = {w: at for w, at in self._since.items() if w[0] not in SHARED}
        self._not_before = now + LOST_S

    def closed(self, now: float) -> None:
        """The step is closed."""
        self._since = {}
        if self._begun_at is not None:
            took_s = now - self._begun_at
            self._usual_s = max(took_s, FORGET * (self._usual_s or 0.0))
        self._begun_at, self._in_vain = None, 0

    def lead(self, came: int, now: float) -> None:
        """We plan as the leader; ``came``: how much is here of the round."""
        self.planned_at = self._moved_at = now
        self._came = came

    @property
    def given_up_at(self) -> float:
        """When our plan is given up if nothing more comes of it."""
        usual_s = max(FORGET_S, self.expected_s())
        return self._moved_at + usual_s * (1 << min(self._in_vain, MOST_DOUBLINGS))

    def gives_up(self, came: int, now: float) -> bool:
        """Whether our plan is to be given up; call it again if it is not."""
        if now < self.given_up_at:
            return False
        if came != self._came:
            self._came, self._moved_at = came, now
            return False
        self._in_vain += 1
        return True

    def claims(
        self, waits: Iterable[Wait], excused: frozenset[PeerId], task_s: float, now: float
    ) -> tuple[PeerId, ...]:
        """Return the peers that have been waited for too long.

        Args:
            waits: the present waits: for what, and for which peer.
            excused: peers that wait for another one, by their own claim.
            task_s: how long a microbatch takes here, 0 where not known.
        """
        shared_from = max(now, self._not_before)
        self._since = {
            wait: self._since.get(wait, shared_from if wait[0] in SHARED else now)
            for wait in waits
            if wait[1] not in excused
        }
        unit_s = self.patience_s(task_s)
        waits_s = self._since.items()
        return tuple(sorted({w[1] for w, at in waits_s if now >= at + TIMES[w[0]] * unit_s}))

    def expected_s(self) -> float:
        """Return how long a round may take by those before; by its bytes, if there was none."""
        return self._longest_s if self._usual_s is None else USUAL_TIMES * self._usual_s

    def patience_s(self, task_s: float) -> float:
        """Return how long a contribution is waited for."""
        if self._usual_s is None:
            return FIRST_S + self._longest_s
        if not task_s:
            return max(FIRST_S, self.expected_s())
        return max(2 * ANSWER_S, self.expected_s()) + TASKS * task_s
