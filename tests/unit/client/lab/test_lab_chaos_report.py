"""From recorded logs to figures: the costs of faults are derived from observations."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from client.lab.chaos.catalogue import Fault
from client.lab.chaos.inject import Injected
from client.lab.chaos.ledger import read_ledger, shares_of
from client.lab.chaos.measure import FaultFigures, measure_faults
from client.lab.chaos.record import LogTail, Note
from client.lab.chaos.report import Report, Settings, make_report, markdown, text_report
from client.lab.chaos.run import Seen
from client.lab.chaos.schedule import Planned

PER_STEP = 4
TOKENS = 100
BEGAN = 1000.0
NAMES = ("v1", "v2", "v3", "v4")


def _line(kind: str, time: float, data: Mapping[str, object], **more: object) -> str:
    record = {"time": time, "level": "info", "kind": kind, "words": "", "data": data, **more}
    return json.dumps(record) + "\n"


def _note(name: str, kind: str, time: float, **data: object) -> Note:
    return Note(name, time, kind, "info", "", data)


def _closed(
    name: str,
    time: float,
    version: int,
    counted: int,
    *,
    stage: int = 0,
    of: str = "",
    era: int = 0,
) -> Note:
    data = {"stage": stage, "version": version, "hash": of or f"{stage}:{version}"}
    return _note(name, "StageClosed", time, counted=counted, attempt=1, era=era, **data)


def _steps(count: int, every_s: float, *, gap: tuple[int, float] = (0, 0.0)) -> list[Note]:
    """Steps closed by v1 and v2 in stage 0 and v3 and v4 in stage 1; one of them late."""
    notes = []
    for step in range(count):
        late, late_s = gap
        time = BEGAN + (step + 1) * every_s + (late_s if step >= late > 0 else 0.0)
        trained = (step + 1) * TOKENS
        notes.append(
            _note("v3", "StepCommitted", time, step=step, loss=5.0 / (step + 1), tokens=trained)
        )
        for name, stage in (("v1", 0), ("v2", 0), ("v3", 1), ("v4", 1)):
            notes.append(_closed(name, time, step + 1, PER_STEP // 2, stage=stage))
    return notes


def _injected(kind: str = "kill", at: float | None = BEGAN + 3.0) -> Injected:
    planned = Planned(0, 3.0, Fault(kind, "forward"), 1, 0, 0.0)  # type: ignore[arg-type]
    return Injected(planned, 1, ["v4"], BEGAN + 2.5, at, 2, BEGAN + 6.0)


def _seen(notes: list[Note], *injected: Injected, seconds: float = 20.0) -> Seen:
    return Seen(
        began=BEGAN,
        ended=BEGAN + seconds,
        notes=notes,
        injected=list(injected),
        away={name: [] for name in NAMES},
    )


def test_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, "v1")
    assert list(tail.new_notes()) == []
    line = _line("StepCommitted", 5.0, {"step": 1})
    path.write_text("not json\n{broken\n" + line + line[:10])
    (note,) = tail.new_notes()
    assert (note.name, note.time, note.number("step")) == ("v1", 5.0, 1)
    with path.open("a") as file:
        file.write(line[10:] + '{"time": "noon", "kind": 3}\n')
    assert len(list(tail.new_notes())) == 1
    assert list(tail.new_notes()) == []


def test_a_roll_back_is_told_from_one_who_comes_late() -> None:
    late = [_closed("v1", 1.0, 1, 4), _closed("v1", 2.0, 2, 4), _closed("v2", 3.0, 1, 0)]
    assert read_ledger(late, PER_STEP, 1).undone == ()
    back = [
        *(_closed("v1", float(v), v, 2) for v in range(1, 6)),
        *(_closed("v2", float(v), v, 2) for v in range(1, 6)),
        *(_closed("v1", v + 5.0, v, 2, of=f"again {v}", era=1) for v in range(4, 7)),
        *(_closed("v2", v + 5.0, v, 2, of=f"again {v}", era=1) for v in range(4, 7)),
    ]
    ledger = read_ledger(back, PER_STEP, 1)
    assert [undone.steps for undone in ledger.undone] == [2]
    assert (ledger.doubled, ledger.differing, ledger.closed) == (0, 0, 6)


def _measured(notes: list[Note], fault: Injected) -> FaultFigures:
    (figures,) = measure_faults(_seen(notes, fault))
    return figures


def _recovery(name: str, time: float, phase: str, **data: object) -> Note:
    return _note(name, "RecoveryEvent", time, phase=phase, fault="peer", **data)


def test_a_recovery_is_measured_from_the_instant_of_the_fault() -> None:
    notes = [
        *_steps(20, 1.0, gap=(3, 2.0)),
        _recovery("v1", BEGAN + 1.0, "recovered"),  # of something before
        _recovery("v2", BEGAN + 3.75, "detected"),
        _recovery("v1", BEGAN + 4.5, "recovered"),
        _recovery("v2", BEGAN + 4.25, "recovered"),
        _note("v4", "StageAssigned", BEGAN + 7.0, stage=1, state="held"),
        _note("v4", "StageAssigned", BEGAN + 8.5, stage=1, state="serving"),
    ]
    found = _measured(notes, _injected())
    assert found.at_s == 3.0
    assert (found.rto_s, found.rto_by) == (1.25, "gradient")
    assert (found.back_s, found.lost_steps) == (5.5, 0)


def test_what_was_rolled_back_is_lost() -> None:
    again = [
        _closed(n, BEGAN + 10.0 + v, v, 2, stage=0, of=f"again {v}", era=1)
        for v in (2, 3, 4)
        for n in ("v1", "v2")
    ]
    found = _measured([*_steps(3, 1.0), *again], _injected("stage"))
    assert found.lost_steps == 2


def test_a_step_that_nobody_says_it_closed_is_missing_though_its_loss_may_be_unknown() -> None:
    notes = _steps(6, 1.0)
    silent = [n for n in notes if not (n.kind == "StepCommitted" and n.number("step") == 3)]
    assert read_ledger(silent, PER_STEP, 2).missing == ()
    skipped = [n for n in notes if not (n.number("version") == 4 and n.number("stage") == 1)]
    assert read_ledger(skipped, PER_STEP, 2).missing == (3,)


SETTINGS = Settings(
    volunteers=4,
    stages=2,
    averaging="every-step",
    seconds=20.0,
    every_s=20.0,
    seed=1,
    faults=["kill@forward"],
    compute_share=25,
    cores=2,
    load=1.0,
)


def _report(chaos: list[Note], fault: Injected | None = None) -> Report:
    seen = _seen(chaos, fault or _injected())
    return make_report(SETTINGS, seen, _seen(_steps(20, 1.0)), PER_STEP)


def test_a_pair_that_held_is_ok_and_reads_well() -> None:
    report = _report(_steps(17, 1.0, gap=(3, 3.0)))
    assert report.ok, report.problems
    assert (report.tokens, report.reference_tokens) == (1700, 2000)
    assert (report.goodput, report.loss_gap) == (0.85, 0.0)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert "85.0%" in text_report(report)
    planned = msgspec.structs.replace(SETTINGS, faults=["kill@forward", "stop@forward"])
    assert "1 of 2" in text_report(msgspec.structs.replace(report, settings=planned))
    assert text_report(report) in markdown(report)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([_closed("v5", 1.0, 1, 1)], "invariant"),
        ([_closed("v5", 1.0, 1, 0, of="other")], "invariant"),
        ([_note("v3", "StepCommitted", BEGAN + 99, step=3, loss=9.0, tokens=1)], "losses differ"),
        (
            [_closed(name, BEGAN + 15.0, 1, 2, of="again", era=1) for name in ("v1", "v2")],
            "rolled back",
        ),
        (None, "did not go on"),
    ],
)
def test_what_broke_is_a_problem(more: list[Note] | None, problem: str) -> None:
    report = _report([] if more is None else [*_steps(10, 1.0), *more])
    assert not report.ok
    assert any(problem in words for words in report.problems), report.problems
    assert f"not ok: {report.problems[0]}" in text_report(report)


LOCAL = msgspec.structs.replace(SETTINGS, averaging="local")


@pytest.mark.parametrize(
    ("with_faults", "without", "ok"),
    [
        ({0: 3.0}, {0: 2.0}, True),  # only the end counts
        ({6: 1.02, 7: 1.01}, {6: 1.02, 7: 0.98}, True),
        ({6: 1.05, 7: 0.98}, {7: 1.02}, True),  # the mean is near enough
        ({6: 1.03, 7: 1.03}, {7: 0.98}, False),
        ({6: 0.97, 7: 0.97}, {7: 1.02}, False),
        ({6: 1.002, 7: 1.002}, {}, False),
    ],
)
def test_local_rounds_are_held_against_the_same_rounds_without_faults(
    with_faults: Mapping[int, float], without: Mapping[int, float], ok: bool
) -> None:
    pair = []
    for off in (with_faults, without):
        seen = _seen(_steps(8, 1.0), _injected())
        seen.retraced = {step: 5.0 / (step + 1) / off.get(step, 1.0) for step in range(8)}
        pair.append(seen)
    seen, paired = pair
    paired.notes.append(_note("v3", "StepCommitted", BEGAN + 9, step=0, loss=9.0, tokens=1))
    report = make_report(LOCAL, seen, paired, PER_STEP)
    assert report.ok == ok, report.problems
    assert ("losses at the end" in markdown(report)) == (not ok)


def test_the_last_time_a_step_was_shared_is_the_one_that_counts() -> None:
    notes = [
        *(_closed("v1", float(v), v, 3) for v in (1, 2)),
        _closed("v2", 2.0, 1, 1),
        _closed("v2", 3.0, 2, 4, era=1),
        _closed("v3", 3.0, 3, 4, stage=1),
    ]
    assert shares_of(notes, 0) == [{"v1": 3, "v2": 1}, {"v2": 4}]
    assert shares_of(notes, 2) == []


def test_a_stage_that_was_lost_whole_may_roll_back() -> None:
    again = [_closed(name, BEGAN + 15.0, 10, 2, of="again", era=1) for name in ("v1", "v2")]
    report = _report([*_steps(10, 1.0), *again], _injected("stage"))
    assert report.steps_rolled_back == 1
    assert report.ok, report.problems
