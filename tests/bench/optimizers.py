"""Optimizers at equal steps, and what an update that comes one step late costs each of them.

    python -m tests.bench.optimizers TEXT [rates] [curves] [delayed] [--record]

nanoGPT's shape for a CPU on a text, by the reference trainer with one thread; that a swarm makes
the same losses is shown by `tests/sim/test_sim_exactness.py`. Every run is kept in
`results/optimizers.jsonl` when it has ended, and not made again; with ``--keep FOLDER`` one that
was stopped goes on.

- ``rates``: short runs on bytes that choose each optimizer's learning rate.
- ``curves``: each optimizer at its rate, on the text as bytes and as 1,024 tokens, the same bytes
  seen; loss on held-out windows in bits per byte.
- ``delayed``: 1,000 steps on bytes with and without `--delayed-update`, each at its best rate.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import TokenCorpus
from model_zoo.datasets.folder import open_folder
from model_zoo.reference import TrainingPlan, evaluate, train_reference
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec
from model_zoo.whole import load_whole
from tests.bench.figures import Figure, add_record_flag, figure, record

RUNS = Path(__file__).parent / "results" / "optimizers.jsonl"
TABLE = "optimizers"
MEASURES = ("model_zoo/optimizers", "model_zoo/reference.py", "model_zoo/specs/optimizer.py")
BATCH, CONTEXT = 12, 64
BATCHES = 40
STEPS, SHORT_STEPS = 1000, 300
RATES = {
    "adamw": (1e-3, 2e-3),
    "lion": (2e-4, 4e-4),
    "muon": (3e-3, 6e-3),
}
KINDS = tuple(RATES)
TOKENIZERS = {"bytes": None, "1,024 tokens": 1024}
SEEDS = (1337,)


class Setting(Struct, frozen=True):
    """What is run."""

    tokenizer: str
    kind: str
    lr: float
    steps: int
    seed: int = SEEDS[0]
    delayed: bool = False


class Run(Struct, frozen=True):
    """A run, and what came of it."""

    setting: Setting
    bits: float
    """Held-out loss in bits per byte."""
    loss: float
    """The same in nats per token."""
    seconds: float


def main() -> None:
    """Measure what is named, or all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts: dict[str, Callable[[Lab], Sequence[Figure]]] = {
        "rates": rates,
        "curves": curves,
        "delayed": delayed,
    }
    parser.add_argument("text", type=Path, help="text to learn, such as tinyshakespeare.txt")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(parts)}; default: all")
    parser.add_argument("--keep", type=Path, help="a folder where stopped runs go on from")
    add_record_flag(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(given.text, Path(folder), given.keep)
        for part in given.parts or parts:
            figures = parts[part](lab)
            for one in figures:
                print(f"{one.what}: {one.value} ({one.spread})", flush=True)
            if given.record:
                record(figures)


class Lab:
    """Runs on one text; each is made once."""

    def __init__(self, text: Path, folder: Path, keep: Path | None = None) -> None:
        self.text, self._folder, self._keep = text, folder, keep
        self._corpora: dict[str, TokenCorpus] = {}

    def corpus(self, tokenizer: str) -> TokenCorpus:
        """Return the text as tokens."""
        if tokenizer not in self._corpora:
            made = build([self.text], self._folder / tokenizer, tokenizer=TOKENIZERS[tokenizer])
            self._corpora[tokenizer] = TokenCorpus.from_folder(open_folder(made.path))
        return self._corpora[tokenizer]

    def steps(self, tokenizer: str) -> int:
        """Return in how many steps as many bytes are seen as in ``STEPS`` of bytes."""
        corpus = self.corpus(tokenizer)
        tokens = corpus.held_out_batch(0, 200, CONTEXT)
        per_token = corpus.bytes_of(tokens) / tokens.size
        return STEPS if tokenizer == "bytes" else round(STEPS / per_token)

    def run(self, setting: Setting) -> Run:
        """Return the run of a setting, which is made if it is not kept."""
        kept = {run.setting: run for run in _kept()}
        if setting not in kept:
            run = self._make(setting)
            print(f"{setting.tokenizer}, {setting.kind}, lr {setting.lr:g}: {run}", flush=True)
            with RUNS.open("ab") as file:
                file.write(msgspec.json.encode(run) + b"\n")
            return run
        return kept[setting]

    def rate(self, kind: str) -> float:
        """Return the rate with the lowest loss after a short run."""
        tried = [self.run(Setting("bytes", kind, lr, SHORT_STEPS)) for lr in RATES[kind]]
        return min(tried, key=lambda run: run.bits).setting.lr

    def _make(self, setting: Setting) -> Run:
        begin, corpus = time.monotonic(), self.corpus(setting.tokenizer)
        plan = _plan(setting, corpus.spec.vocab)
        name = "-".join(map(str, msgspec.structs.astuple(setting))).replace(" ", "")
        keep_in = self._keep / name if self._keep else None
        if keep_in is not None:
            keep_in.parent.mkdir(parents=True, exist_ok=True)
        state = train_reference(plan, corpus, threads=1, keep_in=keep_in).state
        model, size = load_whole(plan.spec, state), BATCHES * BATCH * CONTEXT
        loss = evaluate(model, corpus, batches=BATCHES, sequences=BATCH, context=CONTEXT)
        rows = (corpus.held_out_batch(n, BATCH, CONTEXT)[:, 1:] for n in range(BATCHES))
        text = sum(corpus.bytes_of(targets) for targets in rows)
        bits = loss * size / text / math.log(2)
        return Run(setting, round(bits, 4), round(loss, 4), round(time.monotonic() - begin, 1))


def rates(lab: Lab) -> Sequence[Figure]:
    """Choose learning rates."""
    found = []
    for kind in KINDS:
        tried = [lab.run(Setting("bytes", kind, lr, SHORT_STEPS)) for lr in RATES[kind]]
        words = ", ".join(f"{run.setting.lr:g}: {run.bits:.3f}" for run in tried)
        what = f"{kind}: bits per byte after {SHORT_STEPS} steps on bytes, by learning rate"
        found.append(_figure(what, words, f"chosen: **{lab.rate(kind):g}**; one run each"))
    return found


def curves(lab: Lab) -> Sequence[Figure]:
    """Train each optimizer on bytes and on tokens."""
    found = []
    for tokenizer in TOKENIZERS:
        steps = lab.steps(tokenizer)
        runs = [lab.run(Setting(tokenizer, kind, lab.rate(kind), steps)) for kind in KINDS]
        value = " / ".join(f"**{run.bits:.3f}**" for run in runs)
        times = " / ".join(f"{run.seconds / steps * 1000:.0f}" for run in runs)
        what = f"{lab.text.name} as {tokenizer}: bits per byte with {' / '.join(KINDS)}"
        spread = f"1 run each, {steps} steps of {BATCH} x {CONTEXT}; {times} ms a step"
        found.append(_figure(what, value, spread))
    return found


def delayed(lab: Lab) -> Sequence[Figure]:
    """Train with and without delayed updates, each at the better of the optimizer's rates."""
    found = []
    for kind in ("muon", "adamw"):
        late, usual = (
            min(
                (lab.run(Setting("bytes", kind, lr, STEPS, delayed=way)) for lr in RATES[kind]),
                key=_loss,
            )
            for way in (True, False)
        )
        what = f"{kind}: held-out loss that `--delayed-update` costs after {STEPS} steps"
        value = f"**{late.loss - usual.loss:+.3f}** ({late.loss:.3f} against {usual.loss:.3f})"
        rates = f"rates {late.setting.lr:g} and {usual.setting.lr:g}, the better of two each"
        found.append(_figure(what, value, f"{rates}; one run each"))
    return found


def _loss(run: Run) -> float:
    return run.loss


def _plan(setting: Setting, vocab: int) -> TrainingPlan:
    facts, usual = OPTIMIZERS[setting.kind], OptimizerSpec()
    optimizer = OptimizerSpec(
        lr=setting.lr,
        min_lr=setting.lr / 10,
        warmup_steps=max(1, setting.steps // 20),
        decay_steps=setting.steps,
        beta1=facts.beta1,
        weight_decay=usual.weight_decay / facts.rate,
        kind=msgspec.UNSET if setting.kind == "adamw" else setting.kind,
    )
    spec = ModelSpec("gpt", 4, 128, 4, 4, 512, context=CONTEXT, vocab=vocab)
    return TrainingPlan(
        spec, (spec.layers,), optimizer, setting.seed, setting.steps, 1, BATCH, setting.delayed
    )


def _kept() -> list[Run]:
    if not RUNS.exists():
        return []
    return [msgspec.json.decode(line, type=Run) for line in RUNS.read_bytes().splitlines()]


def _figure(what: str, value: str, spread: str) -> Figure:
    return figure(TABLE, what, value, spread, "python -m tests.bench.optimizers TEXT", MEASURES)


if __name__ == "__main__":
    main()
