"""Home lines in small: what volunteers train, as a share of what each of them trains alone.

    python -m tests.bench.homelines [--shapes 1x4,2x4] [--rounds 4] [--compute-share 10]
                                    [--no-kill] [--keep FOLDER]

S x R: real volunteers in network namespaces (takes root), R at each of S stages, with local rounds.
Each computes that share of the time on one thread, by the processor time of the thread, so none
slows another one as long as all shares and what the nodes need fit the machine's cores. First one
volunteer trains the whole model alone.

The lines are slower by as much as the volunteers are than an RTX 4090 that trains a 1B model
(`CARD`) on 20 Mbit/s up, 100 Mbit/s down and 60 ms: a boundary, in S8 here, takes as long against
the computing of its tokens as one that is narrowed to an eighth and sent in four bits there. A
round has as many microbatches as ``create`` gives it where averaging is slow and a run is long
enough: averaging takes a fifteenth of the time. All of that is shorter than at the cards, about
twenty times; the round trip is not. What a slow line does not make less, heartbeats and other
messages, comes on top: the line is wider by `BESIDE_BYTES_PER_S`, and the figures say how much it
was.

The host of a virtual machine may take memory away that nobody has used for a second. A worker that
rests most of the time would then be slowed, and one alone by more than several are, for these share
torch's code. So the bench itself uses torch all the time (`torch_in_use`), an eighth of a core.

After the rounds a volunteer of each stage is killed in the midst of one and started again; the
shape ends with the second round after its return. The logs are added up at the end.
"""

import argparse
import itertools
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil
import torch
from msgspec import structs

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import checked
from client.cli.founding.options import ModelChoices, RunChoices
from client.lab.chaos.ledger import read_ledger
from client.lab.chaos.record import LogTail, Note
from client.lab.founding import found_lab
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.plan.model import Load, Machine, Prediction, Run, predict
from client.plan.rounds import LONG_SHARE
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from model_zoo.specs.codec import CODECS
from model_zoo.specs.local_rounds import LocalRounds
from protocol.address import Address
from protocol.manifest import Manifest
from tests.netlab.internet import Internet, Place

Shape = tuple[int, int]
MODEL = ModelChoices(layers=4, width=256, heads=4, context=128)
SEQUENCES, PORT = 1, 4001
INNER = 32
"""Microbatches of an optimizer step: alone, and of each replica in local rounds."""
LEFT_OUT = 1
"""Rounds that do not count: in the first one the volunteers find each other."""
BESIDE_BYTES_PER_S = 2_000.0
QUEUE_MS = 400.0
"""Forty packets: the hundred that are enough on the real line would be ten."""
START_S = 150.0
IN_USE_S = 0.1
ROUND_S = 400.0
"""A round that takes longer is given up."""


@dataclass(frozen=True)
class Card:
    """What computes at home, the boundaries of what it trains, and its line."""

    tokens_per_s: float = 7_500.0
    boundary_bytes: float = 133.0
    """Of a token, one way: 256 numbers of four bits, their scale and the token."""
    up_bytes_per_s: float = 20e6 / 8
    down_bytes_per_s: float = 100e6 / 8
    rtt_s: float = 0.06


CARD = Card()


@dataclass(frozen=True)
class Result:
    """One shape. Speeds in tokens per second of the whole swarm."""

    stages: int
    replicas: int
    microbatches: int
    round_s: list[float]
    """Before anybody is killed."""
    tokens: float
    """From the median round."""
    share: float
    """Of so many times one volunteer alone, measured before and after."""
    drift: float
    """One alone after, as a share of before: far from 1, the machine has not stayed as fast."""
    predicted: float
    """The share that ``plan`` expects."""
    busy: float
    """Share of the time in which the workers have tasks, their rests included."""
    averaging: float
    """Share in which they wait for others in a round."""
    up_kbit: float
    """Of each line, without what is sent beside tensors."""
    beside_bytes: float
    """That each volunteer sends beside tensors, per second."""
    busy_cores: float
    """By all processes of the machine."""
    returned_s: float
    """From the kills until as many serve as before; 0: none was killed."""
    killed_round_s: list[float]
    doubled: int
    """Microbatches that a step counted twice; must be 0, as the next ones."""
    lost: int
    """Steps that a stage has passed and no log has closed."""
    differing: int
    """Steps that replicas have closed with different parameters."""


class Rounds:
    """A running swarm, and when its rounds were closed."""

    def __init__(self, swarm: LocalSwarm, start: Callable[[str, int], Member]) -> None:
        self._swarm, self._start = swarm, start

    def next(self, count: int) -> list[float]:
        """Return how long each of the next rounds takes, from the end of the one before; raises
        UserError if one takes too long, or a volunteer has ended."""
        first = len(self._swarm.committed())
        for wanted in range(first + 1, first + count + 1):
            closed = partial(self._closed, wanted)
            self._swarm.wait("a round", closed, ROUND_S)
        return self._since(first)

    def _closed(self, count: int) -> bool:
        return len(self._swarm.committed()) >= count

    def kill_and_restart(self) -> tuple[float, list[float]]:
        """Kill a volunteer of each stage and start it again.

        Returns:
            The seconds until all of them serve, and those of the rounds from the one in which they
            were killed to the second after their return.
        """
        first, began = len(self._swarm.committed()), time.monotonic()
        of_stage = dict[int, Member]()
        for member in self._swarm.members:
            view = member.snapshot()
            of_stage |= {seat.stage: member for seat in (view.seats if view else ())}
        victims = {victim.name: victim for victim in of_stage.values()}  # one may change its stage
        for victim in victims.values():
            victim.kill()
            self._swarm.members.remove(victim)
        back = [self._start(name, 2) for name in victims]
        self._swarm.wait(
            "the killed serve again",
            lambda: self._closed(first) and all(map(_serves, back)),
            ROUND_S,
        )
        took = time.monotonic() - began
        self.next(2)
        return took, self._since(first)

    def sent_beside(self) -> int:
        """Return the bytes that all volunteers have sent beside tensors."""
        sent = [view.network for m in self._swarm.members if (view := m.snapshot()) is not None]
        return sum(network.sent_bytes - network.sent_tensor_bytes for network in sent)

    def time_spent(self) -> tuple[float, float]:
        """Return the mean shares of busy workers and of waiting for others in a round."""
        views = (member.snapshot() for member in self._swarm.members)
        spent = [view.time_spent for view in views if view and view.time_spent]
        busy = statistics.mean(each.computing + each.resting for each in spent)
        return busy, statistics.mean(each.averaging for each in spent)

    def _since(self, first: int) -> list[float]:
        times = [at for _, at in sorted(self._swarm.committed().items())][max(first - 1, 0) :]
        return [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)]


def _serves(member: Member) -> bool:
    now = member.snapshot()
    return now is not None and any(seat.state == "serving" for seat in now.seats)


def _served(swarm: LocalSwarm, stages: int, replicas: int) -> bool:
    """Whether the first volunteer sees every stage served by all its replicas."""
    now = swarm.members[0].snapshot()
    if now is None or len(now.stages) != stages or now.step == 0:
        return False
    return min(len(stage.replicas) for stage in now.stages) >= replicas


class Laboratory:
    """Runs shapes with the flags of the command."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self._asked, self._folder = asked, folder
        self.alone = self._up = 0.0
        self._alone_runs = 0

    def measure_alone(self) -> None:
        """Measure one volunteer that trains the whole model, and slow the lines as much."""
        self.alone = self._speed_alone()
        two = founded("127.0.0.1", self._folder / "two", (2, 1), INNER)
        boundary = two.stages[0].uplink_bytes / two.tokens_per_microbatch / CARD.boundary_bytes
        self._up = CARD.up_bytes_per_s * boundary * self.alone / CARD.tokens_per_s

    def _speed_alone(self) -> float:
        self._up = self._up or CARD.up_bytes_per_s
        self._alone_runs += 1
        where = self._folder / f"alone-{self._alone_runs}"
        with self._swarm((1, 1), INNER, where) as (manifest, rounds):
            took = rounds.next(self._asked.rounds + LEFT_OUT)[LEFT_OUT:]
        return INNER * manifest.tokens_per_microbatch / statistics.median(took)

    def measured(self, shape: Shape) -> Result:
        """Run one shape."""
        volunteers = math.prod(shape)
        manifest = founded("127.0.0.1", self._folder / f"plan-{shape[0]}x{shape[1]}", shape, INNER)
        averaging_s = max(stage.averaging_s for stage in self._expected(shape, manifest).stages)
        computing_s = averaging_s / LONG_SHARE
        tokens = manifest.tokens_per_microbatch
        microbatches = round(computing_s * self.alone * volunteers / tokens)
        expected = self._expected(
            shape, structs.replace(manifest, microbatches_per_step=microbatches)
        )
        where = self._folder / f"{shape[0]}x{shape[1]}"
        with self._swarm(shape, microbatches, where) as (_, rounds):
            rounds.next(LEFT_OUT)
            beside, began = rounds.sent_beside(), time.monotonic()
            psutil.cpu_percent()
            took = rounds.next(self._asked.rounds)
            busy_cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
            beside_bytes = (rounds.sent_beside() - beside) / (time.monotonic() - began) / volunteers
            busy, averaging = rounds.time_spent()
            returned_s, later = 0.0, list[float]()
            if not self._asked.no_kill:
                time.sleep(computing_s / 2)
                returned_s, later = rounds.kill_and_restart()
        after = self._speed_alone()
        ledger = read_ledger(all_notes(where / "logs"), microbatches, shape[0])
        speed = microbatches * tokens / statistics.median(took)
        return Result(
            *shape,
            microbatches=microbatches,
            round_s=took,
            tokens=speed,
            share=speed / statistics.mean((self.alone, after)) / volunteers,
            drift=after / self.alone,
            predicted=expected.tokens_per_s / self.alone / volunteers,
            busy=busy,
            averaging=averaging,
            up_kbit=self._up * 8 / 1e3,
            beside_bytes=beside_bytes,
            busy_cores=busy_cores,
            returned_s=returned_s,
            killed_round_s=later,
            doubled=ledger.doubled,
            lost=len(ledger.missing),
            differing=ledger.differing,
        )

    def _expected(self, shape: Shape, manifest: Manifest) -> Prediction:
        """Return what ``plan`` expects; the optimizer's steps are in the speed of one alone."""
        run = Run(
            stages=tuple(map(Load, manifest.stages)),
            microbatches=manifest.microbatches_per_step,
            tokens_per_microbatch=manifest.tokens_per_microbatch,
            averaging_bytes_per_parameter=CODECS[manifest.averaging_codec].bytes_per_number,
            inner_microbatches=INNER,
        )
        flops = sum(stage.flops for stage in manifest.stages)
        speed = flops * self.alone / manifest.tokens_per_microbatch
        down = self._up * CARD.down_bytes_per_s / CARD.up_bytes_per_s
        volunteer = Machine(speed, 1e12, self._up, down, CARD.rtt_s)
        return predict(run, [[volunteer] * shape[1]] * shape[0])

    @contextmanager
    def _swarm(
        self, shape: Shape, microbatches: int, homes: Path
    ) -> Iterator[tuple[Manifest, Rounds]]:
        """Run volunteers until the end of the block; all serve when it begins."""
        names = [f"v{number}" for number in range(math.prod(shape))]
        mbit = (self._up + BESIDE_BYTES_PER_S) * 8 / 1e6
        line = Place(up_mbit=mbit, down_mbit=mbit * CARD.down_bytes_per_s / CARD.up_bytes_per_s)
        limits = ("--threads", "1", "--compute-share", f"{self._asked.compute_share}%")
        logs = ("--log-format", "json", "--log-level", "debug")
        places = dict.fromkeys(names, line)
        with Internet(places, 1e3 * CARD.rtt_s, QUEUE_MS, net="10.77") as lab:
            manifest = founded(lab.address("v0"), homes, shape, microbatches)
            # Nothing of theirs is needed at the end: no orderly one.
            with LocalSwarm(homes / "x.swarm", homes, homes / "logs", orderly=False) as swarm:

                def start(name: str, life: int) -> Member:
                    where = ("--listen-host", lab.address(name), "--listen-port", str(PORT))
                    log, within = f"{name}.{life}", lab.command(name)
                    flags = (*where, *limits, *logs)
                    return swarm.start(name, flags, log_name=log, within=within)

                for name in names:
                    swarm.wait("an answer", start(name, 1).snapshot, START_S)
                swarm.wait("all stages served", partial(_served, swarm, *shape), START_S)
                yield manifest, Rounds(swarm, start)


@contextmanager
def torch_in_use() -> Iterator[None]:
    """Run a small layer ten times a second until the end of the block."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True)
    torch.set_num_threads(1)
    ended = threading.Event()

    def use() -> None:
        while not ended.wait(IN_USE_S):
            layer(torch.ones(1, 128, 256)).square().sum().backward()

    thread = threading.Thread(target=use)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def founded(address: str, homes: Path, shape: Shape, microbatches: int) -> Manifest:
    """Found the swarm of a shape by its first volunteer, at this address; write its file."""
    run = RunChoices(
        name="homelines",
        stages=shape[0],
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=microbatches,
        optimizer="muon",
        redundancy=shape[1],
        dual_homing=False,
        checkpoint_every=100_000,
        evaluate_every=0,
        measure=False,
    )
    founder = ensure_identity(make_private(home_folders(homes / "v0").data))
    manifest = found_lab(homes, founder.peer, run, MODEL).manifest
    rounds = LocalRounds(INNER)
    manifest = checked(structs.replace(manifest, local_rounds=rounds, averaging_codec="q2"))
    called = Address("ip4", address, PORT, founder.peer)
    write_swarm_file(homes / "x.swarm", sign(manifest, founder, (called,)))
    return manifest


def all_notes(logs: Path) -> list[Note]:
    """Return what volunteers have logged, each in ``NAME.log`` or, if started again, with a number
    before the end."""
    notes = list[Note]()
    for log in sorted(logs.glob("*.log")):
        tail = LogTail(log, log.stem.partition(".")[0])
        while some := list(tail.new_notes()):
            notes += some
    return notes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="1x4,2x4")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--compute-share", type=int, default=10)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder in which the logs are left")
    asked = parser.parse_args()
    with (
        terminate_as_interrupt(),
        torch_in_use(),
        tempfile.TemporaryDirectory(prefix="vol") as name,
    ):
        laboratory = Laboratory(asked, asked.keep or Path(name))
        laboratory.measure_alone()
        print(f"one alone: {laboratory.alone:.0f} tokens/s", flush=True)
        for stages, replicas in (map(int, shape.split("x")) for shape in asked.shapes.split(",")):
            result = laboratory.measured((stages, replicas))
            lines = (f"{name}: {value}" for name, value in asdict(result).items())
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
