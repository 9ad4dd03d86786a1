"""``-p tests.support.cores --cores N``: one process collects, and N copies of it run the tests.

Collecting all of them takes as long as running thousands; processes that each collect for
themselves, as those of pytest-xdist, spend that N times. A copy runs a module at a time, so that
fixtures of modules are made once, and sends its reports to the process that forked it.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest
from _pytest._io import TerminalWriter

Module = list[pytest.Item]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cores", type=int, default=1, help="run the tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in copies of this process, if there should be several."""
    options = session.config.option
    if options.cores < 2 or options.collectonly or session.testsfailed:
        return None
    modules = [list(tests) for _, tests in groupby(session.items, lambda item: item.path)]
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
    copies = {}
    for _ in range(options.cores):
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            ours.close()
            run_modules(session, modules, theirs)
        theirs.close()
        copies[ours] = pid
    try:
        lead(session, iter(range(len(modules))), set(copies))
    finally:
        for ours in copies:
            ours.close()  # which ends those that still wait or report
        for pid in copies.values():
            os.waitpid(pid, 0)
    return True


def lead(session: pytest.Session, numbers: Iterator[int], copies: set[Connection]) -> None:
    """Give each copy the next module when it is done with the last one; tell what they report."""
    hook, last = session.config.hook, dict.fromkeys(copies, "it was forked")
    while copies:
        for copy in wait(list(copies)):
            assert isinstance(copy, Connection)
            try:
                said = copy.recv()
            except (EOFError, ConnectionError):
                session.shouldfail = f"a process died after {last[copy]}"
                said = {}
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if said is None:
                number = next(numbers, None)
                copy.send(number)
                copies -= {copy} if number is None else set()
                continue
            report = hook.pytest_report_from_serializable(config=session.config, data=said)
            hook.pytest_runtest_logreport(report=report)
            last[copy] = report.nodeid
            if report.when == "teardown":
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


class Plain:
    """Stands for the reporter where an assertion asks how it is to be coloured."""

    def __init__(self) -> None:
        self._tw = TerminalWriter(StringIO())


class Reporter:
    """Sends the reports of a copy."""

    def __init__(self, config: pytest.Config, lead: Connection) -> None:
        self._config, self._lead = config, lead

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        to_data = self._config.hook.pytest_report_to_serializable
        self._lead.send(to_data(config=self._config, report=report))


def run_modules(session: pytest.Session, modules: Sequence[Module], lead: Connection) -> None:
    """Run one module after the other, as they are given; the copy ends with it."""
    plugins, hook = session.config.pluginmanager, session.config.hook
    capture = plugins.getplugin("capturemanager")
    try:
        capture.stop_global_capturing()  # it writes to files of the process that forked this one
        capture.start_global_capturing()
        plugins.unregister(name="terminalreporter")
        plugins.register(Plain(), "terminalreporter")
        plugins.register(Reporter(session.config, lead))
        lead.send(None)
        while (number := lead.recv()) is not None:
            module = modules[number]
            for item, following in zip(module, [*module[1:], None], strict=True):
                hook.pytest_runtest_protocol(item=item, nextitem=following)
            lead.send(None)
    except (EOFError, ConnectionError):
        pass  # the run was stopped
    except BaseException:
        capture.suspend_global_capture(in_=True)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
