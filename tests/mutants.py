"""Break ``protocol/`` at random, one place at a time, and see whether the tests notice.

    python -m tests.mutants --count 100 --seed 0 [--chaos 400] [--only chaos] [--limit 300]
                            [--jobs 2] [--out FILE]

A mutant is a comparison turned round, a branch that is always or never taken, or a call that is
left out. Each is made in a copy of the tree. There run, until one fails or takes too long: the unit
tests of its folder, those of the whole protocol, short simulations, and seeds of the chaos world. A
line a mutant says which of them noticed it. Some mutants are no faults (a bound that is never met,
a log line that is left out), so that not all can be noticed.

The same seed makes the same mutants of the same protocol, and of 40 mutants the first 20 are those
of ``--count 20``. To compare two sets of tests, run both on the same protocol. The chaos world says
which seed noticed a mutant first (``--only chaos`` asks it alone): so many seeds a sweep needs.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue

REPOSITORY = Path(__file__).parents[1]
MUTATED = Path("protocol")
COPIED = ("client", "model_zoo", "packaging", "protocol", "tests", "pyproject.toml")
UNIT = Path("tests/unit/protocol")
SIMULATIONS = ("tests/sim/test_sim_training.py", "tests/sim/test_sim_slow_rounds.py")
OF_MATCHING = ("tests/sim/test_matching_seats.py", "tests/sim/test_exchange_partition.py")
"""Short ones; more of them notice more."""
MEMORY_BYTES = 6 * 2**30
"""A mutant that fills the memory ends before it harms the machine."""
CHAOS = """
from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.replay import run_once
for seed in range({count}):
    print(seed, flush=True)
    world, violation = run_once(drawn(seed))
    assert not violation, violation
"""
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and what came of it."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    """Position of ``before`` in the file, in bytes ..."""
    end: int
    """... and where it ends."""
    noticed: str = ""
    """By which tests; empty: by none."""
    seed: int | None = None
    """The seed of the chaos world that noticed it."""

    def __str__(self) -> str:
        by = f"{self.noticed} {'' if self.seed is None else self.seed}".strip()
        change = f"{_short(self.before)} -> {_short(self.after)}"
        return f"{by or 'SURVIVED':18} {self.path}:{self.line} {change}"

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(root: Path, seed: int) -> Iterator[Mutant]:
    """Yield every mutant of the tree in an order drawn by the seed, the kinds in turn."""
    dice = random.Random(seed)
    found = [m for path in sorted((root / MUTATED).rglob("*.py")) for m in _of_file(root, path)]
    by_kind = [[m for m in found if m.kind == kind] for kind in sorted({m.kind for m in found})]
    for some in by_kind:
        dice.shuffle(some)
    for several in itertools.zip_longest(*by_kind):
        yield from (mutant for mutant in several if mutant)


def _of_file(root: Path, path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node in ast.walk(ast.parse(source)):
        for part, kind, after in _changes(node):
            assert part.end_lineno is not None
            assert part.end_col_offset is not None
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            name, before = str(path.relative_to(root)), source[start:end].decode()
            yield Mutant(name, part.lineno, kind, before, after, start, end)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield what may be changed about a node: which part of it, how, and into what."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            turned = ast.Compare(left, [OPPOSITES[type(operator)]()], right)
            yield node, "comparison", f"({ast.unparse(turned)})"
        case ast.If(test=test) | ast.IfExp(test=test) if not _binds(test):
            yield test, "branch", "True"
            yield test, "branch", "False"
        case ast.Expr(value=ast.Call()):
            yield node, "call", "pass"


def _binds(test: ast.expr) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))


def stages(mutant: Mutant | None, chaos: int, only: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield what is run for a mutant, the most likely to notice it first: a name and a command."""
    return (stage for stage in _stages(mutant, chaos) if only in ("", stage[0]))


def _stages(mutant: Mutant | None, chaos: int) -> Iterator[tuple[str, list[str]]]:
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    pytest += ["--hypothesis-seed=0"]
    folder = UNIT / Path(mutant.path).parent.relative_to(MUTATED) if mutant else UNIT
    if folder != UNIT and (REPOSITORY / folder).is_dir():
        yield "unit", [*pytest, str(folder)]
    yield "unit", [*pytest, str(UNIT)]
    yield "simulation", [*pytest, *SIMULATIONS]
    if mutant is None or "/matching/" in mutant.path:
        yield "matching", [*pytest, *OF_MATCHING]
    if chaos and (mutant is None or "/matching/" not in mutant.path):
        yield "chaos", [sys.executable, "-c", CHAOS.format(count=chaos)]


class Copy:
    """A copy of the tree in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "results", "snapshots")
        for name in COPIED:
            if (REPOSITORY / name).is_dir():
                shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
            else:
                shutil.copy(REPOSITORY / name, folder / name)

    def tried(self, mutant: Mutant, chaos: int, limit_s: float, only: str = "") -> Mutant:
        """Return a mutant with what noticed it.

        Args:
            mutant: What to change.
            chaos: Seeds of the chaos world at most.
            limit_s: A stage that takes longer, in seconds, has noticed it.
            only: The name of the only stages to run; empty: all of them.
        """
        file = self._folder / mutant.path
        sound = file.read_bytes()
        self._write(file, mutant.applied(sound))
        try:
            return self._run(mutant, stages(mutant, chaos, only), limit_s)
        finally:
            self._write(file, sound)

    def holds(self, chaos: int, limit_s: float, only: str = "") -> str:
        """Return which stage fails although nothing is changed; empty: none."""
        for name, command in stages(None, chaos, only):
            code, said = self._finish(command, limit_s)
            if code:
                return f"{name}: {said[-2000:] or 'took too long'}"
        return ""

    def _run(self, mutant: Mutant, run: Iterable[tuple[str, list[str]]], limit_s: float) -> Mutant:
        for name, command in run:
            code, said = self._finish(command, limit_s)
            if code:
                seed = int(said.split()[-1]) if name == "chaos" and said.split() else None
                return replace(mutant, noticed=name, seed=seed)
        return mutant

    def _finish(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        """Run a command; return its exit code, not zero if it took too long, and what it said."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_bound_memory,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = 1
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            return code, said.read()

    def _write(self, file: Path, text: bytes) -> None:
        file.write_bytes(text)
        # A compiled file is compared with its source by size and whole seconds: too rough here.
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else words[:57] + "..."


def main() -> int:
    """Try some mutants and say what noticed each; 1 if the tests fail without any."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chaos", type=int, default=50, help="seeds of the chaos world at most")
    parser.add_argument("--only", default="", help="unit, simulation, matching or chaos")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each set of tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--out", type=Path, help="a file to which each mutant is added as JSON")
    given = parser.parse_args()
    able = (m for m in mutants(REPOSITORY, given.seed) if any(stages(m, given.chaos, given.only)))
    drawn = list(itertools.islice(able, given.skip, given.skip + given.count))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(given.jobs)]
        wrong = copies[0].holds(min(given.chaos, 1), given.limit, given.only)
        if wrong:
            print(f"without a mutant fails {wrong}")
            return 1
        idle: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            idle.put(copy)

        def tried(mutant: Mutant) -> Mutant:
            copy = idle.get()
            try:
                return copy.tried(mutant, given.chaos, given.limit, given.only)
            finally:
                idle.put(copy)

        with ThreadPoolExecutor(given.jobs) as pool:
            _tell(pool.map(tried, drawn), given.out)
    return 0


def _tell(results: Iterator[Mutant], out: Path | None) -> None:
    counts: Counter[str] = Counter()
    for result in results:
        counts[result.noticed] += 1
        print(result, flush=True)
        if out:
            with out.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    survived = counts.pop("", 0)
    print(f"{counts.total()} noticed {dict(counts)}, {survived} not")


if __name__ == "__main__":
    sys.exit(main())
