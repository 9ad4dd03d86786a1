"""Break the product at random, one place at a time, and see whether the unit tests notice.

    python -m tests.mutants [--count 100] [--seed 0] [--packages client/train protocol ...]
                            [--at FILE:LINE] [--jobs 1] [--limit 90] [--within 280]
                            [--out FILE] [--again]

A mutant is a comparison turned round, a branch that is always or never taken, a call or a refusal
that is left out, an "and" in place of an "or", or another operator in a sum. It exists only in the
memory of the processes that run it: no file is changed (``mutant_hook``). The unit tests nearest to
it run first: those that import its module or mirror its folder, and that name what it changes. At
the first failure it is killed. It survives the tests of ``--limit`` processor seconds. A failure
counts only if the same test fails again with the mutant, and passes without it: on a busy machine
some tests take longer than they may.

Not drawn is what no test is to notice: the text of messages, types, assertions, ``__repr__``, and
branches for other systems. Some mutants are no faults all the same (a bound that is never met), so
that not all can be killed.

The same seed draws the same mutants of the same code, and of 40 mutants the first 20 are those of
``--count 20``. With ``--out`` a run goes on where an earlier one stopped (``--within`` seconds are
over, or it was killed); with ``--again`` it tries those of the file that survived once more.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from tests.mutant_hook import sitecustomize

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("client/compute", "client/net", "client/train", "protocol")
UNIT = "tests/unit"
NET = "tests/net"
"""Mirrors ``client/net``, on loopback."""
FAST, SLOW = "not slow and not long", "slow and not long"
BATCHES = (4, 16, 60)
"""Test files that one process runs: few at first, since most mutants are killed by the nearest."""
TEST_LIMIT_S = 20.0
"""Processor seconds. An unmarked test takes a few: one that takes this many never ends."""
WAITS_S = 120.0
"""A test that has not ended after this waits for what never comes."""
MEMORY_BYTES = 6 * 2**30
"""A mutant that fills the memory ends before it harms the machine."""
LOADED = ("hashlib", "libp2p", "msgspec", "nacl.bindings", "numpy", "safetensors", "torch", "trio")
"""What every test process would load anew: they are forked from one that has loaded it."""
IMPORT = re.compile(r"(?m)^ *(?:from|import) ([\w.]+)(?: import (?:\(([^)]*)\)|(.*)))?")
NAME = re.compile(r"\w+")
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
OTHERS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
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
    killed_by: str = ""
    """The test that failed; empty: it survived."""

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What tells it from every other mutant."""
        return self.path, self.kind, self.start, self.before, self.after

    def __str__(self) -> str:
        change = f"{_short(self.before)} -> {_short(self.after)}"
        return f"{self.path}:{self.line} {self.kind}: {change} | {self.killed_by or 'SURVIVED'}"

    def fits(self, root: Path) -> bool:
        """Tell whether its file still has the text that it changes where that was."""
        source = (root / self.path).read_bytes()
        return source[self.start : self.end] == self.before.encode()

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process imports the mutant."""
        change = {name: getattr(self, name) for name in ("start", "end", "before", "after")}
        hook = str(REPOSITORY / "tests" / "mutant_hook")
        return {
            sitecustomize.VARIABLE: json.dumps({"module": module_of(self.path), **change}),
            "PYTHONPATH": os.pathsep.join([hook, str(REPOSITORY)]),
        }


def mutants(root: Path, packages: Iterable[str], seed: int) -> Iterator[Mutant]:
    """Yield every mutant of some packages in an order drawn by the seed, the kinds in turn."""
    dice = random.Random(seed)
    files = sorted(file for package in set(packages) for file in (root / package).rglob("*.py"))
    found = [m for file in files for m in _of_file(root, file)]
    by_kind = [[m for m in found if m.kind == kind] for kind in sorted({m.kind for m in found})]
    for some in by_kind:
        dice.shuffle(some)
    for several in itertools.zip_longest(*by_kind):
        yield from (mutant for mutant in several if mutant)


def _of_file(root: Path, path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node in _tested(ast.parse(source)):
        for part, kind, after in _changes(node):
            assert part.end_lineno is not None
            assert part.end_col_offset is not None
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            name, before = str(path.relative_to(root)), source[start:end].decode()
            yield Mutant(name, part.lineno, kind, before, after, start, end)


def _tested(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, but not what no test on this machine is to notice."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Compare(left=ast.Attribute(attr="platform")):
            return
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.If(test=ast.Name("TYPE_CHECKING")):
            return
        case ast.AnnAssign(value=value):
            yield from _tested(value) if value else ()
            return
        case ast.If(test=ast.Compare(left=ast.Attribute(attr="platform"))):
            here = _holds_here(node.test)
            for part in node.body if here else node.orelse:
                yield from _tested(part)
            return
        case ast.IfExp(test=ast.Compare(left=ast.Attribute(attr="platform"))):
            yield from _tested(node.body if _holds_here(node.test) else node.orelse)
            return
    yield node
    for part in ast.iter_child_nodes(node):
        yield from _tested(part)


def _holds_here(test: ast.expr) -> bool:
    """Tell whether a comparison with ``sys.platform`` holds on this system."""
    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(system)]):
            return sys.platform == system
        case ast.Compare(ops=[ast.NotEq()], comparators=[ast.Constant(system)]):
            return sys.platform != system
    return True


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield what may be changed about a node: which part of it, how, and into what."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            turned = ast.Compare(left, [OPPOSITES[type(operator)]()], right)
            yield node, "comparison", f"({ast.unparse(turned)})"
        case ast.If(test=test) | ast.IfExp(test=test) if not _binds(test):
            yield test, "branch", "True"
            yield test, "branch", "False"
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return
        case ast.Expr(value=ast.Call()):
            yield node, "call", "pass"
        case ast.Raise() | ast.Return(value=ast.Call(func=ast.Name(id="no"))):
            yield node, "refusal", "pass"
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield node, "junction", f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.BinOp(left, operator, right) if type(operator) in OTHERS:
            if not _joins(left) and not _joins(right):
                sum_ = ast.BinOp(left, OTHERS[type(operator)](), right)
                yield node, "arithmetic", f"({ast.unparse(sum_)})"


def _binds(test: ast.expr) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))


def _joins(operand: ast.expr) -> bool:
    """Tell whether an operand is a text or a sequence: another operator would be no program."""
    text = isinstance(operand, ast.Constant) and isinstance(operand.value, str | bytes)
    return text or isinstance(operand, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def module_of(path: str | Path) -> str:
    """Return the name by which a file of the tree is imported."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(root: Path) -> Mapping[str, Collection[str]]:
    """Return which files of the tree import each module: paths below ``root``."""
    tops = ("client", "model_zoo", "protocol", UNIT, NET, "tests/support")
    files = [file.relative_to(root) for top in tops for file in (root / top).rglob("*.py")]
    by: dict[str, set[str]] = {module_of(file): set() for file in files}
    for file in files:
        for module, several, one in IMPORT.findall((root / file).read_text()):
            inner = [f"{module}.{name}" for name in NAME.findall(several or one)]
            for name in by.keys() & {module, *inner}:
                by[name].add(str(file))
    return by


def nearest_tests(root: Path, mutant: Mutant) -> list[str]:
    """Return the unit tests that import a mutant's file, directly or through others, and those of
    the folder that mirrors its own: the most likely to kill it first."""
    by, steps, waiting = imported(root), {mutant.path: 0}, deque([mutant.path])
    while waiting:
        file = waiting.popleft()
        for user in by.get(module_of(file), ()):
            if user not in steps:
                steps[user] = steps[file] + 1
                waiting.append(user)
    home = _mirror(root, mutant.path)
    tests = {file for file in steps if file.startswith((UNIT, NET))}
    tests |= {str(file.relative_to(root)) for file in (root / home).glob("test_*.py")}
    tests = {test for test in tests if Path(test).name.startswith("test_")}
    points = {test: test.startswith(home) + (steps.get(test) == 1) + 0.0 for test in tests}
    for word in {Path(mutant.path).stem, *_words(root, mutant)}:
        those = [test for test in tests if word in _text(root / test)]
        for test in those:
            points[test] += 1 / len(those) + (word in Path(test).stem)
    return sorted(tests, key=lambda test: (-points[test], test))


def _mirror(root: Path, path: str) -> str:
    """Return the folder of tests that mirrors that of a file, or the nearest one above."""
    if path.startswith("client/net/"):
        return NET
    return next(
        home for above in Path(path).parents if (root / (home := f"{UNIT}/{above}")).is_dir()
    )


def _words(root: Path, mutant: Mutant) -> set[str]:
    """Return the names in what a mutant changes, and that of the function it is in."""
    above = (root / mutant.path).read_bytes()[: mutant.start].decode()
    functions = re.findall(r"\bdef _*(\w+)", above)
    return {*functions[-1:], *re.findall(r"[a-zA-Z]\w{3,}", mutant.before)} - {"self"}


@cache
def _text(file: Path) -> str:
    return file.read_text()


def _batches(tests: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield which marks, of which files, one process runs after another."""
    sizes, begin = itertools.chain(BATCHES, itertools.repeat(BATCHES[-1])), 0
    while begin < len(tests):
        batch = tests[begin : begin + next(sizes)]
        yield FAST, batch
        slow = [test for test in batch if "mark.slow" in _text(REPOSITORY / test)]
        if slow and not begin:
            yield SLOW, slow
        begin += len(batch)


class _Reports:
    """A plugin of pytest that reports each test that starts and the first that fails."""

    def __init__(self, to: Connection) -> None:
        self._to = to

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _end_within(TEST_LIMIT_S, WAITS_S)
        self._to.send(("runs", nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._to.send(("failed", report.nodeid))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._to.send(("failed", report.nodeid))


def _end_within(computing_s: float, waiting_s: float) -> None:
    # Without a handler a timer ends the process, whatever its code is caught in.
    signal.setitimer(signal.ITIMER_PROF, computing_s)
    signal.setitimer(signal.ITIMER_REAL, waiting_s)


def _run_tests(environment: dict[str, str], arguments: Sequence[str], to: Connection) -> None:
    """In a process of its own: run some tests, of the mutant if there is one."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(REPOSITORY)
    os.environ.update(environment)
    if environment:
        sitecustomize.install()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    reports = _Reports(to)
    to.send(("runs", arguments[0]))
    _end_within(3 * TEST_LIMIT_S, WAITS_S)
    code = importlib.import_module("pytest").main([*options, *arguments], plugins=[reports])
    _end_within(0, 0)
    to.send(("ended", str(int(code))))


@dataclass
class Trials:
    """Runs tests of mutants, each in a process forked from one that has loaded what they need."""

    limit_s: float = 90.0
    """A mutant survives if so many processor seconds of tests do not kill it."""
    _sound: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(list(LOADED))
        os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded

    def tried(self, mutant: Mutant) -> Mutant:
        """Return a mutant with the test that killed it."""
        left_s = self.limit_s
        for marks, tests in _batches(nearest_tests(REPOSITORY, mutant)):
            unsound: list[str] = []
            while left_s > 0:
                failed, took_s = self._run([*tests, "-m", marks, *unsound], left_s, mutant)
                left_s -= took_s
                if not failed:
                    break
                if self._passes(failed) and self._run([failed], self.limit_s, mutant)[0]:
                    return replace(mutant, killed_by=failed)
                if f"--deselect={failed}" in unsound:
                    raise RuntimeError(f"without a mutant fails {failed}")
                unsound.append(f"--deselect={failed}")
        return mutant

    def _passes(self, test: str) -> bool:
        """Tell whether a test passes without a mutant."""
        if test not in self._sound:
            failed, _ = self._run([test], 3 * TEST_LIMIT_S)
            self._sound[test] = not failed
        return self._sound[test]

    def _run(
        self, arguments: list[str], limit_s: float, mutant: Mutant | None = None
    ) -> tuple[str, float]:
        """Return the first test that fails within so many processor seconds, and those it took;
        empty: none fails."""
        here, there = self._processes.Pipe(duplex=False)
        environment = mutant.environment() if mutant else {}
        process = self._processes.Process(target=_run_tests, args=(environment, arguments, there))
        process.start()
        there.close()
        runs, took_s = "", 0.0
        try:
            while took_s < limit_s:
                took_s = _processor_s(process.pid, took_s)
                if not here.poll(0.5):
                    continue
                said, name = here.recv()
                if said == "failed":
                    return name, took_s
                if said == "ended":
                    if name not in ("0", "5"):
                        raise RuntimeError(f"pytest ended with {name}: {arguments}")
                    break
                runs = name
            return "", took_s
        except EOFError:
            if not runs:
                raise RuntimeError("a process for tests could not start") from None
            return runs, took_s  # It took the process with it, or was ended by a timer.
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()


def _processor_s(pid: int | None, known_s: float) -> float:
    """Return what a process and its children have computed; the known if it has ended."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:4])
    except psutil.Error:
        return known_s


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else words[:57] + "..."


def summary(results: Sequence[Mutant]) -> str:
    """Return how many mutants were killed, of each package and of all."""
    lines = []
    for package in (*PACKAGES, ""):
        some = [mutant for mutant in results if mutant.path.startswith(package)]
        killed = sum(bool(mutant.killed_by) for mutant in some)
        if some:
            share = f"{killed} of {len(some)} killed ({killed / len(some):.0%})"
            lines.append(f"{package or 'all'}: {share}")
    return "\n".join(lines)


def main() -> int:
    """Try some mutants and say which test killed each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--at", default="", help="only those of one line: FILE:LINE")
    parser.add_argument("--limit", type=float, default=90.0, help="processor seconds for a mutant")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds to begin them in")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--again", action="store_true", help="try the survivors of --out again")
    parser.add_argument("--out", type=Path, help="a file to which each mutant is added as JSON")
    given = parser.parse_args()
    known = read(given.out) if given.out else []
    done = {m.place for m in known}
    every = mutants(REPOSITORY, given.packages, given.seed)
    there = (m for m in every if given.at in ("", f"{m.path}:{m.line}"))
    drawn = list(itertools.islice(there, given.count))
    new = [m for m in drawn if m.place not in done]
    if given.again:
        new = [m for m in known if not m.killed_by and m.fits(REPOSITORY)]
    over, trials = time.monotonic() + given.within, Trials(given.limit)

    def tried(mutant: Mutant) -> Mutant | None:
        return trials.tried(mutant) if time.monotonic() < over else None

    with ThreadPoolExecutor(given.jobs) as pool:
        for future in as_completed([pool.submit(tried, mutant) for mutant in new]):
            if (result := future.result()) is None:
                continue
            print(result, flush=True)
            known = [*(one for one in known if one.place != result.place), result]
            if given.out:
                given.out.write_text("".join(json.dumps(asdict(one)) + "\n" for one in known))
    print(summary(known))
    return 0


def read(file: Path) -> list[Mutant]:
    """Return the mutants of a file that ``--out`` wrote; none if there is none yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Mutant(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
