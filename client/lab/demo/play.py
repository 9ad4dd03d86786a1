"""One run of the demo, from founding to the report. Imports torch."""

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from client.cli.founding.options import RunChoices
from client.cli.models.model_source import Trained, find_places, load_newest, needed_model
from client.cli.models.newest import file_tokenizer
from client.cli.terminal.swarm_text import introduction
from client.lab.demo.report import DemoReport, check_invariants
from client.lab.demo.run import DemoRun, Observed
from client.lab.demo.screen import Screen
from client.lab.founding import HOST, write_lab
from client.lab.local_swarm import DATA, LocalSwarm, terminate_as_interrupt
from client.lab.reference import evaluate
from client.store.paths import Kept, home_folders
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder
from model_zoo.export import export_hf
from model_zoo.sample import stream
from protocol.invite import SwarmFile

JOIN_FLAGS = ("--listen-host", HOST, "--threads", "1")
START_TIMEOUT_S = 60.0
PROMPT = "def "
SAMPLE_BYTES = 300


class Play:
    """Holds the settings of one run and the folder for its results."""

    def __init__(self, out: Path, *, steps: int, volunteers: int, stages: int, kill: bool) -> None:
        self._out = out
        self._volunteers = [f"volunteer-{number}" for number in range(1, volunteers + 1)]
        # More volunteers than stages: at least one stage has two, so that one can be killed.
        self._kill = kill and volunteers > stages
        self._choices = RunChoices(
            name="demo",
            steps=steps,
            stages=stages,
            checkpoint_every=checkpoint_interval(steps),
            dual_homing=False,  # one worker each: the demo shares one machine
        )
        self._screen = Screen()

    def perform(self, timeout_s: float) -> DemoReport:
        """Found the swarm, run it, and check the result.

        Raises:
            UserError: a volunteer failed, or time ran out.
        """
        begin = time.monotonic()
        # A short path: sockets lie below it.
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
            homes = Path(folder)
            swarm = self._found(homes)
            seen = self._run(homes, timeout_s)
            self._screen.say("training is done; putting the model together")
            return self._judge(swarm, homes, seen, begin)

    def _found(self, homes: Path) -> SwarmFile:
        self._screen.say("making tokens of the text")
        path = homes / "demo.swarm"
        swarm = write_lab(path, homes / self._volunteers[0], self._choices)
        shutil.copy(path, self._out)
        self._screen.say("\n".join(introduction(swarm.manifest, swarm.swarm)))
        return swarm

    def _run(self, homes: Path, timeout_s: float) -> Observed:
        with LocalSwarm(homes / "demo.swarm", homes, self._out / "logs") as processes:
            founder, *others = self._volunteers
            processes.start(founder, JOIN_FLAGS).wait_until_it_answers(START_TIMEOUT_S)
            for name in others:
                processes.start(name, JOIN_FLAGS)
            run = DemoRun(processes, self._screen, kill=self._kill, timeout_s=timeout_s)
            return run.run()

    def _judge(self, swarm: SwarmFile, homes: Path, seen: Observed, begin: float) -> DemoReport:
        here = [home_folders(homes / name) for name in self._volunteers]
        folders = [home.of(swarm.swarm, Kept.CHECKPOINTS) for home in here]
        trained = load_newest(swarm, folders)
        invariants = check_invariants(seen, find_places(folders))
        model = needed_model(trained)
        text = "".join(stream(model, PROMPT, SAMPLE_BYTES, temperature=0.7, top_k=40))
        whole = trained.version == trained.manifest.steps
        report = DemoReport(
            ok=whole and invariants.hold and (seen.kill is not None) == self._kill,
            swarm=swarm.swarm,
            volunteers=len(seen.names),
            stages=trained.manifest.stage_count,
            steps=trained.manifest.steps,
            version=trained.version,
            training_loss=seen.losses[max(seen.losses)] if seen.losses else None,
            held_out_loss=evaluate(
                needed_model(trained),
                Corpus.from_folder(open_folder(homes / DATA)),
                batches=16,
                sequences=8,
                context=trained.manifest.model.context,
            ),
            median_tokens_per_s=statistics.median(seen.tokens_per_s or [0.0]),
            losses=sorted(seen.losses.items()),
            killed=seen.kill.name if seen.kill else None,
            killed_at_step=seen.kill.step if seen.kill else None,
            recovered_s=seen.recovered_s,
            rerouted_microbatches=seen.total("rerouted_microbatches"),
            replayed_microbatches=seen.total("lost_microbatches"),
            invariants=invariants,
            seconds=time.monotonic() - begin,
            model=str(self._out / "model"),
            sample=PROMPT + text,
        )
        self._write(report, trained)
        return report

    def _write(self, report: DemoReport, trained: Trained) -> None:
        (self._out / "sample.txt").write_text(report.sample)
        document = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (self._out / "report.json").write_bytes(document + b"\n")
        model = trained.manifest.model
        export_hf(model, trained.state, Path(report.model), file_tokenizer(trained))


def checkpoint_interval(steps: int) -> int:
    """Return about a quarter of the steps, such that the last step is checkpointed too."""
    return next(every for every in range(max(1, steps // 4), 0, -1) if steps % every == 0)
