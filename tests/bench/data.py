"""Tokens: how fast they are made and drawn, and what they do to learning.

    python -m tests.bench.data [build] [large] [sampling] [learning] [--text FILE] [--record]

- ``build``: `volunteer data build` on the Python files of this installation (24 MB), beside the
  `tokenizers` library alone on the same text in memory with as many threads; by turns, three times
  each. Whole processes: starting them and writing the result count.
- ``large``: most memory of any process of a build of 1 GB as bytes: the same text again and again,
  in a file of its own.
- ``sampling``: what it takes to work out where a sample begins, in data of 10 TB.
- ``learning``: nanoGPT's shape for a CPU on a text as bytes and as 1,024 tokens, the same bytes
  seen, by the reference trainer; loss on held-out windows in bits per byte.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import TokenCorpus
from model_zoo.datasets.folder import open_folder
from model_zoo.reference import TrainingPlan, evaluate, train_reference
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.windows import Windows
from model_zoo.whole import load_whole
from tests.bench.figures import Figure, add_record_flag, figure, record

TEXT_BYTES = 24_000_000
VOCAB = 16_384
LARGE_BYTES = 1_000_000_000
TURNS = 3
DRAWN = 50_000
MEASURES = ("model_zoo/datasets", "model_zoo/tokenizers", "model_zoo/specs/windows.py")
STEPS, BATCH, CONTEXT = 2000, 12, 64
BATCHES = 40

ALONE = """
import sys
from pathlib import Path
from model_zoo.tokenizers.bpe import Bpe

size, text = 65536, Path(sys.argv[1]).read_text()
tokenizer = Bpe(Path(sys.argv[2]).read_bytes())
pieces = [text[at : at + size] for at in range(0, len(text), size)]
for at in range(0, len(pieces), 256):
    tokenizer._library.encode_batch_fast(pieces[at : at + 256], add_special_tokens=False)
"""
BUILD = """
import resource
import sys
from pathlib import Path
from model_zoo.datasets.build import build
from model_zoo.datasets.choice import parse_tokenizer

if __name__ == "__main__":
    build([Path(sys.argv[1])], Path(sys.argv[3]), tokenizer=parse_tokenizer(sys.argv[2]))
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    print(1024 * max(resource.getrusage(kind).ru_maxrss for kind in kinds))
"""


def main() -> None:
    """Measure what is named, or all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {"build": building, "large": large, "sampling": sampling, "learning": learning}
    parser.add_argument("kinds", nargs="*", help=f"some of {', '.join(kinds)}; default: all")
    parser.add_argument("--text", type=Path, help="text to learn, such as tinyshakespeare.txt")
    add_record_flag(parser)
    given = parser.parse_args()
    for kind in given.kinds or kinds:
        figures = kinds[kind](given.text)
        for one in figures:
            print(f"{one.what}: {one.value} ({one.spread})", flush=True)
        if given.record:
            record(figures)


def building(_: Path | None) -> Sequence[Figure]:
    """Time builds and the library alone by turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "python.txt"
        text.write_bytes(_python_text())
        small = folder / "small.txt"
        small.write_bytes(text.read_bytes()[:4_000_000])
        build([small], folder / "trained", tokenizer=VOCAB)
        tokenizer = str(folder / "trained" / "tokenizer.json")
        alone, built, peaks = [], [], []
        for turn in range(TURNS):
            alone.append(_seconds(ALONE, str(text), tokenizer)[0])
            seconds, peak = _seconds(BUILD, str(text), tokenizer, str(folder / f"out-{turn}"))
            built.append(seconds)
            peaks.append(int(peak))
        memory = f"{max(peaks) / 1e6:.0f} MB"
    size = TEXT_BYTES
    rates = sorted(size / seconds / 1e6 for seconds in built)
    library = sorted(size / seconds / 1e6 for seconds in alone)
    shares = sorted(a / b for a, b in zip(alone, built, strict=True))
    cores = len(os.sched_getaffinity(0))
    words = f"`data build` of {size / 1e6:.0f} MB of Python, {VOCAB:,} tokens, {cores} cores"
    value = (
        f"**{median(shares):.2f}** of the library alone (0.8 is asked): {median(rates):.1f} MB/s "
        f"against {median(library):.1f}"
    )
    spread = f"median of {TURNS}, {shares[0]:.2f} to {shares[-1]:.2f}"
    return [
        _figure(words, value, spread),
        _figure("the same: most memory of a process", memory, f"largest of {TURNS}"),
    ]


def large(_: Path | None) -> Sequence[Figure]:
    """Take the most memory of a large build."""
    with tempfile.TemporaryDirectory() as name:
        path, text = Path(name) / "large.txt", _python_text()
        with path.open("wb") as file:
            file.writelines([text] * -(-LARGE_BYTES // len(text)))
        size = path.stat().st_size
        seconds, peak = _seconds(BUILD, str(path), "bytes", str(Path(name) / "out"))
    value = f"**{int(peak) / 1e6:.0f} MB**"
    spread = f"one run, {seconds:.0f} s; an upper bound: memory of what started it may count"
    return [_figure(f"`data build` of {size / 1e9:.1f} GB as bytes: most memory", value, spread)]


def sampling(_: Path | None) -> Sequence[Figure]:
    """Time where samples begin."""
    windows = Windows(5 * 10**12, 1024, "ab" * 32)
    taken = []
    for turn in range(TURNS):
        begin = time.process_time()
        for sample in range(turn * DRAWN, (turn + 1) * DRAWN):
            windows.training_start(sample, seed=1)
        taken.append((time.process_time() - begin) / DRAWN * 1e6)
    spread = f"median of {TURNS} times {DRAWN:,}, {min(taken):.1f} to {max(taken):.1f} us"
    words = "where a sample of 10 TB of tokens begins (28 us is asked)"
    return [_figure(words, f"**{median(taken):.1f} us**", spread)]


def learning(text: Path | None) -> Sequence[Figure]:
    """Train on bytes and on 1,024 tokens."""
    if text is None:
        raise SystemExit("learning needs --text FILE")
    found = []
    with tempfile.TemporaryDirectory() as name:
        for words, tokenizer in (("bytes", None), ("1,024 tokens", 1024)):
            folder = build([text], Path(name) / words, tokenizer=tokenizer)
            per_token = folder.index.text_bytes / folder.index.tokens
            steps = round(STEPS / per_token)
            bits = _trained_bits(TokenCorpus.from_folder(open_folder(folder.path)), steps)
            value = f"**{bits:.3f} bits per byte**"
            spread = f"1 run, {steps} steps of {BATCH} x {CONTEXT}, {per_token:.2f} bytes a token"
            found.append(_figure(f"{text.name} as {words}, the same bytes seen", value, spread))
    return found


def _trained_bits(corpus: TokenCorpus, steps: int) -> float:
    spec = ModelSpec("gpt", 4, 128, 4, 4, 512, context=CONTEXT, vocab=corpus.spec.vocab)
    warmup = max(1, steps // 20)
    optimizer = OptimizerSpec(
        lr=1e-3, min_lr=1e-4, warmup_steps=warmup, decay_steps=steps, beta2=0.99
    )
    plan = TrainingPlan(
        spec=spec,
        layers_per_stage=(spec.layers,),
        optimizer=optimizer,
        steps=steps,
        microbatches_per_step=1,
        sequences_per_microbatch=BATCH,
        seed=1337,
    )
    model = load_whole(spec, train_reference(plan, corpus).state)
    loss = evaluate(model, corpus, batches=BATCHES, sequences=BATCH, context=CONTEXT)
    rows = [corpus.held_out_batch(n, BATCH, CONTEXT)[:, 1:] for n in range(BATCHES)]
    size = sum(corpus.bytes_of(targets) for targets in rows)
    return loss * sum(targets.size for targets in rows) / size / math.log(2)


def _python_text() -> bytes:
    """Python files of this installation, in the order of their names."""
    found = bytearray()
    for root in (Path(os.__file__).parent, Path(sys.prefix)):
        for path in sorted(root.rglob("*.py")):
            found += path.read_bytes().decode("utf-8", "ignore").encode()
            if len(found) >= TEXT_BYTES:
                return bytes(found[:TEXT_BYTES]).decode("utf-8", "ignore").encode()
    raise SystemExit(f"there are {len(found)} bytes of Python files, {TEXT_BYTES} are needed")


def _seconds(program: str, *arguments: str) -> tuple[float, str]:
    """Run a program; return how long it took, and what it printed."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program)
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": root}
        command = [sys.executable, str(path), *arguments]
        done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout


def _figure(what: str, value: str, spread: str) -> Figure:
    return figure("data", what, value, spread, "python -m tests.bench.data", MEASURES)


if __name__ == "__main__":
    main()
