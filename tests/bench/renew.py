"""What ``make figures`` measures: what readers ask for, in less than an hour on two cores.

A part runs a command of this repository, as anybody could, and makes rows of what it prints. A part
that fails is reported and leaves its old rows, which name their own code.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.figures import REPOSITORY, Figure, figure

VOLUNTEER = (str(Path(sys.executable).with_name("volunteer")),)
PYTHON = (sys.executable, "-m")
LIMIT_S = 1200
OTHERS = ("petals-0.95", "petals-dual", "swarm-60")
"""Policies of published systems."""
Rows = list[Figure]


class Failed(Exception):
    """A command did not end well; the message says how."""


@dataclass(frozen=True)
class Part:
    """A table of the page, and what measures it.

    Fields:
        measure: returns the rows.
        minutes: that it takes, about.
        root: whether it needs to be root.
    """

    table: str
    measure: Callable[[], Rows]
    minutes: float
    root: bool = False


def run(*command: str, ok: Sequence[int] = (0,)) -> str:
    """Return what a command prints.

    Raises:
        Failed: it ends with another code than those that are ``ok``.
    """
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{_shown(command)} took more than {LIMIT_S} s") from error
    if done.returncode not in ok:
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise Failed(f"{_shown(command)} ended with {done.returncode}: {last}")
    return done.stdout


def _shown(command: Sequence[str]) -> str:
    """Return a command as the page shows it."""
    words = " ".join(command)
    return words.replace(VOLUNTEER[0], "volunteer").replace(sys.executable, "python")


# --- the parts -------------------------------------------------------------------------------


def speed() -> Rows:
    """Ours beside one process and PyTorch's 1F1B, in turns."""
    from tests.bench.rivals.report import ratios, read

    with tempfile.TemporaryDirectory() as folder:
        run(*PYTHON, "tests.bench.rivals", "--out", folder)
        found = list(ratios(read(Path(folder) / "rivals.jsonl")))
    names = {
        "one process": "two volunteers of one thread each, against one process of two threads",
        "1F1B": "the same, against PyTorch's 1F1B over gloo, two processes of one thread each",
    }
    return [
        figure(
            "speed of training",
            f"tokens/s: {names[one.rival]}",
            f"**{one.middle:.2f} x**",
            f"{one.least:.2f} to {one.most:.2f}, {one.rounds} rounds",
            "make bench",
        )
        for one in found
    ]


def codec() -> Rows:
    """S8 against a copy of the same numbers."""
    command = (*VOLUNTEER, "bench")
    found = [json.loads(run(*command)) for _ in range(7)]
    rows = []
    for way in ("encode", "decode"):
        ratios = [one["codecs"]["s8"][f"{way}_of_copy"] for one in found]
        rows.append(
            figure(
                "codec",
                f"S8 {way}, 1 thread, against a copy of the same 16 MiB",
                f"**{statistics.median(ratios):.2f} x**",
                f"{min(ratios):.2f} to {max(ratios):.2f}, 7 times",
                _shown(command),
            )
        )
    return rows


def exactness() -> Rows:
    """A simulated swarm of real executors beside one process: the losses."""
    from tests.support.tensor_swarms import Lab, largest_difference, plan_for, train, write_text

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), write_text(Path(folder)))
        for wire in ("fp32", "s8"):
            apart = []
            for model in ("gpt", "llama"):
                plan = plan_for(model, 2, 20)
                expected = lab.reference(plan, wire)
                for seed in (0, 1):
                    losses = train(lab.world(plan, 2, seed=seed, boundary=wire))
                    apart.append(largest_difference(losses, expected))
            rows.append(
                figure(
                    "exactness",
                    f"a 2 x 2 swarm equals one process, {wire} between stages: largest relative "
                    "difference of the loss over 20 steps",
                    f"**{max(apart):.0e}**",
                    f"GPT and Llama, two seeds each: {min(apart):.0e} to {max(apart):.0e}",
                    "pytest tests/sim/test_sim_exactness.py",
                )
            )
    return rows


def learning() -> Rows:
    """Local rounds beside exact steps, with the same tokens."""
    from tests.bench.learning import against, read

    given = ("--steps", "1536", "--optimizer", "muon", "adamw")
    local = ("--method", "local", "--steps", "1536", "--replicas", "4", "8")
    with tempfile.TemporaryDirectory() as folder:
        for words in ((*given, "--method", "exact"), local):
            run(*PYTHON, "tests.bench.learning", *words, "--out", folder)
        results = read(Path(folder) / "learning.jsonl")
    return [
        figure(
            "learning",
            f"held-out loss after 1.6M tokens: {result.run.name}",
            f"**{result.held_out:.4f}**",
            f"{against(result, results):+.1%} against exact Muon, one seed",
            _shown((*PYTHON, "tests.bench.learning", *given)),
        )
        for result in results
    ]


def boundaries() -> Rows:
    """Narrow boundaries and coarse ones beside S8, with the same tokens."""
    command = (*PYTHON, "tests.bench.boundaries", "--steps", "300", "--seeds", "2")
    found = json.loads(run(*command, "--json"))
    (usual,) = (cell for cell in found if cell["kind"] == "S8")
    return [
        figure(
            "boundaries",
            f"{cell['kind']}: {cell['bytes_per_token']:.2f} bytes a token and direction, held-out "
            "loss",
            f"**{statistics.mean(cell['losses']):.4f}**",
            _beside(cell["losses"], usual["losses"]),
            _shown(command),
        )
        for cell in found
    ]


def _beside(losses: Sequence[float], usual: Sequence[float]) -> str:
    apart = [one / other - 1 for one, other in zip(losses, usual, strict=True)]
    return f"{min(apart):+.1%} to {max(apart):+.1%} against S8, {len(apart)} seeds"


def matching() -> Rows:
    """Ours and the other decentralised policies, in one world a seed."""
    given = ["simulate", "--volunteers", "50", "--stages", "8", "--churn", "20", "--hours", "1"]
    for policy in ("ours", "value-join", "value-join-dual", *OTHERS):
        given += ["--policy", policy]
    shares: dict[str, list[float]] = {}
    with ThreadPoolExecutor(2) as at_once:
        answers = at_once.map(
            lambda seed: run(*VOLUNTEER, *given, "--json", "--seed", str(seed)), range(3)
        )
        for answer in answers:
            for found in json.loads(answer)["policies"]:
                shares.setdefault(found["policy"], []).append(found["share"])
    return [
        figure(
            "simulated matching",
            f"50 machines, 8 stages, 20 % churn an hour: throughput with {policy}, as a share of "
            "the best placement",
            f"{statistics.mean(found):.3f}",
            f"{min(found):.2f} to {max(found):.2f}, {len(found)} seeds, 1 h",
            f"{_shown((*VOLUNTEER, *given))} --seed 0, 1, 2",
        )
        for policy, found in sorted(shares.items(), key=lambda item: -statistics.mean(item[1]))
    ]


def faults() -> Rows:
    """Kills, hangs, splits and slow lines on six real volunteers, beside a run without."""
    given = ("chaos", "--minutes", "5", "--every", "12")
    with tempfile.TemporaryDirectory() as folder:
        run(*VOLUNTEER, *given, "--out", f"{folder}/chaos", ok=(0, 1))
        report: dict[str, Any] = json.loads(Path(f"{folder}/chaos/chaos.json").read_text())
    done = [fault for fault in report["faults"] if fault["at_s"] is not None]
    times: dict[str, list[float]] = {}
    for fault in done:
        if fault["rto_s"] is not None:
            times.setdefault(fault["fault"].partition("@")[0], []).append(fault["rto_s"])
    command = _shown((*VOLUNTEER, *given))
    lost = (report["steps_missing"], report["microbatches_doubled"], report["steps_differing"])
    rows = [
        figure(
            "faults of five minutes",
            f"{len(done)} faults on six volunteers, 2 x 3: steps lost, microbatches counted twice, "
            "steps that replicas applied differently",
            f"**{', '.join(map(str, lost))}**",
            f"{report['steps_attested']} closed steps accounted for",
            command,
        )
    ]
    rows += [
        figure(
            "faults of five minutes",
            f"work goes on after: {kind}",
            f"**{statistics.median(found):.2f} s**",
            f"median of {len(found)}; worst {max(found):.2f} s",
            command,
        )
        for kind, found in sorted(times.items())
    ]
    if report["goodput"] is not None:
        rows.append(
            figure(
                "faults of five minutes",
                "tokens, of the run without faults",
                f"**{100 * report['goodput']:.1f} %**",
                f"volunteers were away for {100 * report['missing_share']:.1f} % of their time",
                command,
            )
        )
    return rows


def seeds() -> Rows:
    """Simulated swarms with faults, and with a liar."""
    rows = []
    for words, given in (
        ("200 faults each", ("--count", "250")),
        ("200 faults and a liar each", ("--count", "60", "--liar")),
    ):
        command = (*PYTHON, "client.lab.simulate.chaos", "--seed", "0", *given)
        said = run(*command, ok=(0, 1))
        found = re.search(r"^(\d+) seeds, (\d+) faults.*seeds that failed: (\[.*?\])", said, re.M)
        if found is None:
            raise Failed(f"{_shown(command)} printed no summary")
        failed = json.loads(found[3])
        rows.append(
            figure(
                "simulated faults",
                f"{found[1]} swarms with {words}: swarms that break an invariant or stand still",
                f"**{len(failed)}**",
                f"{int(found[2]):,} faults" + (f"; seeds {failed}" if failed else ""),
                _shown(command),
            )
        )
    return rows


def demo() -> Rows:
    """Four volunteers, one killed."""
    with tempfile.TemporaryDirectory() as folder:
        report = json.loads(run(*VOLUNTEER, "demo", "--json", "--out", f"{folder}/demo"))
    held = report["invariants"]
    return [
        figure(
            "demo",
            "four volunteers train, one is killed: from SIGKILL to the first gradient by another "
            "way; counted twice; replicas that differ",
            f"**{report['recovered_s']:.2f} s**; {held['doubled_microbatches']}; "
            f"{held['differing_replicas']} of {held['compared_replicas']}",
            f"{report['seconds']:.0f} s in all, {report['median_tokens_per_s']:.0f} tokens/s",
            "make demo",
        )
    ]


def client() -> Rows:
    """How soon commands answer."""
    rows = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["VOLUNTEER_HOME"] = home
        for given in (("--help",), ("status",)):
            taken = []
            for _ in range(7):
                begun = time.monotonic()
                run(*VOLUNTEER, *given, ok=range(256))
                taken.append(time.monotonic() - begun)
            rows.append(
                figure(
                    "client",
                    _shown((*VOLUNTEER, *given)),
                    f"**{statistics.median(taken):.2f} s**",
                    f"{min(taken):.2f} to {max(taken):.2f} s, 7 times",
                    _shown((*VOLUNTEER, *given)),
                )
            )
    return rows


def home_lines() -> Rows:
    """Four and eight volunteers on home lines, beside one alone; one of each stage is killed."""
    command = (*PYTHON, "tests.bench.homelines")
    rows = []
    for line in run(*command, "--json").splitlines():
        one = json.loads(line)
        shape = f"{one['stages']} x {one['replicas']}"
        rounds = f"{len(one['round_s'])} rounds of {min(one['round_s'])} to {max(one['round_s'])} s"
        faults = (one["doubled"], one["lost"], one["differing"])
        cells = (
            (
                f"{shape}: tokens/s as a share of as many volunteers alone",
                f"**{one['share']:.2f}**; {one['predicted']:.2f} by `plan`",
                f"{rounds}; workers busy {one['busy']:.0%} of the time",
            ),
            (
                f"{shape}, a volunteer of each stage killed: microbatches counted twice, steps "
                "lost, steps that replicas applied differently",
                f"**{', '.join(map(str, faults))}**",
                f"they serve again after {one['returned_s']:.0f} s",
            ),
        )
        rows += [figure("home lines", *cell, _shown(command)) for cell in cells]
    return rows


PARTS = {
    "speed": Part("speed of training", speed, 10),
    "exactness": Part("exactness", exactness, 2),
    "learning": Part("learning", learning, 8),
    "boundaries": Part("boundaries", boundaries, 8),
    "faults": Part("faults of five minutes", faults, 12),
    "seeds": Part("simulated faults", seeds, 5),
    "demo": Part("demo", demo, 3),
    "matching": Part("simulated matching", matching, 8),
    "codec": Part("codec", codec, 2),
    "homelines": Part("home lines", home_lines, 16, root=True),
    "client": Part("client", client, 0.2),
}
