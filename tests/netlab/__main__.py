"""A network laboratory from a table, for a command or to see whether it holds what it says.

    python -m tests.netlab --table FILE --check
    python -m tests.netlab --table FILE [--on HOST] -- COMMAND...

A command runs on every host at once, or on those named, with NETLAB_HOST and NETLAB_ADDRESS in its
environment and NETLAB_ADDRESSES saying all of them ("a=10.77.1.2 b=10.77.2.2"). Ends with the
largest of their exit codes. The table is described in ``tests/netlab/table.py``. Takes root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from client.errors import ExitCode, UserError
from client.lab.local_swarm import terminate_as_interrupt
from tests.netlab.check import check
from tests.netlab.lab import Lab
from tests.netlab.table import read_table

END_S = 10.0


def run_on(lab: Lab, hosts: Sequence[str], command: Sequence[str]) -> int:
    """Run a command on hosts until all have ended; none outlives an interrupt."""
    everybody = " ".join(f"{host}={lab.address(host)}" for host in lab.hosts)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for host in hosts:
            said = {"NETLAB_HOST": host, "NETLAB_ADDRESS": lab.address(host)}
            variables = {**os.environ, **said, "NETLAB_ADDRESSES": everybody}
            running.append(subprocess.Popen(lab.command(host, command), env=variables))
        codes = [process.wait() for process in running]
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        raise
    return max(code if code >= 0 else 128 - code for code in codes)


def main(arguments: Sequence[str]) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        "netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, required=True, help="hosts and links, TOML")
    parser.add_argument("--check", action="store_true", help="measure what the table promises")
    parser.add_argument("--on", action="append", metavar="HOST", help="only on this host")
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.check == bool(asked.command):
        parser.error("give either --check or a command")
    table = read_table(asked.table)
    if unknown := set(asked.on or ()) - set(table.hosts):
        parser.error(f"the table has no host {', '.join(sorted(unknown))}")
    with Lab(table) as lab:
        if asked.check:
            return int(not all(finding.good for finding in check(lab, print)))
        return run_on(lab, asked.on or lab.hosts, asked.command)


if __name__ == "__main__":
    try:
        with terminate_as_interrupt():
            code = main(sys.argv[1:])
    except UserError as error:
        print(f"netlab: {error.message}", file=sys.stderr)
        code = int(error.exit_code)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    sys.exit(code)
