"""The demo from founding to the report. Imports torch."""

import tempfile
import time
from pathlib import Path

import msgspec

from client.cli.founding.options import RunChoices
from client.cli.models.model_source import Trained, load_newest, needed_model
from client.cli.models.newest import file_tokenizer
from client.cli.terminal.swarm_text import introduction
from client.lab.chaos.ground import Ground
from client.lab.chaos.ledger import read_ledger
from client.lab.chaos.measure import measure_faults, read_progress
from client.lab.chaos.report import what_broke
from client.lab.demo.folder import REPORT_FILE
from client.lab.demo.report import DemoReport
from client.lab.demo.run import DemoRun
from client.lab.demo.screen import Screen
from client.lab.local_swarm import terminate_as_interrupt
from client.lab.reference import evaluate
from client.store.paths import Kept, home_folders
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder
from model_zoo.export import export_hf
from model_zoo.sample import stream

PROMPT = "def "
SAMPLE_BYTES = 300


def play(
    out: Path, *, steps: int, volunteers: int, stages: int, kill: bool, timeout_s: float
) -> DemoReport:
    """Found a swarm, run it, check and write the result.

    Raises:
        UserError: a volunteer failed, or time ran out.
    """
    begin, screen = time.monotonic(), Screen()
    choices = RunChoices(
        name="demo",
        steps=steps,
        stages=stages,
        checkpoint_every=checkpoint_interval(steps),
        dual_homing=False,  # one worker each: the demo shares one machine
    )
    names = [f"volunteer-{number}" for number in range(1, volunteers + 1)]
    # More volunteers than stages: at least one stage has two, so that one can be killed.
    kill = kill and volunteers > stages
    # A short path: sockets lie below it.
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        homes = Path(folder)
        screen.say("making tokens of the text")
        ground = Ground(homes / "founder", choices)
        screen.say("\n".join(introduction(ground.manifest, ground.swarm.swarm)))
        run = DemoRun(ground, homes, out, screen, names=names, kill=kill)
        run.perform(timeout_s)
        screen.say("training is done; putting the model together")
        here = [home_folders(homes / name) for name in names]
        folders = [home.of(ground.swarm.swarm, Kept.CHECKPOINTS) for home in here]
        trained = load_newest(ground.swarm, folders)
        corpus = Corpus.from_folder(open_folder(ground.data))
        report = _judge(run, trained, corpus, out, kill=kill, begin=begin)
    _write(out, report, trained)
    return report


def _judge(
    run: DemoRun, trained: Trained, corpus: Corpus, out: Path, *, kill: bool, begin: float
) -> DemoReport:
    seen, manifest, model = run.seen, trained.manifest, needed_model(trained)
    killed = next(iter(measure_faults(seen)), None)
    ledger = read_ledger(seen.notes, manifest.microbatches_per_step, manifest.stage_count)
    progress = read_progress(seen.notes)
    problems = what_broke([killed] if killed else [], seen.crashes, ledger)
    if trained.version < manifest.steps:
        problems.append(f"the newest whole model is of step {trained.version}")
    if kill and killed is None:
        problems.append("the training ended before a volunteer could be killed")
    text = "".join(stream(model, PROMPT, SAMPLE_BYTES, temperature=0.7, top_k=40))
    context = manifest.model.context
    (first_s, first), (last_s, last) = progress.tokens[0], progress.tokens[-1]
    return DemoReport(
        ok=not problems,
        problems=problems,
        swarm=trained.swarm,
        volunteers=len(seen.away),
        stages=manifest.stage_count,
        steps=manifest.steps,
        version=trained.version,
        held_out_loss=evaluate(model, corpus, batches=16, sequences=8, context=context),
        tokens_per_s=(last - first) / max(1e-9, last_s - first_s),
        losses=sorted(progress.losses.items()),
        killed=killed.victims[0] if killed else None,
        killed_at_step=killed.step if killed else None,
        recovered_s=killed.rto_s if killed else None,
        rerouted_microbatches=run.total("rerouted_microbatches"),
        replayed_microbatches=run.total("lost_microbatches"),
        steps_closed=ledger.closed,
        microbatches_doubled=ledger.doubled,
        steps_differing=ledger.differing,
        seconds=time.monotonic() - begin,
        model=str(out / "model"),
        sample=PROMPT + text,
    )


def _write(out: Path, report: DemoReport, trained: Trained) -> None:
    (out / "sample.txt").write_text(report.sample)
    document = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (out / REPORT_FILE).write_bytes(document + b"\n")
    model = trained.manifest.model
    export_hf(model, trained.state, Path(report.model), file_tokenizer(trained))


def checkpoint_interval(steps: int) -> int:
    """Return about a quarter of the steps, such that the last step is checkpointed too."""
    return next(every for every in range(max(1, steps // 4), 0, -1) if steps % every == 0)
