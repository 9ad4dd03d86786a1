"""Reads the steps applied by each volunteer, with their microbatches, from the logs.

Pure. A volunteer logs every step it applies with its own share and the hash of the result, so that
exactly-once (I1), identity (I2) and one lineage (I5) can be checked from outside. A roll-back
begins a new era; a version that an earlier era had made was undone.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from client.lab.chaos.record import Note


@dataclass(frozen=True, slots=True)
class Closing:
    """One replica has applied one step."""

    name: str
    time: float
    stage: int
    version: int
    hash: str
    counted: int
    era: int


@dataclass(frozen=True, slots=True)
class Undone:
    """A stage was rolled back."""

    time: float
    stage: int
    steps: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sums over a run."""

    closed: int
    """Steps that every stage has closed."""
    missing: tuple[int, ...]
    """Steps that a stage has passed although no log has closed them."""
    whole: int
    """Closed steps of a stage whose microbatches are all in the logs."""
    unattested: int
    """Closed steps of a stage for which a replica died before it logged its share."""
    doubled: int
    """Microbatches that a closed step counted more than once (I1); must be 0."""
    differing: int
    """Closed steps of a stage and era that replicas applied with different results (I2, I5)."""
    undone: tuple[Undone, ...]


def closings(notes: Sequence[Note]) -> list[Closing]:
    """Return the steps that were applied, in the order of time; malformed notes are left out."""
    found = []
    for note in notes:
        numbers = [note.number(field) for field in ("stage", "version", "counted", "era")]
        known = [number for number in numbers if number is not None]
        if note.kind != "StageClosed" or len(known) < len(numbers):
            continue
        stage, version, counted, era = known
        made = note.text("hash")
        found.append(Closing(note.name, note.time, stage, version, made, counted, era))
    return sorted(found, key=lambda closing: closing.time)


def read_ledger(notes: Sequence[Note], per_step: int, stages: int) -> Ledger:
    """Add up the applied steps; ``per_step``: microbatches of a step."""
    applied = closings(notes)
    hashes: dict[tuple[int, int, int], set[str]] = defaultdict(set)
    for closing in applied:
        hashes[closing.stage, closing.version, closing.era].add(closing.hash)
    of_stages = [shares_of(notes, stage) for stage in range(stages)]
    sums = [sum(shares.values()) for steps in of_stages for shares in steps if shares]
    return Ledger(
        closed=min(map(len, of_stages)),
        missing=tuple(sorted({step for steps in of_stages for step in _missing(steps)})),
        whole=sum(count == per_step for count in sums),
        unattested=sum(count < per_step for count in sums),
        doubled=sum(max(0, count - per_step) for count in sums),
        differing=sum(len(found) > 1 for found in hashes.values()),
        undone=tuple(rollbacks(applied)),
    )


def shares_of(notes: Sequence[Note], stage: int) -> list[dict[str, int]]:
    """Return, of each step from the first, the microbatches that each replica of a stage says it
    counted, by name; of a step that was repeated, the last time. Step s makes version s + 1."""
    applied = [closing for closing in closings(notes) if closing.stage == stage]
    last = {closing.version: closing.era for closing in sorted(applied, key=lambda c: c.era)}
    found: list[dict[str, int]] = [{} for _ in range(max(last, default=0))]
    for closing in applied:
        if closing.era == last[closing.version]:
            found[closing.version - 1][closing.name] = closing.counted
    return found


def _missing(steps: Sequence[dict[str, int]]) -> list[int]:
    """Return the steps without a log, after the first that has one."""
    told = [step for step, shares in enumerate(steps) if shares]
    return sorted(set(range(min(told, default=0), len(steps))) - set(told))


def rollbacks(applied: Sequence[Closing]) -> list[Undone]:
    """Return the versions undone by each new era at each stage, in the order of time."""
    found = []
    for stage, era in sorted({(closing.stage, closing.era) for closing in applied}):
        of_stage = [closing for closing in applied if closing.stage == stage]
        mine = [closing for closing in of_stage if closing.era == era]
        before = max((c.version for c in of_stage if c.era < era), default=0)
        steps = before - min(closing.version for closing in mine) + 1
        if steps > 0:
            found.append(Undone(min(closing.time for closing in mine), stage, steps))
    return sorted(found, key=lambda undone: undone.time)
