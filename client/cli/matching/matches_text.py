"""The matching in words: seats, the preference list with its reasons, and match records.

Pure text of at most 80 columns, no terminal control. Each text from a stranger is made one line.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator

from client.cli.matching.records import CheckedRecord, RecordList
from client.cli.terminal.output import one_line
from client.control.matches import (
    MatchesSnapshot,
    PayingMove,
    Proof,
    SeatMatch,
    StageMatch,
    StewardshipView,
)
from client.control.snapshot import Snapshot
from client.ui.model.parts import plain as sentences
from client.ui.model.record import Record
from client.ui.model.span import Box, plain
from protocol.ids import short
from protocol.matching.overview import score_parts

COLUMNS = 80
SEATS = ("main", "second")
PROOFS: dict[Proof, str] = {
    "valid": "match record valid",
    "earlier": "match record valid, of an earlier steward",
    "own": "no match record: you are the steward",
    "none": "no match record",
}
TABLE = "   stage steward     phase  level shared copies  quota     cutoff"


LEGEND = (
    "main: the stage that you hold by the agreement with its steward; second: one that you hold "
    "beside it because you are fast enough. steward: the member that decides who holds a stage, "
    "drawn by lot. epoch: a round of offers. copies: volunteers that hold it, of those wanted. "
    "quota: the rate that it aims at. cutoff: offers with a lower score have no place. phi: what "
    "the download of the stage takes from the score. blocking pair: a volunteer and a stage that "
    "would both gain by a move."
)


def whole_report(status: Snapshot, now: MatchesSnapshot) -> str:
    """Return who does which part of the model and why, in sentences, then the numbers behind it and
    the meaning of their names."""
    told = plain(sentences(Record(snapshot=status, matches=now), Box(COLUMNS)))
    legend = "\n".join(_labelled("words     ", LEGEND))
    return f"{told}\n\n{matches_report(now)}\n\n{legend}"


def matches_report(now: MatchesSnapshot) -> str:
    """Return the state of the matching with its explanations."""
    refused = ", ".join(f"{name} {count}" for name, count in sorted(now.refused.items()))
    return "\n".join(
        [
            f"swarm     {one_line(now.swarm_name)} ({now.swarm[:12]})",
            f"volunteer {now.peer}",
            f"matching  {now.state}",
            *(line for seat in now.seats for line in _seat(seat)),
            "",
            *_stages(now),
            "",
            *_labelled("pays      ", _moves(now.paying_moves)),
            *_labelled("decides   ", _stewardships(now.stewardships)),
            *_labelled("refused   ", one_line(refused) or "no messages"),
            "",
            *(line for told in now.explanations for line in _told(told.time, told.words)),
        ]
    ).rstrip()


def records_report(found: RecordList) -> str:
    """Return the stored match records, each with the result of its check."""
    count, bad = len(found.records), sum(not record.valid for record in found.records)
    noun = "record" if count == 1 else "records"
    head = f"{count} match {noun} of {one_line(found.swarm_name)} ({found.swarm[:12]}), "
    lines = [head + (f"{bad} INVALID" if bad else "all valid")] if count else []
    lines += [line for record in found.records for line in _record(record)]
    return "\n".join(lines or ["no match records"])


# --- seats -----------------------------------------------------------------------------------


def _seat(seat: SeatMatch) -> Iterator[str]:
    place = "no stage" if seat.stage is None else f"stage {seat.stage}"
    since = f" since {_clock(seat.since)}" if seat.since is not None else ""
    words = f"{place}, {seat.state}{since}"
    if seat.steward:
        words += (
            f"; steward {short(seat.steward)}, epoch {seat.epoch}; "
            f"offers {_figure(seat.rate)} microbatches/s, score {_score(seat.score)}; "
            f"{PROOFS[seat.proof]}"
        )
    yield from _labelled(f"{_seat_name(seat.seat):<10}", words)


def _seat_name(seat: int) -> str:
    return SEATS[seat] if seat < len(SEATS) else f"seat {seat}"


# --- stages ----------------------------------------------------------------------------------


def _stages(now: MatchesSnapshot) -> Iterator[str]:
    if not now.stages:
        yield "no stage has a steward yet"
        return
    yield "stages, the most wanted by you first (microbatches/s; score: advantage/size)"
    yield TABLE
    for rank, stage in enumerate(now.stages, start=1):
        yield (
            f"{rank:>3}. {stage.stage:>3} {short(stage.steward):>7} {one_line(stage.phase):>9} "
            f"{_figure(stage.level):>6} {_figure(stage.shared_level):>6} "
            f"{f'{stage.copies}/{stage.redundancy}':>6} {_figure(stage.quota):>6} "
            f"{_score(stage.cutoff):>10}"
        )
        yield from _labelled(" " * 8, _why(stage))


def _why(stage: StageMatch) -> str:
    ours = (
        f"yours {_figure(stage.our_rate)}, phi {stage.phi:.2f}, score {_score(stage.score)}, "
        f"gain {stage.wish_gain:.3g} s"
    )
    urgent = ", lacks copies" if stage.urgent else ""
    if stage.seat is not None:
        return f"{ours}{urgent}: your {_seat_name(stage.seat)} stage"
    reasons = [f"not proposing: {stage.obstacle}"] if stage.obstacle else []
    reasons += [f"not moving: {stage.stay}"] if stage.stay else []
    return f"{ours}{urgent}: {one_line('; '.join(reasons)) or 'it would accept you'}"


def _moves(moves: Iterable[PayingMove]) -> str:
    told = [f"stage {move.home} -> {move.to}" for move in moves]
    return "moves that would pay now (blocking pairs): " + (", ".join(told) or "none")


def _stewardships(held: Iterable[StewardshipView]) -> str:
    told = [
        f"stage {one.stage} (term {one.term}, epoch {one.epoch}, {one.phase}, {one.places} places, "
        f"{one.final} final, {_figure(one.level)} of {_figure(one.quota)})"
        for one in held
    ]
    return ", ".join(told) or "no stage: others are the stewards"


# --- records ---------------------------------------------------------------------------------


def _record(record: CheckedRecord) -> Iterator[str]:
    match = record.match
    if match is None:
        yield from _labelled("INVALID   ", one_line(record.problem))
        return
    yield from _labelled(
        "valid     ",
        f"stage {match.stage}, epoch {match.epoch}: held {_date(match.held_s)} by steward "
        f"{short(match.steward)} for {short(match.volunteer)}, which proposed "
        f"{_figure(match.rate)} microbatches/s {_date(match.proposed_s)}; "
        f"score {_score(match.score)}",
    )


# --- figures ---------------------------------------------------------------------------------


def _told(at: float, words: str) -> list[str]:
    return _labelled(f"{_clock(at)}  ", one_line(words))


def _labelled(label: str, words: str) -> list[str]:
    """Return lines of which the first begins with the label and the others as far right."""
    return textwrap.wrap(
        words,
        COLUMNS,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )


def _figure(rate: float) -> str:
    """Return a rate in at most six characters."""
    if 1000 <= rate < 1e6:
        return f"{rate:.0f}"
    return f"{rate:.3g}".replace("e+0", "e").replace("e-0", "e-")


def _score(score: int) -> str:
    """Return a score as ``advantage/size``; see ``ScoreParts``."""
    if not score:
        return "-"
    parts = score_parts(score)
    return f"{parts.advantage:+d}/{parts.size:.2f}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
