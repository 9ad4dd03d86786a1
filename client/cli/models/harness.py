"""Runs `lm_eval`, in an environment of its own, on a model in the Hugging Face layout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from client.cli.terminal.output import printable
from client.errors import ExitCode, UserError

_PROBE = "import lm_eval, transformers"
_INSTALL = (
    "make an environment for it: python3 -m venv lm-eval && lm-eval/bin/pip install "
    '"lm_eval[hf]", then add --python lm-eval/bin/python'
)


class Score(Struct, frozen=True):
    """One metric of one task."""

    task: str
    metric: str
    value: float
    error: float | None
    """Standard error, if there is one."""


def find_harness(python: Path | None) -> str:
    """Return the interpreter that has `lm_eval`.

    ``python`` is the one that was named; None: this one.

    Raises:
        UserError: it has none, or there is no such program.
    """
    chosen = sys.executable if python is None else str(python.expanduser())
    try:
        done = subprocess.run([chosen, "-c", _PROBE], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"cannot run {chosen}: {error.strerror}", _INSTALL) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise UserError(f"{chosen} has no lm_eval: {why}", _INSTALL, ExitCode.CONFIG)
    return chosen


def command(
    python: str,
    model: Path,
    tasks: Sequence[str],
    out: Path,
    *,
    prefix: int | None = None,
    limit: int | None = None,
    include: Path | None = None,
    device: str = "cpu",
) -> list[str]:
    """Return the command line.

    Args:
        python: has `lm_eval`.
        model: folder of the model.
        tasks: names of tasks, as `lm_eval` has them.
        out: folder for its results.
        prefix: token that a text without a beginning is taken to begin with; None: its own choice.
        limit: examples of each task; None: all.
        include: folder with descriptions of own tasks.
        device: as torch names it.
    """
    arguments = f"pretrained={model},dtype=float32"
    if prefix is not None:
        arguments += f",prefix_token_id={prefix}"
    line = [python, "-m", "lm_eval", "--model", "hf", "--model_args", arguments]
    line += ["--tasks", ",".join(tasks), "--device", device, "--batch_size", "1"]
    line += ["--output_path", str(out)]
    line += ["--limit", str(limit)] if limit is not None else []
    return line + (["--include_path", str(include)] if include is not None else [])


def run(line: Sequence[str], out: Path) -> list[Score]:
    """Run a command line of `command`; what it prints goes to stderr.

    ``out`` is the folder of its results.

    Raises:
        UserError: it fails; what it printed says why.
    """
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for told in process.stdout or ():
            print(printable(told.rstrip("\n")), file=sys.stderr)
    found = sorted(out.rglob("results_*.json"))
    if process.returncode or not found:
        problem = f"lm_eval failed with exit code {process.returncode}"
        raise UserError(problem, "its last lines above say why; tasks may need the network")
    return list(_scores(json.loads(found[-1].read_bytes())))


def _scores(results: dict[str, dict[str, dict[str, object]]]) -> Iterator[Score]:
    for task, metrics in results.get("results", {}).items():
        for name, value in metrics.items():
            metric, comma, variant = name.partition(",")  # others are counts, such as sample_len
            if not comma or metric.endswith("_stderr") or isinstance(value, bool):
                continue
            if isinstance(value, int | float):
                error = metrics.get(f"{metric}_stderr,{variant}")
                known = float(error) if isinstance(error, int | float) else None
                yield Score(task, metric, float(value), known)
