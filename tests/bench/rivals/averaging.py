"""Averaging among peers on this machine: our rounds beside hivemind's DecentralizedAverager.

On loopback, and each on a host with a line of its own (``tests.netlab``; takes root).

As many fp32 numbers at both, each peer a process of its own with one thread. A round counts from
the moment at which the group stands (our plan has come; hivemind's matchmaking is over) until the
last peer has the result in memory. ``ours`` leaves out what follows an averaging, ``ours and the
optimizer`` is a whole round: AdamW and the hash of the new state too.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.store.identity import ensure_identity
from client.store.paths import make_private
from model_zoo.specs.model import ModelSpec
from protocol.manifest import Manifest
from tests.bench.rivals import environment
from tests.bench.rivals.attempts import attempt
from tests.bench.rivals.hosts import Hosts, hosts
from tests.bench.rivals.records import Record, Records, load
from tests.bench.rivals.swarm_of_peers import ONE_THREAD, PeerFailed, Talker, cpu_s, talking
from tests.netlab import ground

PART = "averaging"
OURS, WHOLE = "ours", "ours and the optimizer"
EQUAL = "ours with equal shards"
HIVEMIND = {
    "hivemind": "none",
    "hivemind fp16": "fp16",
    "hivemind uniform 8 bit": "uniform8",
}
MAX_ERROR = {"none": 1e-3, "fp16": 1e-3, "uniform8": 0.2}
"""Far above what a codec loses: a round of a larger error did not average."""
WIDTHS = {"1M": 268, "10M": 892, "50M": 2020}
"""Width of a one-layer GPT of about so many parameters."""
TURNS = 3
"""Rounds of a launch that count; one before them warms up."""
START_S, ROUND_S = 240.0, 180.0
Say = Callable[[str], None]
Turn = tuple[list[float], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """The peers, the sizes and the lines of an averaging."""

    size: str
    contenders: tuple[str, ...] = (OURS, *HIVEMIND, WHOLE)
    peers: int = 4
    mbit: tuple[float, ...] = ()
    """Each peer's uplink; none: loopback. Downlinks are as wide as the widest of them."""
    symmetric: bool = False
    """Each downlink is as wide as the peer's uplink."""

    def __str__(self) -> str:
        among = "" if self.peers == 4 else f" among {self.peers}"
        if not self.mbit:
            return self.size + among
        slow = min(self.mbit)
        line = "line" if self.symmetric else "uplink"
        one = "" if slow == max(self.mbit) else f", one {line} of {slow:g}"
        return f"{self.size}{among} at {max(self.mbit):g} Mb/s{one}"


ENDS = (OURS, "hivemind", "hivemind uniform 8 bit")
"""The contenders in between are left out where they would take long."""
CASES = (
    Case("1M"),
    Case("10M"),
    Case("50M", (*ENDS, WHOLE)),
    Case("1M", ENDS, peers=16),
    Case("1M", ENDS, mbit=(100.0,) * 4),
    Case("10M", ENDS, mbit=(100.0,) * 4),
    Case("50M", ENDS, mbit=(100.0,) * 4),
    Case("10M", (*ENDS, EQUAL), mbit=(100.0, 100.0, 100.0, 20.0)),
    Case("10M", (*ENDS, EQUAL), mbit=(100.0, 100.0, 100.0, 20.0), symmetric=True),
)


def measure(records: Records, rounds: int, say: Say, *, quick: bool = False) -> None:
    """Let the contenders take turns for so many launches of ``TURNS`` rounds each."""
    cases = [case for case in CASES if not case.mbit or not _why_no_lines(records, say)]
    for case, number in itertools.product(cases[:1] if quick else cases, range(rounds)):
        for who in case.contenders:
            if records.has(PART, str(case), who, number):
                continue
            what = f"averaging {case}, launch {number + 1} of {rounds}: {who}"
            say(what)
            turn = attempt(partial(contender, who, case), records, PART, what, say)
            if turn is None:
                continue
            values, more = turn
            records.add(Record(PART, str(case), who, number, values, "s", round(load(), 2), more))
            say(f"  {statistics.median(values):.3f} s a round")


def _why_no_lines(records: Records, say: Say) -> str | None:
    reason = ground.why_not()
    if reason and reason not in records.notes(PART):
        say(f"no lines here: {reason}")
        records.note(PART, reason)
    return reason


def contender(who: str, case: Case, folder: Path) -> Turn:
    """Return the seconds of a launch's rounds, and what else is to be said."""
    if who in HIVEMIND:
        environment.ensure()
    with hosts(case.mbit, symmetric=case.symmetric) as where:
        if who in HIVEMIND:
            return theirs(case, HIVEMIND[who], where, folder)
        lines = () if who == EQUAL else case.mbit
        return ours(case, "full" if who == WHOLE else "bare", lines, where, folder)


def model(size: str) -> ModelChoices:
    """Return the model of this size."""
    return ModelChoices(layers=1, width=WIDTHS[size], heads=4, context=16)


def parameters(size: str) -> int:
    """Return how many numbers are averaged."""
    width = WIDTHS[size]
    return ModelSpec("gpt", 1, width, 4, 4, 4 * width, 16).parameter_count


# --- ours ---------------------------------------------------------------------------------------


def ours(case: Case, kind: str, lines: Sequence[float], where: Hosts, folder: Path) -> Turn:
    """Launch the replicas of a stage and let them close steps; ``lines``: as far as they know."""
    manifest = _manifest(case, folder)
    path, corpus = folder / "manifest.json", folder / "corpus"
    path.write_bytes(msgspec.json.encode(manifest))
    corpus.write_bytes(bytes(range(32, 127)) * 690)
    command = [sys.executable, "-m", "tests.bench.rivals.averaging_peer", str(path), str(corpus)]
    known = [(up, up if case.symmetric else max(lines)) for up in lines]
    rates = ",".join(f"{up * 1e6 / 8:.0f}/{down * 1e6 / 8:.0f}" for up, down in known)
    said = [str(case.peers), kind, rates]
    commands = [
        where.command(index, [*command, str(index), where.address(index), *said])
        for index in range(case.peers)
    ]
    with talking(commands, folder, ONE_THREAD) as peers:
        addresses = [peer.line(START_S) for peer in peers]
        for peer in peers:
            peer.say(" ".join(addresses))
        versions = [_told(peers)]
        before = cpu_s(peers)
        versions += [_told(peers) for _ in range(1, manifest.steps)]
        values, more = of_versions(versions[1:], bare=kind == "bare")
        return values, {**more, "cpu_s": round((cpu_s(peers) - before) / len(values), 3)}


def _told(peers: list[Talker]) -> list[dict[str, Any]]:
    """Return what every peer says of the next version."""
    return [json.loads(peer.line(ROUND_S)) for peer in peers]


def of_versions(rounds: list[list[dict[str, Any]]], *, bare: bool) -> Turn:
    """Return the seconds of the rounds, from what the peers said of each version."""
    values, exchanges = [], []
    tasks: dict[str, list[float]] = {}
    same = True
    for told in rounds:
        begin = min(peer["plan"] for peer in told)
        values.append(round(max(peer["done"] for peer in told) - begin, 4))
        exchanges.append(max(peer["apply"] for peer in told) - begin)
        same &= len({peer["hash"] for peer in told}) == 1
        for peer in told:
            for task, seconds in peer["tasks"].items():
                tasks.setdefault(task, []).append(seconds)
    more: dict[str, Any] = {"exchange_s": round(statistics.median(exchanges), 4)}
    more["attempts"] = max(peer["attempts"] for told in rounds for peer in told)
    more |= {f"{task}_s": round(statistics.median(s), 4) for task, s in sorted(tasks.items())}
    return values, more if bare else {**more, "identical": same}


def _manifest(case: Case, folder: Path) -> Manifest:
    data = folder / "text"
    data.write_bytes(bytes(range(32, 127)) * 690)
    run = RunChoices(
        name="averaging",
        data=str(data),
        optimizer="adamw",
        stages=1,
        steps=TURNS + 1,
        sequences=1,
        microbatches=case.peers,
        averaging_codec="s8",
        measure=False,
    )
    founder = ensure_identity(make_private(folder / "founder"))
    return found_swarm(founder.peer, run, model(case.size), OptimizerChoices()).manifest


# --- hivemind's ---------------------------------------------------------------------------------


def theirs(case: Case, compression: str, where: Hosts, folder: Path) -> Turn:
    """Launch hivemind's peers and let them average; they are told their lines, too."""
    script = str(Path(__file__).with_name("hivemind_averaging.py"))
    elements, lines = parameters(case.size), case.mbit or (1.0,) * case.peers

    def command(index: int, *known: str) -> list[str]:
        what = (str(index), str(case.peers), str(elements), compression, str(lines[index]))
        settings = (*what, where.address(index), *known)
        return where.command(index, [str(environment.PYTHON), script, *settings])

    with talking([command(0)], folder, ONE_THREAD) as [leader]:
        address = leader.line(START_S)
        others = [command(index, address) for index in range(1, case.peers)]
        (folder / "others").mkdir()
        with talking(others, folder / "others", ONE_THREAD) as followers:
            for peer in followers:
                peer.line(START_S)
            return _turns([leader, *followers], MAX_ERROR[compression])


def _turns(peers: list[Talker], max_error: float) -> Turn:
    values, matching, cpu, errors, same = [], [], [], [], True
    for turn in range(TURNS + 1):
        begin = time.monotonic()
        _all(peers, "match")
        go, before = time.monotonic(), cpu_s(peers)
        said = [json.loads(line) for line in _all(peers, "go")]
        used = cpu_s(peers) - before
        if any(peer["members"] != len(peers) for peer in said):
            raise PeerFailed(f"groups of {[peer['members'] for peer in said]}")
        results = [json.loads(line) for line in _all(peers, "check")]
        same &= len({peer["digest"] for peer in results}) == 1
        errors.append(max(peer["error"] for peer in results))
        if not errors[-1] <= max_error:
            raise PeerFailed(
                f"no average: error {errors[-1]:.2g}, at most {max_error:g} is expected"
            )
        if turn:  # the first one warms up
            values.append(round(max(peer["done"] for peer in said) - go, 4))
            matching.append(go - begin)
            cpu.append(used)
    more = {
        "matchmaking_s": round(statistics.median(matching), 3),
        "cpu_s": round(statistics.median(cpu), 3),
        "error": max(errors),
        "identical": same,
    }
    return values, more


def _all(peers: list[Talker], line: str) -> list[str]:
    for peer in peers:
        peer.say(line)
    return [peer.line(ROUND_S) for peer in peers]
