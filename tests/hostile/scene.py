"""One attack on a real swarm of processes on this machine, and what it did to the honest ones.

    honest start -> all serve -> before (12 s) -> attack (its ``lasts_s``) -> rest (its ``rest_s``)

If the attack says so, an honest volunteer is killed and started again in the midst of it.

Everybody talks TCP on loopback, or from a host of its own (``Attack.apart``). A lying member is in
place, honest, before the first measurement; a stranger comes with the attack. The attacker is
killed at the end of the attack.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from client.cli.founding.options import ModelChoices, RunChoices
from client.control.snapshot import Snapshot
from client.errors import UserError
from client.lab.founding import HOST, write_lab
from client.lab.local_swarm import LocalSwarm, Member, environment
from client.store.paths import Entry, home_folders, make_private
from protocol.ids import short
from tests.bench.machines import commit, this_machine
from tests.hostile.attack import FILES, MIB, WITHIN_S, Attack
from tests.hostile.member import LIES_FROM
from tests.netlab.internet import Internet, Place

REPOSITORY = Path(__file__).parents[2]
MODEL = ModelChoices(layers=2, width=32, heads=2, context=16)
LIAR = "liar"
START_S = 180.0
BEFORE_S = 12.0
WARM_STEPS = 5
STEPS = 100_000
"""Of the run, which is not meant to end."""
POLL_S = 0.5
LOOK_S = 2.0
"""Between two looks at everybody: each costs a volunteer some 10 ms, also while it does nothing."""
SET_ASIDE = re.compile(r"(\w{6}) of stage \d+ is set aside")
OFFENCES = ("banned", "set aside", "aside:", "expelled")
"""Words of an event that says somebody is shut out."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one attack. Rates in steps per second, memory in bytes of the worst honest
    node."""

    attack: str
    issue: str
    rate_before: float
    rate_at_first: float
    """In the first ``WITHIN_S`` of the attack."""
    rate_during: float
    """From then on."""
    rate_after: float
    """When the attacker had gone."""
    memory_before: int
    memory_during: int
    memory_after: int
    files_before: int
    files_after: int
    honest: int
    alive: int
    steps_lost: int
    """Steps by which the newest committed step fell back."""
    blamed: dict[str, int] = field(default_factory=dict)
    """Peers that the honest ones shut out, by name, with the number of those that did."""
    cpu_before: float = 0.0
    """CPU seconds of all honest volunteers together for each step; 0: no step, or not measured."""
    cpu_during: float = 0.0
    others_before: float = 0.0
    """Cores that processes other than the swarm and its attacker kept busy meanwhile. Rates can be
    compared only where this is even; CPU for each step can be compared anyhow."""
    others_during: float = 0.0
    attacker: float = 0.0
    """Cores that the attacker kept busy meanwhile. A stranger has a low priority here, because a
    machine of its own would not take the swarm's cores."""
    niceness: int = 19
    """How much lower the priority of a stranger was than that of the honest ones."""
    authority: dict[str, int] = field(default_factory=dict)
    """By office: the most identities at a time that are no volunteers of the harness and have it,
    in the eyes of an honest one: a place in a round, a vote, the decision for a stage."""
    noted: str = ""
    """The attacker's last message: a figure of its own, or the reason of its failure."""
    linked_s: float = 0.0
    """Seconds after which a newcomer was linked with all others; 0: not in time, or there was none.
    """
    back_s: float = 0.0
    """Seconds after which the volunteer that was killed and started again served; 0: as above."""
    seconds: float = 0.0
    machine: str = ""
    version: str = ""
    """Commit of the code."""

    def misses(self, attack: Attack) -> list[str]:
        """Return the bounds that do not hold, in words."""
        bounds = attack.bounds
        grown = max(self.memory_during, self.memory_after) - self.memory_before
        wrongly = [name for name in self.blamed if name != LIAR]
        out = self.blamed.get(LIAR, 0)
        told = {
            f"{self.honest - self.alive} honest volunteers ended": self.alive < self.honest,
            f"the run fell back by {self.steps_lost} steps": self.steps_lost > bounds.steps_lost,
            f"rate {self.share:.2f} of before": self.share < bounds.rate,
            f"memory grew by {grown / MIB:.0f} MiB": grown > bounds.memory_bytes,
            "the newcomer was not linked in time": bool(attack.returns_within_s)
            and not self.linked_s,
            "the newcomer had no stage in time": bool(attack.returns_within_s) and not self.back_s,
            "file descriptors stayed open": self.files_after - self.files_before > FILES,
            f"honest ones were blamed: {', '.join(wrongly)}": bool(wrongly),
            f"only {out} shut it out": out < bounds.shut_out_by,
            f"it had {self.attacker:.2f} cores, too few": self.attacker < bounds.attacker_cores,
            **{f"{n} strangers were {what}": n > 0 for what, n in self.authority.items()},
        }
        return [words for words, missed in told.items() if missed]

    @property
    def cost_cores(self) -> float:
        """Cores that the attack costs each honest volunteer: its CPU beyond that of its steps."""
        return self.rate_during * max(0.0, self.cpu_during - self.cpu_before) / self.honest

    @property
    def share(self) -> float:
        """Rate during the attack, once it had ``WITHIN_S``, against the rate before."""
        return self.rate_during / self.rate_before if self.rate_before else 0.0

    @property
    def cpu_share(self) -> float:
        """CPU of the honest ones for each step during the attack against that before; 0: unknown.
        It does not depend on what the attacker takes of the cores that they share here."""
        return self.cpu_during / self.cpu_before if self.cpu_before else 0.0


@dataclass
class Sample:
    """One look at the honest volunteers."""

    at: float
    """Monotonic seconds."""
    step: int
    memory: int
    files: int


@dataclass
class Spent:
    """CPU seconds since the processes began, or in between."""

    at: float
    """Monotonic seconds."""
    honest: float
    swarm: float
    """The attacker included."""
    machine: float

    def since(self, before: Spent) -> Spent:
        """Return what was spent since an earlier look."""
        return Spent(
            self.at - before.at,
            self.honest - before.honest,
            self.swarm - before.swarm,
            self.machine - before.machine,
        )

    def per_step(self, samples: Sequence[Sample]) -> float:
        """Return the CPU seconds of the honest for each step."""
        steps = samples[-1].step - samples[0].step
        return round(self.honest / steps, 4) if steps > 0 else 0.0

    @property
    def by_others(self) -> float:
        """Cores that others kept busy, in the mean."""
        return round(max(0.0, self.machine - self.swarm) / max(self.at, 1e-9), 2)

    @property
    def by_attacker(self) -> float:
        """Cores that the attacker kept busy, in the mean."""
        return round((self.swarm - self.honest) / max(self.at, 1e-9), 2)


class Misplaced(Exception):
    """The attacker got another stage than the attack needs: identities decide, so try again."""


class Scene:
    """A swarm under attack; ends all its processes with the block."""

    def __init__(self, attack: Attack, folder: Path, niceness: int) -> None:
        self.attack, self.folder, self._niceness = attack, folder, niceness
        self._go = folder / "lie"
        self._swarm_file = folder / "x.swarm"
        self._samples: list[Sample] = []
        self._steps: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._blamed: dict[str, set[str]] = {}
        self._peers: set[str] = set()
        """Of the harness' volunteers."""
        self._authority: dict[str, int] = {}
        self._stranger: subprocess.Popen[str] | None = None
        self._internet: Internet | None = None
        self._back_s = self._linked_s = 0.0
        self._spent: dict[str, Spent] = {}
        """In each part."""

    def play(self) -> Result:
        """Run it and return what happened.

        Raises:
            Misplaced: the attacker sits in another stage.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            if self.attack.apart:
                names = [LIAR, *(f"v{number + 1}" for number in range(self.attack.honest))]
                places = dict.fromkeys(names, Place())
                self._internet = stack.enter_context(Internet(places))
            _found(self.attack, self.folder, self._host("v1"))
            logs = self.folder / "logs"
            # An orderly leave takes seconds and shows nothing.
            swarm = stack.enter_context(
                LocalSwarm(self._swarm_file, self.folder, logs, orderly=False)
            )
            try:
                self._swarm = swarm
                self._start()
                before = self._watch("before", BEFORE_S)
                self._attack()
                at_first = self._watch("at first", WITHIN_S)
                if self.attack.restarts:
                    self._restart()
                during = self._watch("then", self.attack.lasts_s - WITHIN_S)
                self._end_attack()
                after = self._watch("after", self.attack.rest_s)
                return self._result(before, at_first, during, after, time.monotonic() - began)
            finally:
                self._end_attack()

    # --- who is where ----------------------------------------------------------------------

    def _host(self, name: str) -> str:
        return HOST if self._internet is None else self._internet.public(name)

    def _there(self, name: str, command: Sequence[str] = ()) -> list[str]:
        """Return the command that runs a command where somebody is."""
        return list(command) if self._internet is None else self._internet.command(name, command)

    def _start_honest(self, name: str, log_name: str = "") -> Member:
        there = self._there(name)
        return self._swarm.start(name, self._flags(name), log_name=log_name, within=there)

    @property
    def _honest(self) -> list[Member]:
        return [member for member in self._swarm.members if member.name != LIAR]

    def _start(self) -> None:
        first = self._start_honest("v1")
        self._swarm.wait("an answer", first.snapshot, START_S)
        kept = home_folders(first.home).data / Entry.CAPACITY
        self._until(kept.exists, "a measured machine")
        if self.attack.within:
            self._start_liar(kept)
        for number in range(2, self.attack.honest + 1):
            self._share(kept, f"v{number}")
            self._start_honest(f"v{number}")
            if number < self.attack.honest:  # volunteers that join together may take the same stage
                self._until(self._last_has_a_place, f"place for v{number}")
        self._until(self._all_serve, "everybody serving")
        begin = max(look.step for look in self._looks())
        self._until(lambda: self._newest() >= begin + WARM_STEPS, "the first steps")

    def _last_has_a_place(self) -> bool:
        look = self._swarm.members[-1].snapshot()
        return look is not None and bool(look.seats)

    def _start_liar(self, kept: Path) -> None:
        self._share(kept, LIAR)
        self._swarm.start(
            LIAR,
            self._flags(LIAR),
            variables={LIES_FROM: str(self._go), "PYTHONPATH": str(REPOSITORY)},
            within=[sys.executable, "-m", "tests.hostile.member", self.attack.name],
        )
        self._until(self._last_has_a_place, "place for the attacker")
        look = self._swarm.members[-1].snapshot()
        if look is None or [seat.stage for seat in look.seats] != [self.attack.stage]:
            raise Misplaced

    def _share(self, kept: Path, name: str) -> None:
        data = make_private(home_folders(self.folder / name).data)
        shutil.copyfile(kept, data / Entry.CAPACITY)

    def _flags(self, name: str) -> list[str]:
        return ["--listen-host", self._host(name), "--threads", "1", "--seats", "1"]

    def _all_serve(self) -> bool:
        looks = self._looks()
        self._names.update({short(look.peer): name for name, look in self._named_looks()})
        self._peers |= {look.peer for look in looks}
        serving = [s.stage for look in looks for s in look.seats if s.state == "serving"]
        counts = [serving.count(stage) for stage in range(self.attack.stages)]
        return min(counts) >= len(self._swarm.members) // self.attack.stages

    def _named_looks(self) -> list[tuple[str, Snapshot]]:
        looks = [(member.name, member.snapshot()) for member in self._swarm.members]
        return [(name, look) for name, look in looks if look is not None]

    def _looks(self) -> list[Snapshot]:
        return [look for _, look in self._named_looks()]

    def _newest(self) -> int:
        return max((look.step for look in self._looks()), default=0)

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        self._swarm.wait(f"{self.attack.name}: {what}", is_so, START_S)

    # --- the attack ------------------------------------------------------------------------

    def _attack(self) -> None:
        if self.attack.within:
            self._go.touch()
            return
        peers = [a for look in self._named_looks() for a in ("--peer", self._address(*look))]
        program = [sys.executable, "-m", "tests.hostile.stranger", self.attack.name]
        command = self._there(LIAR, ["nice", "-n", str(self._niceness), *program])
        more = ["--swarm", str(self._swarm_file), "--seconds", str(self.attack.lasts_s + 60)]
        more += ["--host", self._host(LIAR)]
        with (self.folder / "logs" / "stranger.log").open("w") as log:
            self._stranger = subprocess.Popen(
                [*command, *more, *peers],
                cwd=REPOSITORY,
                env=environment(self.folder / LIAR),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._stranger.stdout is not None
        if self._stranger.stdout.readline().strip() != "begun":
            words = (self.folder / "logs" / "stranger.log").read_text()[-2000:]
            raise UserError(f"{self.attack.name}: the attack did not begin\n{words}", "")

    def _address(self, name: str, look: Snapshot) -> str:
        return next(found for found in look.addresses if f"/ip4/{self._host(name)}/" in found)

    def _restart(self) -> None:
        """Kill an honest volunteer and start it again; go on when everybody serves."""
        member = self._honest[-1]
        member.kill()
        self._swarm.members.remove(member)
        began = time.monotonic()
        if self.attack.forgets:
            shutil.rmtree(member.home)
            self._share(home_folders(self._honest[0].home).data / Entry.CAPACITY, member.name)
        self._start_honest(member.name, log_name=f"{member.name}-again")
        if patience_s := self.attack.returns_within_s:
            self._linked_s = self._within(patience_s, began, self._last_is_linked)
            self._back_s = self._within(patience_s, began, self._all_serve)
            return
        self._until(self._all_serve, "everybody serving again")
        self._back_s = round(time.monotonic() - began, 1)
        begin = self._newest()
        self._until(lambda: self._newest() > begin, "steps after the restart")

    def _within(self, patience_s: float, began: float, is_so: Callable[[], bool]) -> float:
        """Return the seconds after which something was so; 0: it was not in time."""
        while (after_s := time.monotonic() - began) < patience_s:
            if is_so():
                return round(after_s, 1)
            time.sleep(POLL_S)
        return 0.0

    def _last_is_linked(self) -> bool:
        """Whether the volunteer that came last is linked with all others."""
        looks = self._looks()
        if len(looks) < len(self._swarm.members):
            return False
        there = {one.peer for one in looks[-1].peers if one.state == "connected"}
        return there >= {look.peer for look in looks[:-1]}

    def _end_attack(self) -> None:
        if self._stranger is not None:
            self._stranger.kill()
            self._stranger.wait()
            self._stranger = None
        for member in self._swarm.members:
            if member.name == LIAR and member.alive:
                member.kill()

    # --- looking ---------------------------------------------------------------------------

    def _watch(self, what: str, seconds: float) -> list[Sample]:
        """Look at everybody for so long, and write it beside the logs."""
        samples = []
        deadline, began = time.monotonic() + max(seconds, 2 * LOOK_S), self._spend()
        while time.monotonic() < deadline:
            samples.append(self._look())
            time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic())))
        samples.append(self._look())
        self._spent[what] = self._spend().since(began)
        self._note_stewards()
        self._samples += samples
        with (self.folder / "logs" / "steps.txt").open("a") as file:
            lines = [f"{s.at:.1f} s  step {s.step}  {s.memory / MIB:.0f} MiB" for s in samples]
            print(what, *lines, sep="\n", file=file)
        return samples

    def _spend(self) -> Spent:
        honest = sum(_cpu_s(member.process.pid) for member in self._honest)
        swarm = sum(_cpu_s(member.process.pid) for member in self._swarm.members)
        if self._stranger is not None:
            swarm += _cpu_s(self._stranger.pid)
        times = psutil.cpu_times()
        machine = times.user + times.nice + times.system + times.irq + times.softirq
        return Spent(time.monotonic(), honest, swarm, machine)

    def _look(self) -> Sample:
        for member in self._honest:
            look = member.snapshot()
            if look is not None:  # a volunteer too busy to answer has not moved
                self._steps[member.name] = look.step
                for seat in look.seats:
                    self._note_authority("members of rounds", seat.members)
                    self._note_authority("electors", seat.electors)
        step = max(self._steps.values(), default=0)
        memory, files = 0, 0
        for member in self._honest:
            self._hear(member)
            try:
                process = psutil.Process(member.process.pid)
                memory = max(memory, process.memory_info().rss)
                files = max(files, process.num_fds())
            except psutil.Error:
                continue
        return Sample(time.monotonic(), step, memory, files)

    def _note_stewards(self) -> None:
        for member in self._honest:
            now = member.snapshot()
            matches = None if now is None else now.matches
            stewards = [one.steward for one in matches.stages if one.steward] if matches else []
            self._note_authority("stewards", stewards)

    def _note_authority(self, office: str, peers: Sequence[str]) -> None:
        """Count the identities in an office that nobody started."""
        count = len(set(peers) - self._peers)
        self._authority[office] = max(count, self._authority.get(office, 0))

    def _hear(self, member: Member) -> None:
        for event in member.new_events():
            if any(word in event.words for word in OFFENCES):
                told = f"{event.data.get('peer', '')} {event.words}"  # the first one named goes
                found = [(told.find(tail), name) for tail, name in self._names.items()]
                if aside := SET_ASIDE.search(told):
                    found = [(0, self._names.get(aside[1], LIAR))]
                named = min((pair for pair in found if pair[0] >= 0), default=None)
                if named is not None or self.attack.stranger is not None:
                    name = LIAR if named is None else named[1]
                    self._blamed.setdefault(name, set()).add(member.name)

    def _result(
        self,
        before: list[Sample],
        at_first: list[Sample],
        during: list[Sample],
        after: list[Sample],
        seconds: float,
    ) -> Result:
        newest, lost = 0, 0
        for sample in self._samples:
            lost = max(lost, newest - sample.step if sample.step else 0)
            newest = max(newest, sample.step)
        return Result(
            attack=self.attack.name,
            issue=self.attack.issue,
            rate_before=_rate(before),
            rate_at_first=_rate(at_first),
            rate_during=_rate(during),
            rate_after=_rate(after),
            memory_before=max(sample.memory for sample in before),
            memory_during=max(sample.memory for sample in [*at_first, *during]),
            memory_after=after[-1].memory,
            files_before=max(sample.files for sample in before),
            files_after=after[-1].files,
            honest=self.attack.honest,
            alive=sum(member.alive for member in self._honest),
            steps_lost=lost,
            blamed=dict(Counter({name: len(by) for name, by in self._blamed.items()})),
            cpu_before=self._spent["before"].per_step(before),
            cpu_during=self._spent["then"].per_step(during),
            others_before=self._spent["before"].by_others,
            others_during=self._spent["then"].by_others,
            attacker=self._spent["then"].by_attacker,
            niceness=self._niceness,
            authority=self._authority,
            noted=_last_line(self.folder / "logs" / "stranger.log"),
            linked_s=self._linked_s,
            back_s=self._back_s,
            seconds=round(seconds, 1),
            machine=this_machine(),
            version=commit(),
        )


def _rate(samples: Sequence[Sample]) -> float:
    if len(samples) < 2:
        return 0.0
    first, last = samples[0], samples[-1]
    return round(max(0, last.step - first.step) / (last.at - first.at), 3)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children; of one that is gone, 0."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in family)
    except psutil.Error:
        return 0.0


def _last_line(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [told for line in text.splitlines() if (told := line.strip(" |+-"))]
    return lines[-1][:120] if lines else ""


def _found(attack: Attack, folder: Path, host: str) -> None:
    run = RunChoices(
        stages=attack.stages,
        microbatches=attack.microbatches,
        aggregation=attack.aggregation,
        audit=attack.audit,
        sequences=2,
        steps=STEPS,
        checkpoint_every=50,
        dual_homing=False,
        measure=False,
        name=f"hostile-{attack.name}"[:40],
    )
    write_lab(folder / "x.swarm", folder / "v1", run, MODEL, hosts=(host,))
