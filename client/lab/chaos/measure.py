"""Computes the figures of each fault and of the pair from the observations. Pure.

The instant of a fault is the process's own note of it, or the harness's clock; all processes run on
one machine, so all moments are of one clock.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from client.lab.chaos.inject import Injected
from client.lab.chaos.ledger import Ledger, closings, rollbacks
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
    detect_s: float | None
    """Until another volunteer (of a dead worker: its own node) noticed."""
    rematch_s: float | None
    """Until a volunteer was given the victim's stage, or the restarted victim itself."""
    transfer_s: float | None
    """From then until it served."""
    rto_s: float | None
    """Until the first accepted gradient of a re-routed microbatch. Without such a gradient (all
    were counted again, or none was in flight) until ``rto_by``."""
    rto_by: str
    """``gradient``; ``step``: the next step that its stage closed; empty: neither."""
    stall_s: float | None
    """Until the swarm's next step was closed."""
    lost_steps: int
    """Steps that were rolled back (RPO)."""
    lost_microbatches: int
    rerouted_microbatches: int
    replayed_microbatches: int
    """Microbatches run again although their gradient had arrived: their count was lost with the
    volunteer."""
    wasted_s: float
    """Compute time of the microbatches that were sent again, an upper bound."""


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


def measure_faults(seen: Seen, per_step: int) -> list[FaultFigures]:
    """Return the figures of every fault, each within the time until the next one."""
    ends = [fault.begun for fault in seen.injected[1:]] + [seen.ended]
    return [
        _measure(seen, fault, max(end, fault.over or end), per_step)
        for fault, end in zip(seen.injected, ends, strict=True)
    ]


def _measure(seen: Seen, fault: Injected, end: float, per_step: int) -> FaultFigures:
    at = fault.at
    counted = _difference(seen, fault.begun, end)
    window = [note for note in seen.notes if at is not None and at <= note.time < end]
    lost = 0
    if at is not None:
        back = rollbacks(closings([note for note in seen.notes if note.time < end]))
        lost = max((undone.steps for undone in back if undone.time >= at), default=0)
    again = counted["rerouted_microbatches"]
    speed = statistics.median(seen.rates.values()) if seen.rates else 0.0
    held, served = _replaced(window, fault)
    rto_s, rto_by = _recovery(seen, window, fault)
    return FaultFigures(
        number=fault.planned.number,
        fault=str(fault.planned.fault),
        stage=fault.stage,
        step=fault.step,
        victims=fault.victims,
        at_s=None if at is None else round(at - seen.began, 3),
        detect_s=_first(at, (n for n in window if _notices(n, seen, fault))),
        rematch_s=_first(at, held),
        transfer_s=_first(held[0].time, served) if held else None,
        rto_s=rto_s,
        rto_by=rto_by,
        stall_s=_stall(seen, at),
        lost_steps=lost,
        lost_microbatches=lost * per_step,
        rerouted_microbatches=again,
        replayed_microbatches=counted["lost_microbatches"],
        wasted_s=round(again / speed, 3) if speed else 0.0,
    )


def _first(at: float | None, notes: Iterable[Note]) -> float | None:
    """Return seconds from the fault to the earliest of these."""
    times = [note.time for note in notes]
    return round(min(times) - at, 3) if times and at is not None else None


def _notices(note: Note, seen: Seen, fault: Injected) -> bool:
    """Whether an event shows that a volunteer has noticed the fault."""
    own = note.name in fault.victims
    if note.kind == "PeerChanged":
        lost = seen.names.get(note.text("peer"))
        return not own and note.text("state") != "up" and lost in fault.victims
    if note.kind != "RecoveryEvent" or note.text("phase") != "detected":
        return False
    return note.text("fault") == "worker" if own else True


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


def _replaced(window: Sequence[Note], fault: Injected) -> tuple[list[Note], list[Note]]:
    """Return the first volunteer that was given the stage, and its service there; each a list of
    one or none."""
    places = sorted(
        (n for n in window if n.kind == "StageAssigned" and n.number("stage") == fault.stage),
        key=lambda note: note.time,
    )
    held = [note for note in places if note.text("state") == "held"][:1]
    served = [
        note
        for note in places
        if held and note.text("state") == "serving" and note.name == held[0].name
    ]
    return held, [note for note in served if note.time >= held[0].time][:1]


def _stall(seen: Seen, at: float | None) -> float | None:
    if at is None:
        return None
    moments = read_progress(seen.notes).moments.values()
    later = [moment for moment in moments if moment > at]
    return round(min(later) - at, 3) if later else None


def _difference(seen: Seen, begin: float, end: float) -> dict[str, int]:
    """Return the rise of the counters in a span, whose first sample may be a second old."""
    before = [sums for time, sums in seen.counters if time <= begin]
    after = [sums for time, sums in seen.counters if time <= end]
    last = after[-1] if after else {}
    first = before[-1] if before else {}
    names = ("rerouted_microbatches", "lost_microbatches")
    return {name: max(0, last.get(name, 0) - first.get(name, 0)) for name in names}


def loss_gap(chaos: Progress, reference: Progress) -> tuple[int, float | None]:
    """Return the steps both runs did and the largest relative difference of their losses."""
    common = sorted(chaos.losses.keys() & reference.losses.keys())
    gaps = [
        abs(chaos.losses[step] - reference.losses[step]) / abs(reference.losses[step])
        for step in common
        if reference.losses[step]
    ]
    return len(common), max(gaps, default=None)


def goodput(chaos: Seen, reference: Seen) -> tuple[int, int]:
    """Return the tokens that each run committed in its measured time."""
    return _trained(chaos), _trained(reference)


def _trained(seen: Seen) -> int:
    progress = read_progress(seen.notes)
    return progress.tokens_at(seen.ended) - progress.tokens_at(seen.began)


def missing_share(seen: Seen) -> float:
    """Return the share of volunteer-seconds that were missing, each weighted by its rate."""
    span = seen.ended - seen.began
    rates = [seen.rates[name] for name in seen.away if name in seen.rates]
    usual = statistics.median(rates) if rates else 1.0
    missing = total = 0.0
    for name, spans in seen.away.items():
        weight = seen.rates.get(name, usual)
        gone = (_overlap(begin, end, seen.began, seen.ended) for begin, end in spans)
        missing += weight * sum(gone)
        total += weight * span
    return missing / total if total > 0 else 0.0


def _overlap(begin: float, end: float | None, first: float, last: float) -> float:
    return max(0.0, min(last if end is None else end, last) - max(begin, first))


def sound(ledger: Ledger) -> bool:
    """Whether the invariants that are visible from outside hold."""
    return ledger.doubled == 0 and ledger.differing == 0
