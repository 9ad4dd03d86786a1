"""The kinds of faults, and the moments at which each can be injected. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from client.errors import ExitCode, UserError
from client.lab.chaos.failpoints import PHASES, Action, Phase

Kind = Literal["kill", "stop", "partition", "delay", "slow", "corrupt", "disk", "worker", "stage"]
Moment = Phase | Literal["any"]
"""A phase of the victim's step, or any moment."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MOMENTS: Final[dict[Kind, tuple[Moment, ...]]] = {
    "kill": PHASES,
    "stop": PHASES,
    "worker": PHASES,
    "corrupt": ("forward", "backward", "averaging"),
    "disk": ("checkpoint",),
    "partition": ("any",),
    "delay": ("any",),
    "slow": ("any",),
    "stage": ("any",),
}
ACTIONS: Final[dict[Kind, Action]] = {
    "kill": "kill",
    "stop": "stop",
    "worker": "kill-worker",
    "corrupt": "corrupt",
    "disk": "nospace",
}
"""The failpoint's action."""
MEANINGS: Final[dict[Kind, str]] = {
    "kill": "SIGKILL to node and worker; started again",
    "stop": "SIGSTOP to the node for 5 to 10 s",
    "partition": "its packets get lost, in both directions, for 10 s",
    "delay": "a second more each way for 10 s",
    "slow": "128 kB/s each way for 10 s",
    "corrupt": "bits of an encoded tensor flip before it is sent",
    "disk": "no space is left while a checkpoint is written",
    "worker": "SIGKILL to its compute worker",
    "stage": "SIGKILL to all replicas of a stage; started again",
}


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A kind of fault at a moment."""

    kind: Kind
    moment: Moment

    def __str__(self) -> str:
        return self.kind if self.moment == "any" else f"{self.kind}@{self.moment}"


def stages_of(fault: Fault, stages: int) -> range:
    """Return the stages at which a fault is possible: some moments do not exist at an end.

    The last stage sends no forward and stage 0 no gradient; only a stage with a next one can lose a
    replica there, which it then must recover from. The loss of an only stage is one task with its
    gradient.
    """
    if fault.moment == "backward" and stages == 1:
        return range(0)
    if fault.moment == "recovery" or fault == Fault("corrupt", "forward"):
        return range(stages - 1)
    if fault == Fault("corrupt", "backward"):
        return range(1, stages)
    return range(stages)


def all_faults(kinds: Sequence[Kind]) -> tuple[Fault, ...]:
    """Return every combination of these kinds."""
    return tuple(Fault(kind, moment) for kind in kinds for moment in MOMENTS[kind])


def choose_faults(text: str) -> tuple[Fault, ...]:
    """Return the faults of ``--faults``: of each kind that is named all, or one as ``kind@moment``.

    Raises:
        UserError: a name that does not exist, or none is given.
    """
    every, found = all_faults(KINDS), dict[Fault, None]()
    for part in text.split(","):
        named = [fault for fault in every if part.strip() in (fault.kind, str(fault))]
        if not named:
            kind = part.strip().partition("@")[0]
            there_are = [str(fault) for fault in every if fault.kind == kind] or KINDS
            problem = f"there is no fault {part.strip()[:60]!r}"
            raise UserError(problem, f"choose from {', '.join(there_are)}", ExitCode.USAGE)
        found.update(dict.fromkeys(named))
    return tuple(found)
