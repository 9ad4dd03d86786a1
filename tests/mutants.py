"""Break the product at random, one place at a time, and see whether the unit tests notice.

    python -m tests.mutants [--count 100] [--seed 0] [--within FOLDER_OR_FILE ...] [--limit 20]
                            [--jobs 1] [--out FILE] [--again]

A mutant is a comparison turned round, a branch that is always or never taken, a call or a refusal
that is left out, an "and" in place of an "or", or another operator in a sum. No file is changed:
one process collects the tests, and each mutant runs in a fork of it, in which the functions of its
file get other code. First each test runs once without a mutant: one that fails is said and left
out. Then those run that call the function with the mutant, the quickest first, until they would
take ``--limit`` seconds. The first that fails kills it, if it fails again and passes without.

Not drawn is what no test is to notice: the text of messages, types, assertions, ``__repr__``, what
depends on the system, methods that subclasses implement. Neither is what runs at import, which is
over when a fork begins, nor ``client/lab``. The tests are those that mirror the folders and are
marked neither ``slow`` nor ``long``. A program that a test starts has no mutant in it: what only
runs there counts as not reached. Some mutants are no faults all the same (a bound that is never
met).

The same seed draws the same mutants of the same code, and of 40 mutants the first 20 are those of
``--count 20``. With ``--out`` a run goes on where an earlier one was stopped; with ``--again`` it
tries those that survived once more. What each test calls lies beside that file: it is measured
anew for tests whose file has changed.
"""

import argparse
import ast
import gc
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import _lru_cache_wrapper
from itertools import accumulate, groupby, islice, zip_longest
from pathlib import Path
from textwrap import shorten
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

import pytest

REPOSITORY = Path(__file__).parents[1]
PRODUCT = ("client", "model_zoo", "protocol")
FILES = tuple(f"{REPOSITORY / part}/" for part in PRODUCT)
LAB = "client/lab"
UNIT = "tests/unit"
ELSEWHERE = {"client/net": "tests/net", "client/ui": "tests/ui"}
"""What is not mirrored in ``UNIT``."""
TEST_LIMIT_S = 20.0
"""Processor seconds. An unmarked test takes a few: one that takes this many never ends."""
WAITS_S = 60.0
"""A test that has not ended after this waits for what never comes."""
MEMORY_BYTES = 6 * 2**30
"""A mutant that fills the memory ends before it harms the machine."""
Line = TypeVar("Line")
Say = Callable[[object], object]
PAIRS = (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)
TURNED = dict([*PAIRS, *((b, a) for a, b in PAIRS), (ast.In, ast.NotIn), (ast.NotIn, ast.In)])
OTHERS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one function, and what came of it."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    """Position of ``before`` in the file, in bytes ..."""
    end: int
    """... and where it ends."""
    function: str
    """What it changes, as ``PATH:QUALIFIED_NAME``."""
    killed_by: str = ""
    """The test that failed; empty: it survived."""
    tests: int = 0
    """How many tests ran in vain, if it survived: none reaches it if 0."""

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What tells it from every other mutant."""
        return self.path, self.kind, self.start, self.before, self.after

    def __str__(self) -> str:
        came = self.killed_by or (f"SURVIVED {self.tests}" if self.tests else "NOT REACHED")
        change = f"{shorten(self.before, 60)} -> {shorten(self.after, 60)}"
        return f"{self.path}:{self.line} {self.kind}: {change} | {came}"

    def source(self, root: Path) -> bytes:
        """Return its file with the change; each function begins in the same line as without."""
        sound = (root / self.path).read_bytes()
        return sound[: self.start] + self.after.encode() + sound[self.end :]


def mutants(root: Path, within: Iterable[str], seed: int) -> Iterator[Mutant]:
    """Yield every mutant of some folders and files in an order drawn by the seed, the kinds in
    turn."""
    dice = random.Random(seed)
    files = {file for name in within for file in ((root / name), *(root / name).rglob("*.py"))}
    drawn = [file for file in sorted(files) if file.is_file() and root / LAB not in file.parents]
    found = [mutant for file in drawn for mutant in _of_file(root, file)]
    by_kind = [[m for m in found if m.kind == kind] for kind in sorted({m.kind for m in found})]
    for some in by_kind:
        dice.shuffle(some)
    for several in zip_longest(*by_kind):
        yield from (mutant for mutant in several if mutant)


def _of_file(root: Path, path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node, function in _tested(ast.parse(source)):
        for part, kind, after in _changes(node) if function else ():
            assert part.end_lineno is not None
            assert part.end_col_offset is not None
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            name, before = str(path.relative_to(root)), source[start:end].decode()
            lines = "\n" * (before.count("\n") - after.count("\n"))
            after = after + lines if isinstance(part, ast.stmt) else f"{after[:-1]}{lines})"
            yield Mutant(name, part.lineno, kind, before, after, start, end, f"{name}:{function}")


def _tested(node: ast.AST, prefix: str = "", function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield a node and those below it, each with the function that it is in (empty: it runs at
    import), but not what no test on this machine is to notice."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Compare(left=ast.Attribute(attr="platform")):
            return
        case ast.If(test=test) | ast.IfExp(test=test) if "sys.platform" in ast.unparse(test):
            return
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return
        case ast.AnnAssign(value=value):
            yield from _tested(value, prefix, function) if value else ()
            return
    yield node, function
    inner = prefix, function
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            inner = f"{prefix}{name}.<locals>.", f"{prefix}{name}"
        case ast.ClassDef(name=name):
            inner = f"{prefix}{name}.", function
    for part in ast.iter_child_nodes(node):
        yield from _tested(part, *(inner if isinstance(part, ast.stmt) else (prefix, function)))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield what may be changed about a node: which part of it, how, and into what.

    The names stay, so that a closure of the changed function fits a closure of the sound one.
    """
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            turned = ast.Compare(left, [TURNED[type(operator)]()], right)
            yield node, "comparison", f"({ast.unparse(turned)})"
        case ast.If(test=test) | ast.IfExp(test=test) if not _binds(test):
            yield test, "branch", f"(True or ({ast.unparse(test)}))"
            yield test, "branch", f"(False and ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return
        case ast.Expr(value=ast.Call()):
            yield node, "call", f"if False: {ast.unparse(node)}"
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return
        case ast.Raise() | ast.Return(value=ast.Call(func=ast.Name(id="no"))):
            yield node, "refusal", f"if False: {ast.unparse(node)}"
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


def mirror(path: str) -> list[str]:
    """Return the folders of the tests that mirror a folder of the product or that of a file."""
    inner = [tests for part, tests in ELSEWHERE.items() if part.startswith(f"{path}/")]
    for above in (Path(path), *Path(path).parents):
        if str(above) in ELSEWHERE:
            return [ELSEWHERE[str(above)]]
        if (REPOSITORY / UNIT / above).is_dir():
            return [f"{UNIT}/{above}", *inner]
    raise ValueError(path)


@dataclass(frozen=True)
class Ran:
    """What came of a test that ran without a mutant."""

    test: str
    changed: int
    """When its file was, in nanoseconds."""
    passed: bool = False
    took_s: float = 0.0
    called: Collection[str] = ()
    """Functions of the product, as ``PATH:QUALIFIED_NAME``."""


@dataclass(eq=False)
class Trials:
    """A plugin of pytest that tries mutants, each in forks of this process, which has collected the
    tests."""

    mutants: Sequence[Mutant]
    out: Path
    limit_s: float
    jobs: int

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Do so in place of running the tests."""
        if session.testsfailed:
            return None  # pytest says why
        for path in {mutant.path for mutant in self.mutants}:  # some load theirs only when needed
            name = ".".join(Path(path).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
        self._items = {item.nodeid: item for item in session.items}
        self._functions: dict[str, list[FunctionType]] = {}
        self._caches: list[Any] = []
        warnings.simplefilter("ignore")  # of forks of a process with threads
        gc.unfreeze()
        for one in gc.get_objects():
            if type(one) is FunctionType and _is_ours(one.__code__):
                self._functions.setdefault(one.__code__.co_filename, []).append(one)
            elif type(one) is _lru_cache_wrapper and str(one.__module__).startswith(PRODUCT):
                self._caches.append(one)
        gc.freeze()
        self._measure(self.out.with_name(f"{self.out.name}.calls"))
        _side_by_side(self.jobs, self.mutants, self._try)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test of this process has failed."""
        self._failed |= report.failed

    def _measure(self, file: Path) -> None:
        """Run each test without a mutant, unless a file tells what came of it."""
        changed = {test: item.path.stat().st_mtime_ns for test, item in self._items.items()}
        functions = {mutant.function for mutant in self.mutants}

        def known() -> dict[str, Ran]:
            return {
                ran.test: replace(ran, called=functions.intersection(ran.called))
                for ran in _read(file, Ran)
                if ran.changed == changed.get(ran.test)
            }

        def measure(tests: Sequence[str]) -> None:
            def run(say: Say) -> None:
                for test in tests:
                    ran = Ran(test, changed[test])
                    say(asdict(ran))  # what stands if it takes this process with it
                    began_s = time.perf_counter()
                    with _calls() as called:
                        passed = self._passes(test)
                    took_s = time.perf_counter() - began_s
                    say(asdict(replace(ran, passed=passed, took_s=took_s, called=sorted(called))))

            while tests:
                said = {one["test"]: one for one in _forked(run)}
                _append(file, *said.values())
                tests = [test for test in tests if test not in said]

        self._ran = known()
        left = (test for test in self._items if test not in self._ran)
        files = [list(tests) for _, tests in groupby(left, lambda test: self._items[test].path)]
        _side_by_side(self.jobs, files, measure)
        self._ran = known()
        for test in self._ran:
            if not self._ran[test].passed:
                print(f"fails without a mutant, and is left out: {test}", flush=True)

    def _try(self, mutant: Mutant) -> None:
        those = [ran for ran in self._ran.values() if ran.passed and mutant.function in ran.called]
        those.sort(key=lambda ran: ran.took_s)
        until_s = accumulate(ran.took_s for ran in those)
        tests = [ran.test for ran, s in zip(those, until_s, strict=True) if s < self.limit_s]
        result, left = replace(mutant, tests=len(tests)), tests
        while not result.killed_by and (failed := self._first_to_fail(left, mutant)):
            if not self._first_to_fail([failed]) and self._first_to_fail([failed], mutant):
                result = replace(mutant, killed_by=failed)
            left = left[left.index(failed) + 1 :]
        print(f"{result}\n", end="", flush=True)  # in one piece
        _append(self.out, asdict(result))

    def _first_to_fail(self, tests: Sequence[str], mutant: Mutant | None = None) -> str:
        """Return the first of some tests that fails, or takes its process with it; or none."""

        def run(say: Say) -> None:
            if mutant:
                self._change(mutant)
            for test in tests:
                say(test)
                if not self._passes(test):
                    return
            say("")

        return str(_forked(run)[-1])

    def _passes(self, test: str) -> bool:
        # Without a handler a timer ends the process, whatever its code is caught in.
        signal.setitimer(signal.ITIMER_PROF, TEST_LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, WAITS_S)
        self._failed = False
        for cache in self._caches:
            cache.cache_clear()  # else no test calls what was computed before
        item = self._items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed

    def _change(self, mutant: Mutant) -> None:
        file = str(REPOSITORY / mutant.path)
        changed = compile(mutant.source(REPOSITORY), file, "exec", dont_inherit=True)
        codes = {(code.co_firstlineno, code.co_qualname): code for code in _codes(changed)}
        for function in self._functions.get(file, ()):
            sound = function.__code__
            if sound.co_name != "<lambda>":  # several may begin in one line
                function.__code__ = codes[sound.co_firstlineno, sound.co_qualname]


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(FILES)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


@contextmanager
def _calls() -> Iterator[set[str]]:
    """Note which functions of the product are called."""
    codes: set[tuple[str, str]] = set()
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if _is_ours(code):
            codes.add((code.co_filename, code.co_qualname))

    sys.settrace(note)
    threading.settrace(note)
    try:
        yield called
    finally:
        sys.settrace(None)
        threading.settrace(None)
        called |= {f"{Path(file).relative_to(REPOSITORY)}:{name}" for file, name in codes}


def _forked(do: Callable[[Say], None]) -> list[Any]:
    """Do something in a process of its own; return what it said before it ended."""
    with tempfile.TemporaryFile() as said:
        if not (pid := os.fork()):
            with _last_words():
                os.setsid()
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                nowhere = os.open(os.devnull, os.O_RDWR)
                for stream in range(3):
                    os.dup2(nowhere, stream)
                do(lambda word: os.write(said.fileno(), json.dumps(word).encode() + b"\n"))
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # with the processes that it started
            os.waitpid(pid, 0)
        said.seek(0)
        words = [json.loads(line) for line in said]
    if not words:
        raise RuntimeError("a process for tests could not start")
    return words


def _side_by_side(jobs: int, tasks: Sequence[Any], do: Callable[[Any], None]) -> None:
    """Do several tasks in some processes, and end with the last."""
    pids = []
    for first in range(jobs):
        if not (pid := os.fork()):
            with _last_words():
                for task in tasks[first::jobs]:
                    do(task)
        pids.append(pid)
    if sum(os.waitpid(pid, 0)[1] for pid in pids):
        raise RuntimeError("not all could be tried")


@contextmanager
def _last_words() -> Iterator[None]:
    """End this process with the block, which is that of a fork."""
    errors = os.fdopen(os.dup(2), "w")
    try:
        yield
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=errors)
        errors.flush()
    finally:
        os._exit(1)


def _append(file: Path, *several: object) -> None:
    with file.open("ab", buffering=0) as lines:  # in one piece, should it be stopped
        lines.write("".join(json.dumps(one) + "\n" for one in several).encode())


def _read(file: Path, kind: type[Line]) -> Iterator[Line]:
    with open(file if file.exists() else os.devnull) as lines:
        yield from (kind(**json.loads(line)) for line in lines)


def summary(results: Iterable[Mutant]) -> str:
    """Return how many mutants were killed, of each package and of all."""
    by: dict[str, list[Mutant]] = {}
    for mutant in results:
        names = mutant.path.split("/")
        for package in ("all", "/".join(names[: 2 if names[0] == "client" else 1])):
            by.setdefault(package, []).append(mutant)
    lines = []
    for package, some in sorted(by.items()):
        killed = sum(bool(mutant.killed_by) for mutant in some)
        missed = sum(not (mutant.killed_by or mutant.tests) for mutant in some)
        share = f"{killed} of {len(some)} killed ({killed / len(some):.0%})"
        lines.append(f"{package}: {share}" + f", {missed} not reached" * bool(missed))
    return "\n".join(lines)


def main() -> int:
    """Try some mutants and say which test killed each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", nargs="+", default=PRODUCT, help="folders or files")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of tests for a mutant")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--again", action="store_true", help="and the survivors of --out once more")
    parser.add_argument("--out", type=Path, help="a file to which each mutant is added as JSON")
    given = parser.parse_args()
    known = read(given.out) if given.out else []
    done = {mutant.place for mutant in known if mutant.killed_by or not given.again}
    drawn = islice(mutants(REPOSITORY, given.within, given.seed), given.count)
    new = [mutant for mutant in drawn if mutant.place not in done]
    folders = {tests for name in given.within for tests in mirror(name)}
    whole = sorted(one for one in folders if folders.isdisjoint(map(str, Path(one).parents)))
    arguments = [*whole, "-m", "not slow and not long", "--hypothesis-seed=0"]
    arguments += ["-qqs", "-p", "no:cacheprovider", f"--ignore={UNIT}/{LAB}"]
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder) / "mutants"
        plugin = Trials(new, out, given.limit, given.jobs)
        code = int(pytest.main(arguments, plugins=[plugin])) if new else 0
        print(summary(read(out)))
    return code


def read(file: Path) -> list[Mutant]:
    """Return the mutants of a file that ``--out`` wrote; none if there is none yet."""
    return list({mutant.place: mutant for mutant in _read(file, Mutant)}.values())


if __name__ == "__main__":
    sys.exit(main())
