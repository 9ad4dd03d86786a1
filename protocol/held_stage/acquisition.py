"""How a stage's state is acquired: from its replicas, or where the lineage begins. Pure decisions.

Both drivers of a held stage ask here, that of the node and that of the simulator: which way is open
now, and whether an admission counts.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from protocol.ids import PeerId
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Lineage
from protocol.view import SwarmView
from protocol.wire.messages import Admit


@dataclass(frozen=True, slots=True)
class Join:
    """The stage is past the beginning of the lineage: ask these replicas to be let in."""

    replicas: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The stage begins where the lineage does."""

    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Wait:
    """Neither is possible yet."""

    why: str
    """The awaited condition, in words."""


def way_in(
    stage: int, me: PeerId, view: SwarmView, history: Recovery, now: float
) -> Join | Begin | Wait:
    """Return how to acquire the state of a stage now.

    It waits while the swarm is past the beginning of the lineage and no live replica has the
    stage's state, or while the recovery machine does not know where the run goes on.

    Args:
        stage: the stage to be held.
        me: ourselves, who are not asked.
        view: the live replicas of our lineage.
        history: the recovery machine, which knows the lineage.
        now: monotonic seconds.
    """
    lineage, view = history.lineage, history.evidence.vetted(view)
    others = [replica for replica in view.serving(stage) if replica.peer != me]
    begun = any(view.committed(s) > lineage.version for s in range(len(view.stages)))
    if history.open and any(replica.version > lineage.version for replica in others):
        return Join(tuple(replica.peer for replica in others))
    if history.may_begin(stage, now) and (others or not begun):
        return Begin(lineage)
    return Wait(_missing(stage, history, begun=begun))


def _missing(stage: int, history: Recovery, *, begun: bool) -> str:
    if history.open and (begun or history.known.has_passed(stage)):
        return f"waiting for somebody who has the state of stage {stage}"
    return "finding out where the run stands"


def admission(
    stage: int, sender: PeerId, admit: Admit, view: SwarmView, history: Recovery
) -> Admit | None:
    """Return the admission with the donors that count; None if it does not count.

    Only a serving replica admits a newcomer, names the state that donors are to give, and shows the
    commit that made it. A replica that has fallen behind may still believe that it leads; its
    version is too old.

    Args:
        stage: the stage to be held.
        sender: the peer that sent the admission.
        admit: its message.
        view: the live replicas of our lineage.
        history: the recovery machine: the lineage that we follow, and who counts for a newcomer.
    """
    lineage, view = history.lineage, history.evidence.vetted(view)
    serving = {replica.peer for replica in view.serving(stage)}
    donors = [donor for donor in admit.donors if donor in serving]
    ours = admit.stage == stage and admit.era == lineage.era
    if not ours or sender not in serving or not donors:
        return None
    commit, made = admit.commit, (stage, lineage.era, admit.version)
    if (commit.stage, commit.era, commit.step + 1) != made:
        return None  # it is to move our elector on in this stage alone
    if admit.version < view.committed(stage) - 1:
        return None
    return replace(admit, donors=donors)
