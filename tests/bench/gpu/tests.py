"""The unit tests of the compute worker, on the device."""

import argparse
import os
import signal
import subprocess
import sys
import threading

from tests.bench.gpu.running import Found, cores

COMPUTE = "tests/unit/client/compute"
OF_A_REHEARSAL = f"{COMPUTE}/test_compute_threads.py"
MOST_PROCESSES = 8
SUMMARY_S = 8.0
"""Before the end pytest is interrupted, and says what has failed until then."""


def tests(asked: argparse.Namespace) -> Found:
    """Run those that neither are slow nor long, in several processes."""
    chosen = ["-m", "not slow and not long", OF_A_REHEARSAL if asked.small else COMPUTE]
    several = ["-p", "tests.support.cores", "--cores", str(min(MOST_PROCESSES, cores()))]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    # Who asks whether there is a card must not open it before the processes are forked.
    how = {"TEST_DEVICE": asked.device, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    process = subprocess.Popen(
        [*command, *several, *chosen],
        env={**os.environ, **how},
        stdout=subprocess.PIPE,
        text=True,
    )
    stopping = threading.Timer(
        max(1.0, asked.deadline - SUMMARY_S), process.send_signal, [signal.SIGINT]
    )
    stopping.daemon = True
    stopping.start()
    said, _ = process.communicate()
    stopping.cancel()
    lines = said.splitlines() or [""]
    failed = [line[:250] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"in all": lines[-1], "not passed": failed}
