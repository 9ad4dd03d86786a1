"""What the logs prove: who applied which step with how many microbatches, and what was undone.

Pure. A volunteer logs every step it applies with its own share and the hash of the result, so that
exactly-once (I1), identity (I2) and one lineage (I5) can be checked from outside; a version that
falls within one process has been rolled back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from client.cli.chaos.record import Note


@dataclass(frozen=True, slots=True)
class Closing:
    """One replica has applied one step."""

    name: str
    life: int
    time: float
    stage: int
    version: int
    hash: str
    counted: int


@dataclass(frozen=True, slots=True)
class Undone:
    """A stage went back."""

    time: float
    stage: int
    steps: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sums over a run."""

    closed: int
    """Steps that every stage has closed."""
    whole: int
    """Closed steps of a stage whose microbatches all were attested by those who applied it."""
    unattested: int
    """Closed steps of a stage for which a replica died before it logged its share."""
    doubled: int
    """Microbatches that a closed step counted more than once (I1); must be 0."""
    differing: int
    """Closed steps of a stage that replicas applied with different results (I2, I5); must be 0."""
    undone: tuple[Undone, ...]


def closings(notes: Sequence[Note]) -> list[Closing]:
    """Return the steps that were applied, in the order of time; malformed notes are left out."""
    found = []
    for note in notes:
        stage, version, counted = (note.number(f) for f in ("stage", "version", "counted"))
        if note.kind != "StageClosed" or stage is None or version is None or counted is None:
            continue
        closing = Closing(
            note.name, note.life, note.time, stage, version, note.text("hash"), counted
        )
        found.append(closing)
    return sorted(found, key=lambda closing: closing.time)


def read_ledger(notes: Sequence[Note], per_step: int, stages: int) -> Ledger:
    """Add up what was applied; ``per_step``: microbatches of a step."""
    applied = closings(notes)
    undone = rollbacks(applied)
    sums, hashes = _sums(applied)
    again = {stage for stage, _ in sums if any(back.stage == stage for back in undone)}
    differing = sum(len(found) > 1 for (stage, _), found in hashes.items() if stage not in again)
    newest = [max((v for s, v in hashes if s == stage), default=0) for stage in range(stages)]
    return Ledger(
        closed=min(newest, default=0),
        whole=sum(count == per_step for count in sums.values()),
        unattested=sum(count < per_step for count in sums.values()),
        doubled=sum(max(0, count - per_step) for count in sums.values()),
        differing=differing,
        undone=tuple(undone),
    )


def _sums(
    applied: Sequence[Closing],
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], set[str]]]:
    """Return microbatches and results by stage and version.

    Of a version that was made more than once, because it had been rolled back, the result that was
    made last counts.
    """
    shares: dict[tuple[int, int, str], dict[str, int]] = defaultdict(dict)
    last: dict[tuple[int, int], str] = {}
    hashes: dict[tuple[int, int], set[str]] = defaultdict(set)
    for closing in applied:
        key = (closing.stage, closing.version)
        shares[*key, closing.hash][closing.name] = closing.counted
        last[key] = closing.hash
        hashes[key].add(closing.hash)
    sums = {key: sum(shares[*key, result].values()) for key, result in last.items()}
    return sums, hashes


def rollbacks(applied: Sequence[Closing]) -> list[Undone]:
    """Return where a process applied a version that it had applied already, once per roll-back.

    Replicas go back together: those of one stage within the same run of versions count once.
    """
    newest: dict[tuple[str, int, int], int] = {}
    found: dict[tuple[int, int], Undone] = {}
    for closing in applied:
        key = (closing.name, closing.life, closing.stage)
        before = newest.get(key, -1)
        if closing.version <= before:
            undone = Undone(closing.time, closing.stage, before - closing.version + 1)
            known = found.get((closing.stage, before))
            if known is None or undone.steps > known.steps:
                found[closing.stage, before] = undone
        newest[key] = closing.version
    return sorted(found.values(), key=lambda undone: undone.time)
