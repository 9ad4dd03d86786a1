"""Computes the figures of each fault and of the pair from the observations. Pure.

The instant of a fault is the process's own note of it, or the harness's clock; all processes run on
one machine, so all moments are of one clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from client.lab.chaos.inject import Injected
from client.lab.chaos.ledger import closings, rollbacks
from client.lab.chaos.record import Note
from client.lab.chaos.run import Seen


class FaultFigures(Struct, frozen=True, kw_only=True):
    """The costs of one fault. Times in seconds from the fault; None: it did not happen."""

    number: int
    fault: str
    stage: int
    step: int | None
    victims: list[str]
    at_s: float | None
    """Since the measured time began; None: its moment did not come, so there was no fault."""
    rto_s: float | None
    """Until the first accepted gradient of a re-routed microbatch. Without such a gradient (all
    were counted again, or none was in flight) until ``rto_by``."""
    rto_by: str
    """``gradient``; ``step``: the next step that its stage closed; empty: neither."""
    stall_s: float | None
    """Until the swarm's next step was closed."""
    back_s: float | None
    """Until the stage had one more replica again: the restarted victim, or another one."""
    lost_steps: int
    """Steps that were rolled back (RPO)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps and tokens over time."""

    moments: dict[int, float]
    """The time at which a step was first known to be closed, Unix seconds."""
    losses: dict[int, float]
    """By step; of a repeated step, the last."""
    tokens: list[tuple[float, int]]
    """Unix seconds and tokens trained on by then, rising."""

    def tokens_at(self, moment: float) -> int:
        """Return the tokens trained on by a moment."""
        return max((tokens for time, tokens in self.tokens if time <= moment), default=0)


def read_progress(notes: Iterable[Note]) -> Progress:
    """Read the volunteers' reports of the swarm's steps."""
    moments: dict[int, float] = {}
    losses: dict[int, float] = {}
    tokens: list[tuple[float, int]] = []
    for note in sorted(notes, key=lambda note: note.time):
        step, trained, loss = note.number("step"), note.number("tokens"), note.data.get("loss")
        if note.kind != "StepCommitted" or step is None or trained is None:
            continue
        moments.setdefault(step, note.time)
        if isinstance(loss, float):
            losses[step] = loss
        if not tokens or trained > tokens[-1][1]:
            tokens.append((note.time, trained))
    return Progress(moments, losses, tokens)


def measure_faults(seen: Seen) -> list[FaultFigures]:
    """Return the figures of every fault, each within the time until the next one."""
    ends = [fault.begun for fault in seen.injected[1:]] + [seen.ended]
    return [
        _measure(seen, fault, max(end, fault.over or end))
        for fault, end in zip(seen.injected, ends, strict=True)
    ]


def _measure(seen: Seen, fault: Injected, end: float) -> FaultFigures:
    at = fault.at
    window = [note for note in seen.notes if at is not None and at <= note.time < end]
    lost = 0
    if at is not None:
        back = rollbacks(closings([note for note in seen.notes if note.time < end]))
        lost = max((undone.steps for undone in back if undone.time >= at), default=0)
    rto_s, rto_by = _recovery(seen, window, fault)
    return FaultFigures(
        number=fault.planned.number,
        fault=str(fault.planned.fault),
        stage=fault.stage,
        step=fault.step,
        victims=fault.victims,
        at_s=None if at is None else round(at - seen.began, 3),
        rto_s=rto_s,
        rto_by=rto_by,
        stall_s=_stall(seen, at),
        back_s=_first(at, (note for note in window if _is_served(note, fault))),
        lost_steps=lost,
    )


def _first(at: float | None, notes: Iterable[Note]) -> float | None:
    """Return seconds from the fault to the earliest of these."""
    times = [note.time for note in notes]
    return round(min(times) - at, 3) if times and at is not None else None


def _recovery(seen: Seen, window: Sequence[Note], fault: Injected) -> tuple[float | None, str]:
    """Return the seconds until work resumed, and the sign of it."""
    gradients = [note for note in window if _is_recovered(note, fault)]
    if gradients:
        return _first(fault.at, gradients), "gradient"
    if fault.at is None:
        return None, ""
    later = [time for time in _closed_after(seen, fault, fault.at) if time > fault.at]
    return (round(min(later) - fault.at, 3), "step") if later else (None, "")


def _closed_after(seen: Seen, fault: Injected, at: float) -> list[float]:
    """Return the times at which the stage closed steps that were open at the fault.

    Steps closed by the victims do not show that work has resumed, unless all were hit.
    """
    of_stage = [c for c in closings(seen.notes) if c.stage == fault.stage]
    if fault.planned.fault.kind == "stage":
        return [closing.time for closing in of_stage]
    others = [closing for closing in of_stage if closing.name not in fault.victims]
    known = max((closing.version for closing in others if closing.time <= at), default=0)
    known = max(known, fault.step or 0)  # step s makes version s + 1: those before it do not count
    return [closing.time for closing in others if closing.version > known]


def _is_recovered(note: Note, fault: Injected) -> bool:
    recovered = note.kind == "RecoveryEvent" and note.text("phase") == "recovered"
    return recovered and note.name not in fault.victims


def _is_served(note: Note, fault: Injected) -> bool:
    served = note.kind == "StageAssigned" and note.text("state") == "serving"
    return served and note.number("stage") == fault.stage


def _stall(seen: Seen, at: float | None) -> float | None:
    if at is None:
        return None
    moments = read_progress(seen.notes).moments.values()
    later = [moment for moment in moments if moment > at]
    return round(min(later) - at, 3) if later else None


def loss_gap(chaos: Progress, reference: Progress) -> tuple[int, float | None]:
    """Return the steps both runs did and the largest relative difference of their losses."""
    common = sorted(chaos.losses.keys() & reference.losses.keys())
    gaps = [
        abs(chaos.losses[step] - reference.losses[step]) / abs(reference.losses[step])
        for step in common
        if reference.losses[step]
    ]
    return len(common), max(gaps, default=None)


def late_gaps(seen: Seen) -> list[float]:
    """Return by how much, relative, the losses of a run's last quarter are above those of its
    rounds made again."""
    found = read_progress(seen.notes).losses
    common = sorted(found.keys() & seen.retraced.keys())
    late = common[3 * len(common) // 4 :]
    return [found[step] / seen.retraced[step] - 1.0 for step in late]


def trained(seen: Seen) -> int:
    """Return the tokens that a run committed in its measured time."""
    progress = read_progress(seen.notes)
    return progress.tokens_at(seen.ended) - progress.tokens_at(seen.began)


def missing_share(seen: Seen) -> float:
    """Return the share of volunteer-seconds that were missing."""
    spans = (span for some in seen.away.values() for span in some)
    missing = sum(_overlap(begin, end, seen.began, seen.ended) for begin, end in spans)
    total = len(seen.away) * (seen.ended - seen.began)
    return missing / total if total > 0 else 0.0


def _overlap(begin: float, end: float | None, first: float, last: float) -> float:
    return max(0.0, min(last if end is None else end, last) - max(begin, first))
