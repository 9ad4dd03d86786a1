"""Break ``protocol/`` at random, one place at a time, and see whether the tests notice.

    python -m tests.mutants --count 100 --seed 0 [--chaos 8] [--only chaos] [--limit 300]
                            [--jobs 2] [--quick] [--out FILE] [--within 280] [--again]
                            [--page FILE]

A mutant is a comparison turned round, a branch that is always or never taken, a call or a refusal
that is left out, or an "and" in place of an "or". Each is made in a copy of the tree. There run,
until one fails or takes too long: the unit tests that name its file, seeds of the chaos world
(half as many with a liar), and, unless it is to be quick, the other unit tests of the protocol and
short simulations. A line a mutant says which test noticed it. Some mutants are no faults (a bound
that is never met, a log line that is left out), so that not all can be noticed.

The same seed makes the same mutants of the same protocol, and of 40 mutants the first 20 are those
of ``--count 20``. Those that ``--out`` holds already are not tried again; with ``--again`` only
those of them are tried that survived and whose code stands where it stood. To compare two sets of
tests, run both on the same protocol. The chaos world says which seed noticed a mutant first
(``--only chaos`` asks it alone): so many seeds a sweep needs. ``--page`` writes what ``--out``
holds as a table; what was found out about a survivor stands in its line under ``remark``.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue

REPOSITORY = Path(__file__).parents[1]
MUTATED = Path("protocol")
COPIED = ("client", "model_zoo", "packaging", "protocol", "tests", "pyproject.toml")
UNIT = Path("tests/unit/protocol")
SLOW = UNIT / "seat" / "test_seat_large_steps.py"
"""Measures times and nothing else."""
SIMULATIONS = ("tests/sim/test_sim_slow_rounds.py",)
OF_MATCHING = ("tests/sim/test_matching_seats.py", "tests/sim/test_exchange_partition.py")
"""Short ones; more of them notice more."""
MEMORY_BYTES = 6 * 2**30
"""A mutant that fills the memory ends before it harms the machine."""
CHAOS = """
from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.liar import MENU
from client.lab.simulate.chaos.replay import run_once
for lies, count in ((), {count}), (MENU, {count} // 2):
    for seed in range(count):
        print("liar" if lies else "chaos", "seed", seed, flush=True)
        world, violation = run_once(drawn(seed, lies))
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
    test: str = ""
    """The test, or the seed of the chaos world, that noticed it first."""
    remark: str = ""
    """What a person found out about a survivor."""

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What tells it from every other mutant."""
        return self.path, self.kind, self.start, self.before, self.after

    @property
    def change(self) -> str:
        """What is changed into what, on one line."""
        return f"{_short(self.before)} -> {_short(self.after)}"

    def __str__(self) -> str:
        by = f"{self.noticed} {self.test}".strip() or "SURVIVED"
        return f"{self.path}:{self.line} {self.kind}: {self.change} | {by}"

    def fits(self, root: Path) -> bool:
        """Tell whether its file still has the text that it changes where that was."""
        source = (root / self.path).read_bytes()
        return source[self.start : self.end] == self.before.encode()

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the change.

        Raises:
            ValueError: The mutant was made of another text.
        """
        if source[self.start : self.end] != self.before.encode():
            raise ValueError(f"{self.path} has changed since this mutant was made")
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
    tree = ast.parse(source)
    # Until Python 3.12 what stands within an f-string has no position of its own.
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    within = {id(part) for text in texts for part in ast.walk(text)}
    for node in ast.walk(tree):
        for part, kind, after in _changes(node) if id(node) not in within else ():
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
        case ast.Raise() | ast.Return(value=ast.Call(func=ast.Name(id="no"))):
            yield node, "refusal", "pass"
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield node, "junction", f"({ast.unparse(ast.BoolOp(other, values))})"


def _binds(test: ast.expr) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))


@dataclass(frozen=True)
class Trials:
    """What is run for each mutant."""

    chaos: int
    """Seeds of the chaos world at most."""
    only: str = ""
    """The name of the only stages; empty: all of them."""
    quick: bool = False
    """Leave out the tests that do not name the mutant's file."""
    limit_s: float = 300.0
    """A stage that takes longer has noticed the mutant."""


def stages(mutant: Mutant | None, tests: Trials) -> Iterator[tuple[str, list[str]]]:
    """Yield what is run for a mutant, the most likely to notice it first: a name and a command."""
    return (stage for stage in _stages(mutant, tests) if tests.only in ("", stage[0]))


def _stages(mutant: Mutant | None, tests: Trials) -> Iterator[tuple[str, list[str]]]:
    chaos = tests.chaos
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-ra", "-p", "no:cacheprovider"]
    pytest += ["--hypothesis-seed=0"]
    first = unit_tests_of(mutant.path) if mutant else []
    if first:
        yield "unit", [*pytest, *first]
    if chaos and (mutant is None or "/matching/" not in mutant.path):
        yield "chaos", [sys.executable, "-c", CHAOS.format(count=chaos)]
    if tests.quick:
        return
    done = [f"--ignore={path}" for path in (*first, SLOW)]
    yield "unit", [*pytest, *done, str(UNIT)]
    yield "simulation", [*pytest, *SIMULATIONS]
    if mutant is None or "/matching/" in mutant.path:
        yield "matching", [*pytest, *OF_MATCHING]


def unit_tests_of(path: str) -> list[str]:
    """Return the unit tests of the protocol that import a file of it, those of its folder first;
    all of its folder if none does."""
    module = Path(path).with_suffix("")
    folder, name = ".".join(module.parent.parts), module.name
    named = re.compile(rf"{re.escape(folder)}(\.| import (.*\W)?){name}\b")
    beside = UNIT / module.parent.relative_to(MUTATED)
    files = sorted((REPOSITORY / UNIT).rglob("test_*.py"))
    found = [file for file in files if named.search(file.read_text())]
    found = found or list((REPOSITORY / beside).glob("test_*.py"))
    relative = [file.relative_to(REPOSITORY) for file in found]
    relative.sort(key=lambda file: file.parent != beside)
    return [str(file) for file in relative if file != SLOW]


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

    def tried(self, mutant: Mutant, tests: Trials) -> Mutant:
        """Return a mutant with what noticed it."""
        file = self._folder / mutant.path
        sound = file.read_bytes()
        self._write(file, mutant.applied(sound))
        try:
            return self._run(mutant, tests)
        finally:
            self._write(file, sound)

    def holds(self, tests: Trials) -> str:
        """Return which stage fails although nothing is changed; empty: none."""
        for name, command in stages(None, tests):
            code, said = self._finish(command, tests.limit_s)
            if code:
                return f"{name}: {said[-2000:] or 'took too long'}"
        return ""

    def _run(self, mutant: Mutant, tests: Trials) -> Mutant:
        for name, command in stages(mutant, tests):
            code, said = self._finish(command, tests.limit_s)
            if code:
                return replace(mutant, noticed=name, test=_first_failure(said) or "too slow")
        return mutant

    def _finish(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        """Run a command; return its exit code, not zero if it took too long, and what it said."""
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self._folder)},
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


def _first_failure(said: str) -> str:
    """Return the failed test that pytest tells of, or the seed that the chaos world told of last;
    empty: neither."""
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+)", said, re.MULTILINE)
    seeds: list[str] = re.findall(r"^(?:chaos|liar) seed \d+$", said, re.MULTILINE)
    return failed[1] if failed else seeds[-1] if seeds else ""


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
    parser.add_argument("--chaos", type=int, default=8, help="seeds of the chaos world at most")
    parser.add_argument("--only", default="", help="unit, simulation, matching or chaos")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each set of tests")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds to begin them in")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--quick", action="store_true", help="only tests that name its file")
    parser.add_argument("--again", action="store_true", help="try the survivors of --out again")
    parser.add_argument("--out", type=Path, help="a file to which each mutant is added as JSON")
    parser.add_argument("--page", type=Path, help="write what --out holds as a table, run nothing")
    given = parser.parse_args()
    known = read(given.out) if given.out else []
    if given.page:
        given.page.write_text(page(known))
        return 0
    tests = Trials(given.chaos, given.only, given.quick, given.limit)
    able = (m for m in mutants(REPOSITORY, given.seed) if any(stages(m, tests)))
    drawn = list(itertools.islice(able, given.skip, given.skip + given.count))
    done = {m.place for m in known}
    new = [m for m in drawn if m.place not in done]
    if given.again:
        new = [m for m in known if not m.noticed and m.fits(REPOSITORY)]
    return _try_all(new, tests, given) if new else 0


def _try_all(drawn: list[Mutant], tests: Trials, given: argparse.Namespace) -> int:
    over = time.monotonic() + given.within
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(given.jobs)]
        resumed = given.out is not None and given.out.exists()
        wrong = "" if resumed else copies[0].holds(replace(tests, chaos=min(tests.chaos, 1)))
        if wrong:
            print(f"without a mutant fails {wrong}")
            return 1
        idle: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            idle.put(copy)

        def tried(mutant: Mutant) -> Mutant | None:
            if time.monotonic() > over:
                return None
            copy = idle.get()
            try:
                return copy.tried(mutant, tests)
            finally:
                idle.put(copy)

        with ThreadPoolExecutor(given.jobs) as pool:
            _tell(pool.map(tried, drawn), given.out)
    return 0


def _tell(results: Iterator[Mutant | None], out: Path | None) -> None:
    counts: Counter[str] = Counter()
    for result in results:
        if result is None:
            print("no time for the others", flush=True)
            break
        counts[result.noticed] += 1
        print(result, flush=True)
        if out:
            _keep(result, out)
    survived = counts.pop("", 0)
    print(f"{counts.total()} noticed {dict(counts)}, {survived} not")


def _keep(result: Mutant, out: Path) -> None:
    """Add a result to a file, in place of an earlier one of the same mutant."""
    others = [one for one in read(out) if one.place != result.place]
    out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (*others, result)))


def read(file: Path) -> list[Mutant]:
    """Return the mutants of a file that ``--out`` wrote; none if there is none yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Mutant(**json.loads(line)) for line in lines]


def page(results: Sequence[Mutant]) -> str:
    """Return the results as a page in Markdown, survivors first."""
    noticed = Counter(result.noticed for result in results)
    survived = noticed.pop("", 0)
    by = ", ".join(f"{count} by {name}" for name, count in noticed.most_common())
    rows = [
        f"| {m.path}:{m.line} | {m.kind} | {_cell(m.change)} | {_cell(m.test or '**none**')} | "
        f"{m.remark} |"
        for m in sorted(results, key=lambda m: (m.noticed != "", m.path, m.line))
    ]
    return "\n".join(
        [
            "# Random mutants of the protocol",
            "",
            f"{len(results)} mutants: {noticed.total()} noticed ({by}), {survived} not. Lines, and",
            "who noticed, are those of the code when it was made; a remark says what was done",
            "about one that survived. Written by `python -m tests.mutants --page`.",
            "",
            "| where | kind | change | noticed by | remark |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
