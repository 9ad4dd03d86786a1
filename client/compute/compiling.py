"""`torch.compile` of one block, for all blocks of a stage: prepared by another process meanwhile.

Compiling takes minutes. So a process of its own (`compile_block`) compiles a block of the same
shape, compares its numbers with the uncompiled one's and times both; the stage trains uncompiled
until then. What it compiled is in a folder that survives restarts, where this process finds it
again. Whatever fails, the stage goes on uncompiled, and says why once.

State: the process under way, and what came of it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec
import torch
from torch import Tensor, nn

from client.compute.device import warm_up
from client.compute.errors import ComputeError
from client.compute.replica import Replica
from client.compute.replies import CompiledTold
from client.compute.requests import OpenStage
from client.compute.slicing import is_out_of_memory
from model_zoo.models.documents import Documents
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.precision import Precision
from model_zoo.stages import run_block

FASTER: Final = 1.02
"""Times as fast that compiled blocks have to be, where nobody asked for them."""
TOLERANCE: Final[dict[Precision, float]] = {"fp32": 1e-4, "bf16": 1e-2}
"""Largest relative L2 distance of a compiled block's output or gradient from the uncompiled one's:
a part of what audits allow, so that a compiled and an uncompiled replica agree."""
_COMMAND: Final = (sys.executable, "-m", "client.compute.compile_block")


class CompileJob(msgspec.Struct, frozen=True):
    """What `compile_block` compiles, and where to.

    Fields:
        layers: of the model, one of each kind.
        embeds: whether the first block gets what may need no gradient.
        folder: of everything that is compiled.
    """

    model: ModelSpec
    layers: tuple[int, int]
    embeds: bool
    sequences: int
    tokens: int
    precision: Precision
    device: str
    threads: int
    folder: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, T, C)."""
        return self.sequences, self.tokens, self.model.width

    @property
    def verdict_path(self) -> Path:
        """The file in which the verdict is kept."""
        machine = [str(torch.__version__), sys.version, torch.backends.cpu.get_cpu_capability()]
        if self.device.startswith("cuda"):
            machine.append(torch.cuda.get_device_name(torch.device(self.device)))
        named = msgspec.json.encode([machine, msgspec.structs.replace(self, folder="")])
        return Path(self.folder) / f"{hashlib.blake2b(named, digest_size=16).hexdigest()}.json"


class Verdict(msgspec.Struct, frozen=True):
    """What came of compiling.

    Fields:
        problem: why compiled blocks cannot be used; empty: they can.
        faster: times as fast as uncompiled ones, forward and back.
        seconds: that compiling took.
        apart: relative distance of the numbers.
    """

    problem: str = ""
    faster: float = 0.0
    seconds: float = 0.0
    apart: float = 0.0


def prepare(folder: str) -> None:
    """Have torch keep what it compiles in ``folder``, and compile in this process alone."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    from torch._inductor import config

    config.compile_threads = 1
    config.fx_graph_cache = True
    config.cpp.dynamic_threads = True  # the owner may change their number later


def compiled(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return a function that is compiled when it is first called, for the shapes it gets then."""
    made: Callable[[nn.Module, Tensor], Tensor] = torch.compile(run, dynamic=False, fullgraph=True)
    return made


def run_alone(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block on sequences that are one document each."""
    result: Tensor = block(x, None)
    return result


class CompiledBlocks:
    """Runs blocks compiled where they get the shape that was compiled, else as they are."""

    def __init__(
        self, shape: tuple[int, ...], run: Callable[[nn.Module, Tensor], Tensor] | None = None
    ) -> None:
        self._shape = torch.Size(shape)
        self._run = run or compiled(run_alone)
        self.usable = True

    def __call__(self, block: nn.Module, x: Tensor, documents: Documents | None) -> Tensor:
        """Run a block: hidden (B, T, C) to hidden."""
        if self.usable and documents is None and x.shape == self._shape:
            return self._run(block, x)
        return run_block(block, x, documents)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledBlocks:
        """Copies of a stage share what is compiled."""
        return self


class Compiling:
    """See the module's docstring; made for an opened stage."""

    def __init__(self, request: OpenStage, replica: Replica, device: torch.device) -> None:
        self._replica = replica
        self._state: Literal["off", "running", "on", "failed"] = "off"
        self._words = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: BinaryIO | None = None
        self._blocks: CompiledBlocks | None = None
        self._asked = request.compile == "on"
        part, period = replica.part, request.model.nope_every
        kinds = period if isinstance(period, int) else 1
        self._job = CompileJob(
            model=request.model,
            layers=(part.first_layer, min(part.last_layer, part.first_layer + kinds)),
            embeds=part.embeds,
            sequences=request.sequences,
            tokens=request.tokens,
            precision=replica.module.precision,
            device=str(device),
            threads=request.threads,
            folder=request.compile_folder,
        )
        if request.compile == "off" or not request.compile_folder:
            return
        problem = _hopeless(request, device)
        known = None if problem else _kept(self._job)
        if known is not None:
            self._decide(known)
        elif self._asked or device.type == "cuda":
            self._begin(problem)

    def told(self) -> CompiledTold:
        """Return how far it is, in words."""
        return CompiledTold(state=self._state, words=self._words)

    @property
    def ready(self) -> bool:
        """Whether the other process is done."""
        return self._process is not None and self._process.poll() is not None

    def take_over(self) -> None:
        """Use what the other process has compiled, once it is done: loading it takes seconds, and
        uses the scratch of the gradients."""
        if self._process is None or self._answer is None or not self.ready:
            return
        self._answer.seek(0)
        answer, code = self._answer.read(), self._process.returncode
        self.close()
        try:
            verdict = msgspec.json.decode(answer, type=Verdict)
        except msgspec.DecodeError:
            verdict = Verdict(problem=f"the compiling process ended with status {code}")
        self._decide(verdict)

    def gives_up(self, error: Exception) -> bool:
        """Whether compiled blocks ran, and failed as nothing else would: they are not run again."""
        if self._state != "on" or isinstance(error, ComputeError) or is_out_of_memory(error):
            return False
        self._fail(f"a compiled one failed: {_first_line(error)}")
        return True

    def close(self) -> None:
        """End the process, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._answer is not None:
            self._answer.close()
        self._process = self._answer = None

    def _begin(self, problem: str) -> None:
        if problem:
            self._fail(problem)
            return
        try:
            Path(self._job.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._answer = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
            self._process = subprocess.Popen(
                [*_COMMAND, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
            )
            if self._process.stdin is not None:
                self._process.stdin.write(msgspec.json.encode(self._job))
                self._process.stdin.close()
        except OSError as error:
            self.close()
            self._fail(f"no process can compile them: {error.strerror or error}")
            return
        self._state = "running"
        self._words = (
            "one block is compiled by another process, which takes minutes; training goes on "
            "uncompiled meanwhile"
        )

    def _decide(self, verdict: Verdict) -> None:
        if verdict.problem:
            self._fail(verdict.problem)
        elif not self._asked and verdict.faster < FASTER:
            self._fail(f"compiled ones are {verdict.faster:.2f} x as fast here")
        else:
            prepare(self._job.folder)
            self._blocks = CompiledBlocks(self._job.shape)
            for slot in self._replica.slots:
                slot.module.runner = self._blocks
            self._state = "on"
            try:
                warm_up(self._replica)
            except Exception as error:
                if not self.gives_up(error):
                    raise
                return
            self._words = f"blocks run compiled: {verdict.faster:.2f} x as fast as uncompiled"

    def _fail(self, reason: str) -> None:
        if self._blocks is not None:  # copies of the stage have it as well
            self._blocks.usable = False
        self._state, self._words = "failed", f"blocks run uncompiled: {reason}"


def _hopeless(request: OpenStage, device: torch.device) -> str:
    """Return why nothing needs to be tried; empty: it may work."""
    if request.packed:
        return "documents have lengths that change"
    if request.ranks > 1:
        return "a stage that is cut over devices waits for the others in the midst of a block"
    if isinstance(request.model.experts, msgspec.Struct):
        return "a mixture of experts sends tokens where their numbers say"
    if device.type == "mps":
        return "that is not done on Apple's GPUs"
    return ""


def _kept(job: CompileJob) -> Verdict | None:
    """Return the verdict of an earlier session."""
    try:
        return msgspec.json.decode(job.verdict_path.read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError):
        return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
