"""Every liar of the threat model against a whole run, beside honest runs of the same seed.

    python -m tests.bench.attacks [NAME ...] [--layout 2x2 1x4 1x8] [--most N] [--honest 2]
                                  [--logs FOLDER] [--out tests/bench/results]

Real volunteers on this machine train a small GPT from the first step to the last, with the rule
and the audits that ``volunteer create`` takes for a public swarm. From step 60 on, or when all
serve if that is later, one of four of them lies (2x2: two stages of two, where nobody can be
convicted; 1x4: one stage of four), or three of eight (1x8). The members are those of
``tests/hostile``; the *work-* ones lie in what they compute, and sign their lies like honest work.
Measured: the held-out
loss of the model that ``volunteer export`` makes at the end; the steps from the first lie to its
expulsion, if there is one; the rate from then on (without an expulsion: from 15 s after the first
lie on), beside that of the honest runs; and the honest volunteers that anybody shut out.

What was measured stays; without names what is missing is measured, and again what expelled an
honest one: the page shows the newest run, and of all runs the honest ones that were expelled. A
run takes one to two minutes, and the rates need a machine without other work: the CPU time of the
honest volunteers for a step says what slows down where the clock cannot. Writes ``attacks.jsonl``
and ``attacks.md``.

Rows of code before 97ae77d have a fault that is mended: at many steps a second an audited member
had nothing left to show when its auditor asked. What computes nothing was found late, and an honest
member was expelled once. With two replicas a stage (2x2) an expulsion by charges is of code that
had members of the other stage judge, too.

Two runs stood and were measured again on mended code. Three of eight that contribute numbers out of
range: each attempt of a round showed one of them, and the leader blamed those that refused it
(``tests/sim/test_sim_lying_minority.py``). A replica that divides every boundary tensor by 2^40,
2x2: its neighbours banned it, it named its sibling and itself as the only electors of a step that
it led, and took the run back to the last checkpoint again and again
(``tests/unit/client/train/test_train_cut_off.py``). Where *others' cores* are .3 or more, other
programs took part of both cores: there the losses and the expulsions count, the rates and their
shares do not.

*refuses* tells no lie: a replica may take no work, and nobody is shut out for that. Its sibling
does the work of both. Until 1ccbbca0 every microbatch asked it first, in vain: 2.5 steps a second
(twice), now 3.9 to 4.1 (three runs), on the same machine within one hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.options import (
    ModelChoices,
    RunChoices,
    for_strangers,
)
from client.cli.reach.home import free_port
from client.errors import UserError
from client.lab.founding import found_lab
from client.lab.local_swarm import (
    LocalSwarm,
    environment,
    terminate_as_interrupt,
    volunteer_command,
)
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from client.train.machine.capacity import FILE_NAME as CAPACITY_FILE
from protocol.address import Address
from protocol.ids import short
from protocol.manifest import Manifest
from tests.bench.machines import commit, this_machine
from tests.hostile.attack import Attack, attack_named
from tests.hostile.scene import HOST, LIAR, POLL_S, START_S, Misplaced, Scene

STEPS = 240
LIES_AT = 60
"""Step of the first lie."""
SETTLED_S = 15.0
"""After the first lie, or after the expulsion 3 s: from then on the rate counts."""
RUN_S = 360.0
"""A run that does not end within this time after the first lie stands."""
MODEL = ModelChoices(layers=2, width=32, heads=2, context=32)
HONEST = "honest"
LAYOUTS: Final = {"2x2": (2, 2, 1), "1x4": (1, 4, 1), "1x8": (1, 8, 3)}
"""Stages, replicas of each, liars."""
BETWEEN_STAGES: Final = (
    "near-zero-boundary",
    "huge-boundary",
    "no-gradients",
    "refuses",
    "sleeper-1s",
    "sleeper-4s",
    "keeps-leases",
    "seat-by-word",
)
"""They lie about what goes from stage to stage."""
WITHIN_A_STAGE: Final = (
    "work-gradients-x-minus-10",
    "work-nothing-computed",
    "work-gradients-x-minus-1",
    "work-random-gradients",
    "work-gradients-x-1.02",
    "work-contribution-x-minus-10",
    "work-contribution-zero",
    "work-huge-contribution",
    "contribution-x-minus-10",
    "claims-everything",
    "false-losses",
    "legal-huge-numbers",
    "wrong-digest",
    "banned-by-sibling",
    "two-adverts",
)
MOST_LOSS, LEAST_RATE = 0.01, 0.9
"""Asked for: at most so much more loss, at least so much of the honest rate."""


@dataclass(frozen=True)
class Row:
    """One run."""

    attack: str
    layout: str
    rule: str
    audits: float
    steps: int
    reached: int
    """The newest step; fewer than ``steps``: the run stood."""
    lied_from: int
    expelled_after: int = -1
    """Steps from the first lie to the first honest one that knows the expulsion; -1: none."""
    expelled: int = 0
    """Liars that are out."""
    why: str = ""
    shut_out: tuple[str, ...] = ()
    """Names of all that an honest one shut out, for a while or for good."""
    wrongly: tuple[str, ...] = ()
    """The honest ones that were expelled, and why."""
    audited: int = 0
    """Contributions that honest ones audited."""
    loss: float | None = None
    """Held-out, nats; None: there was no model to export."""
    rate: float = 0.0
    """Steps a second, in the end."""
    cpu_ms: float = 0.0
    """Of all honest volunteers for a step, meanwhile."""
    others: float = 0.0
    """Cores that other programs kept busy meanwhile."""
    honest: int = 0
    alive: int = 0
    seconds: float = 0.0
    machine: str = ""
    version: str = ""

    @property
    def setting(self) -> tuple[str, str, float, int]:
        """Runs of one setting can be compared."""
        return self.layout, self.rule, self.audits, self.steps


class Course(Scene):
    """A whole run with an attack; ``lies`` False: the same one without."""

    def __init__(self, attack: Attack, folder: Path, layout: str, *, lies: bool = True) -> None:
        stages, replicas, liars = LAYOUTS[layout]
        within = liars if attack.within else 0
        placed = dataclasses.replace(
            attack,
            stages=stages,
            stage=min(attack.stage, stages - 1),
            liars=within,
            honest=stages * replicas - within,
            lasts_s=RUN_S,
        )
        super().__init__(placed, folder)
        self.layout, self._lies = layout, lies
        self._expelled: dict[str, set[str]] = {}
        """By the honest one that knows of it."""
        self._why, self._wrongly = "", dict[str, str]()

    def run(self) -> Row:
        """Run it to its end."""
        began = time.monotonic()
        manifest = found(self.attack, self.folder)
        with LocalSwarm(self._swarm_file, self.folder, self.folder / "logs") as swarm:
            try:
                self._swarm = swarm
                self._start()
                self._until(lambda: self._newest() >= LIES_AT, f"step {LIES_AT}")
                lied_from = self._newest()
                if self._lies:
                    self._attack()
                row = self._follow(manifest, lied_from)
                loss = held_out_loss(self.folder / "v1")
            finally:
                self._end_attack()
                for member in swarm.alive:
                    member.kill()
        return dataclasses.replace(row, loss=loss, seconds=round(time.monotonic() - began, 1))

    def _start(self) -> None:
        """One stage: all start at once, because the first one trains alone meanwhile."""
        if self.attack.stages > 1:
            super()._start()
            return
        first = self._swarm.start("v1", self._flags("v1"))
        first.wait_until_it_answers(START_S)
        kept = home_folders(first.home).data / CAPACITY_FILE
        self._until(kept.exists, "a measured machine")
        liars = [LIAR, *(f"{LIAR}-{n}" for n in range(2, 10))][: self.attack.liars]
        for name in [*liars, *(f"v{n}" for n in range(2, self.attack.honest + 1))]:
            self._share(kept, name)
            if name in liars:
                self._start_liar(name)
            else:
                self._swarm.start(name, self._flags(name))
        self._until(self._all_serve, "everybody serving")

    def _follow(self, manifest: Manifest, lied_from: int) -> Row:
        """Watch the run to its last step."""
        lied, step, caught, audited = time.monotonic(), lied_from, -1, 0
        begin = None
        while step < manifest.steps and time.monotonic() - lied < RUN_S:
            time.sleep(POLL_S / 2)
            step = max(step, self._look().step)
            audited = max(audited, self._look_for_expulsions())
            now = time.monotonic()
            if caught < 0 and any(LIAR in name for name in self._out):
                caught, caught_at = step - lied_from, now
            settled = now > (lied + SETTLED_S if caught < 0 else caught_at + 3)
            if begin is None and settled:
                begin = step, self._spend()
            elif begin is not None and caught >= 0 and begin[1].at < caught_at:
                begin = None
            if begin is not None and step < manifest.steps:
                end = step, self._spend()
        done = end[0] - begin[0] if begin else 0
        spent = end[1].since(begin[1]) if begin else None
        return Row(
            attack=self.attack.name if self._lies else HONEST,
            layout=self.layout,
            rule=manifest.aggregation,
            audits=manifest.audits,
            steps=manifest.steps,
            reached=step,
            lied_from=lied_from,
            expelled_after=caught,
            expelled=len([name for name in self._out if name.startswith(LIAR)]),
            why=self._why,
            shut_out=tuple(sorted(set(self._blamed))),
            wrongly=tuple(self._wrongly.values()),
            audited=audited,
            rate=round(done / spent.at, 2) if spent and spent.at else 0.0,
            cpu_ms=round(1000 * spent.honest / done, 1) if spent and done else 0.0,
            others=spent.by_others if spent else 0.0,
            honest=self.attack.honest,
            alive=sum(member.alive for member in self._honest),
            machine=this_machine(),
            version=commit(),
        )

    @property
    def _out(self) -> set[str]:
        """Names of those that an honest one knows to be expelled."""
        return set().union(*self._expelled.values()) if self._expelled else set()

    def _named(self, peer: str) -> str:
        return self._names.get(short(peer), LIAR)

    def _look_for_expulsions(self) -> int:
        """Note who is out; return how many audits the honest ones have made."""
        audits = 0
        for member in self._honest:
            now = member.snapshot()
            if now is None:
                continue
            out = {self._named(one.peer) for one in now.expelled}
            if out:
                self._expelled[member.name] = out
            for one in now.expelled:
                if (name := self._named(one.peer)).startswith(LIAR):
                    self._why = one.reason[:200]
                else:
                    self._wrongly[name] = f"{name} ({one.by}: {one.reason[:200]})"
            audits += now.audits.results.drawn if now.audits else 0
        return audits


def held_out_loss(home: Path) -> float | None:
    """Return the loss of the finished model; None: there is none to export."""
    command = [*volunteer_command(), "export", "--out", str(home / "model"), "--json"]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, check=False
    )
    told = None if done.returncode else json.loads(done.stdout)["held_out"]
    return None if told is None else round(told["loss"], 4)


def now(layout: str) -> tuple[str, str, float, int]:
    """Return the setting of a run by today's defaults."""
    run = for_strangers(RunChoices())
    return layout, run.rule, (run.audit or 0) / 100, STEPS


def found(attack: Attack, folder: Path) -> Manifest:
    """Found the public swarm of ``create``'s rules; each volunteer holds one stage."""
    run = RunChoices(
        optimizer="adamw",
        stages=attack.stages,
        sequences=2,
        steps=STEPS,
        checkpoint_every=50,
        dual_homing=False,
        measure=False,
        name="attacks",
    )
    signer = ensure_identity(make_private(home_folders(folder / "v1").data))
    manifest = found_lab(folder, signer.peer, for_strangers(run), MODEL).manifest
    swarm = sign(manifest, signer, (Address("ip4", HOST, free_port(HOST), signer.peer),))
    write_swarm_file(folder / "x.swarm", swarm)
    return manifest


def measured(name: str, layout: str, logs: Path | None = None) -> Row:
    """Run once, again with other identities while a liar gets the wrong stage; keep the logs."""
    attack = attack_named("work-gradients-x-1.02" if name == HONEST else name)
    while True:
        with tempfile.TemporaryDirectory(prefix="atk") as folder:
            try:
                return Course(attack, Path(folder), layout, lies=name != HONEST).run()
            except Misplaced:
                print(f"{name}: not in its stage; once more", file=sys.stderr)
            finally:
                if logs is not None:
                    kept = logs / f"{layout}-{name}-{time.strftime('%H%M%S')}"
                    shutil.copytree(Path(folder) / "logs", kept, dirs_exist_ok=True)


def wanted(layout: str) -> list[str]:
    """Return the names of a layout's rows."""
    return [*WITHIN_A_STAGE, *(BETWEEN_STAGES if layout == "2x2" else ())]


def missing(layout: str, has: Sequence[str]) -> list[str]:
    """Return the rows to measure next: of two replicas, first what only two stages can show."""
    names = wanted(layout)[::-1] if layout == "2x2" else wanted(layout)
    return [name for name in names if name not in has]


def todo(
    names: Sequence[str], layouts: Iterable[str], done: Sequence[Row], honest: int
) -> Iterator[tuple[str, str]]:
    """Return the runs to make: the honest ones that are missing, then the named or missing."""
    for layout in layouts:
        here = [one for one in done if one.machine == this_machine() and one.setting == now(layout)]
        has = [one.attack for one in here if not one.wrongly]
        if HONEST not in names:
            yield from [(HONEST, layout)] * max(0, honest - has.count(HONEST))
        chosen = names or missing(layout, has)
        yield from ((name, layout) for name in chosen)


# --- page -----------------------------------------------------------------------------------


def read(path: Path) -> list[Row]:
    """Return all runs, oldest first."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row, strict=False) for line in lines]


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    layouts = [layout for layout in LAYOUTS if any(row.layout == layout for row in rows)]
    blocks = [_of_layout(layout, rows) for layout in layouts]
    return (
        "# Liars against whole runs\n\nWritten by `python -m tests.bench.attacks`. "
        f"{__doc__}\nAsked for: at most {MOST_LOSS:.0%} more loss than honest runs, at least "
        f"{LEAST_RATE:g} of their rate after the expulsion, nobody honest expelled.\n\n"
        "A run is compared with the honest runs of its machine.\n\n" + "\n\n".join(blocks) + "\n"
    )


def _of_layout(layout: str, rows: Sequence[Row]) -> str:
    newest = next(row for row in reversed(rows) if row.layout == layout)
    here = [row for row in rows if row.setting == newest.setting]
    honest: dict[str, list[Row]] = {}
    for row in here:
        if row.attack == HONEST:
            honest.setdefault(row.machine, []).append(row)
    stages, replicas, liars = LAYOUTS[layout]
    lines = [
        f"## {stages} x {replicas}, {liars} of {stages * replicas} lies; rule {newest.rule}, "
        f"audits {newest.audits:.0%}, {newest.steps} steps",
        "",
        "| run | what it does | held-out loss | against honest | expelled after | why | rate | "
        "share | CPU ms a step | others' cores | shut out | asked | code | machine |",
        "| --- " * 14 + "|",
    ]
    last = {row.attack: row for row in here if row.attack != HONEST}
    for name, row in last.items():
        ever = dict.fromkeys(out for one in here if one.attack == name for out in one.wrongly)
        last[name] = dataclasses.replace(row, wrongly=tuple(ever))
    shown = [last[name] for name in wanted(layout) if name in last]
    cells = [
        *(_honest_cells(runs) for runs in honest.values()),
        *(_cells(row, honest.get(row.machine, ())) for row in shown),
    ]
    return "\n".join([*lines, *map(_line, cells)])


def _honest_cells(honest: Sequence[Row]) -> list[str]:
    def spread(values: Sequence[float], form: str) -> str:
        if not values:
            return "-"
        return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    return [
        f"{HONEST}, {len(honest)} runs",
        "",
        spread([row.loss for row in honest if row.loss], ".4f"),
        "",
        "",
        "",
        spread([row.rate for row in honest], ".2f"),
        "",
        spread([row.cpu_ms for row in honest], ".0f"),
        spread([row.others for row in honest], ".1f"),
        ", ".join(sorted({name for row in honest for name in row.shut_out})),
        "",
        honest[-1].version,
        honest[-1].machine,
    ]


def _cells(row: Row, honest: Sequence[Row]) -> list[str]:
    return [
        row.attack,
        attack_named(row.attack).what,
        f"{row.loss:.4f}" if row.loss else "none",
        f"{more_loss(row, honest):+.2%}",
        f"{row.expelled_after} steps, {row.expelled}" if row.expelled else "never",
        row.why,
        f"{row.rate:.2f}",
        f"{share(row, honest):.2f}",
        f"{row.cpu_ms:.0f}",
        f"{row.others:.1f}",
        ", ".join(row.shut_out) or "nobody",
        "; ".join(misses(row, honest)) or "held",
        row.version,
        row.machine,
    ]


def more_loss(row: Row, honest: Sequence[Row]) -> float:
    """Return how much larger its loss is than the median honest one."""
    losses = [one.loss for one in honest if one.loss]
    return row.loss / statistics.median(losses) - 1 if row.loss and losses else math.nan


def share(row: Row, honest: Sequence[Row]) -> float:
    """Return its rate against the median honest one."""
    return row.rate / statistics.median(one.rate for one in honest) if honest else math.nan


def misses(row: Row, honest: Sequence[Row]) -> list[str]:
    """Return what it lacks of what is asked, in words."""
    told = {
        f"stood at step {row.reached}": row.reached < row.steps,
        "loss": not more_loss(row, honest) <= MOST_LOSS,
        "rate": not share(row, honest) >= LEAST_RATE,
        f"honest ones expelled: {', '.join(row.wrongly)}": bool(row.wrongly),
        f"{row.honest - row.alive} honest ones ended": row.alive < row.honest,
    }
    return [words for words, missed in told.items() if missed]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure what is asked for or missing, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: what is missing")
    parser.add_argument("--layout", nargs="+", choices=list(LAYOUTS), default=["1x4", "2x2"])
    parser.add_argument("--most", type=int, default=1000, help="runs of this call")
    parser.add_argument("--honest", type=int, default=2, help="honest runs of a layout")
    parser.add_argument("--logs", type=Path, help="keep the volunteers' logs in this folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    file = asked.out / "attacks.jsonl"
    runs = list(todo(asked.names, asked.layout, read(file), asked.honest))
    for name, layout in runs[: asked.most]:
        with terminate_as_interrupt():
            try:
                row = measured(name, layout, asked.logs)
            except UserError as error:
                print(f"{name} {layout}: {error}", file=sys.stderr)
                continue
        with file.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")
        print(row, flush=True)
        (asked.out / "attacks.md").write_text(markdown(read(file)))


if __name__ == "__main__":
    main()
