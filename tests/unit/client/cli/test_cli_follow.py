"""Commands that go on: each line comes when it is there, and the end of the node ends them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.events import LogLine
from client.store.paths import home_folders
from tests.support.cli_process import living
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of

RUN = """
import sys
from client.cli.main import run
print("up", flush=True)
run(sys.argv[1:])
"""


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_log_is_followed_through_a_change_of_the_file(home: Path) -> None:
    log = LogFile(home_folders(home).logs, max_bytes=400)
    log.write(as_json(LogLine(words="first"), time.time()))
    with living(RUN, "logs", "-f", "--json") as process:
        assert json.loads(line_of(process))["words"] == "first"
        for number in range(8):
            log.write(as_json(LogLine(words=f"line {number}"), time.time()))
            assert json.loads(line_of(process))["words"] == f"line {number}"
    log.close()


def test_watching_plainly_prints_a_line_per_change(home: Path) -> None:
    with node_of(home, FakeProvider()), living(RUN, "status", "--watch", "--plain") as process:
        assert line_of(process).startswith("step 3/10")
