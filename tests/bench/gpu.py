"""A GPU's worker: its speed beside one PyTorch process, its codec, its memory, and a swarm on it.

    python -m tests.bench.gpu PART... [--device cuda] [--small] [--limit SECONDS] [--json FILE]
                               [--model gpt2|llama] [--compile on] [--reference whole|blocks|eager]
                               [--data FOLDER]

- ``rates``: what `probe` finds: products of matrices by type, copies on the device and to the host.
- ``repeats``: whether a recomputed microbatch has the bits of one whose graph was kept, whether two
  replicas make the same version, and what the codec's bytes are beside the processor's.
- ``codec``: s8 of a boundary on the device against copying the same numbers, and to the host.
- ``alone``: steps of a worker (microbatches, update) beside one PyTorch process that does the
  same in the same precision with a compiled model, in turns; MFU of both. ``--model``: gpt2
  (124M, all of it) or llama (a body stage of 1B parameters).
- ``exposed``: what encoding, copying and sealing boundaries adds to a middle stage's microbatches:
  done at once, and beside the next task; the share of it that is hidden.
- ``memory``: bytes a parameter of the stage, by the device's allocator, with and without
  `--offload`, and what a step takes with it by what it takes without.
- ``swarm``: two volunteers, a stage each, on the one device, beside one process. Then both pause,
  and the driver says how much memory they have given back.
- ``faults``: devices that do not exist, repeats, memory that is too small, a worker that dies.

Every part is a process of its own. ``--small`` and ``--device cpu`` try the command itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from client.cli.founding.presets import PRESETS
from client.compute.codec import decode, encode
from client.compute.codecs import s8
from client.compute.device import probe
from client.compute.payload import Buffer, check_seal, seal
from client.compute.requests import Failed, OpenStage, Probe
from client.compute.worker import copy_beside
from client.lab.founding import write_lab
from client.lab.local_swarm import LocalSwarm, Member, environment, terminate_as_interrupt
from model_zoo.datasets.build import build
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice, slices
from model_zoo.stages import Stage, build_stage
from protocol.pipeline.effects import ApplyTask, BackwardTask, ContributeTask, ForwardTask, LossTask
from tests.support.compute_rounds import decode_task, reduce_task
from tests.support.compute_stages import LocalWorker

H100_FLOPS = 989e12
"""Dense bf16 products a second by its maker; MFU is by this and by what `rates` measures."""
WARM = 2
CALL_S = 900.0
"""A call of a large stage takes minutes."""
Found = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A stage of a model, and the size of a microbatch."""

    spec: ModelSpec
    layers_per_stage: tuple[int, ...]
    stage: int
    sequences: int
    microbatches: int

    @property
    def part(self) -> StageSlice:
        """The stage's slice."""
        return slices(self.layers_per_stage)[self.stage]

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.sequences * self.spec.context

    def opening(self, device: str, **changes: Any) -> OpenStage:
        """Return the request that opens the stage."""
        low = device != "cpu"
        request = OpenStage(
            swarm="ab" * 32,
            model=self.spec,
            layers_per_stage=list(self.layers_per_stage),
            stage=self.stage,
            seed=1,
            optimizer=PRESETS["gpt2-124m"].optimizer,
            precision="bf16" if low else "fp32",
            boundary_codec="s8",
            averaging_codec="s8",
            sequences=self.sequences,
            tokens=self.spec.context,
            microbatches=self.microbatches,
            graphs_kept=2,
            device=device,
            threads=8 if low else 1,
        )
        return msgspec.structs.replace(request, **changes)

    def sample(self, number: int) -> bytes:
        """Return the tokens of a microbatch as they are sent."""
        drawn = np.random.default_rng(number)
        kind = "<u2" if self.spec.vocab <= 1 << 16 else "<u4"
        shape = self.sequences, self.spec.context + 1
        return drawn.integers(self.spec.vocab, size=shape).astype(kind).tobytes()


def work(model: str, *, small: bool) -> Work:
    """Return what is measured of a model."""
    if model == "llama":
        spec, sequences = PRESETS["llama-3.2-1b"].model, 4
        if small:
            spec = msgspec.structs.replace(
                spec, layers=4, width=64, heads=2, kv_heads=1, ffn_width=128, context=64, vocab=256
            )
        return Work(spec, (1, spec.layers - 2, 1), 1, sequences, 4 if small else 8)
    spec = PRESETS["gpt2-124m"].model
    if small:
        spec = msgspec.structs.replace(
            spec, layers=2, width=64, heads=2, kv_heads=2, ffn_width=128, context=64, vocab=256
        )
    return Work(spec, (spec.layers,), 0, 16, 4 if small else 8)


def sync(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device: str, run: Callable[[], object], repeats: int = 20) -> float:
    """Return the median seconds of a run, the device's work included."""
    taken = []
    for _ in range(repeats + WARM):
        sync(device)
        began = time.perf_counter()
        run()
        sync(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM:])


# --- parts -----------------------------------------------------------------------------------


def rates(asked: argparse.Namespace) -> Found:
    """Probe the device."""
    reply = probe(Probe(sizes=[256, 512], device=asked.device, threads=8))
    best: dict[str, float] = {}
    for rate in reply.rates:
        best[rate.dtype] = max(rate.flop_per_s, best.get(rate.dtype, 0))
    name = torch.cuda.get_device_name() if asked.device.startswith("cuda") else "cpu"
    return {
        "device": name,
        "torch": torch.__version__,
        "tflops": {dtype: round(rate / 1e12, 2) for dtype, rate in best.items()},
        "copy_gb_s": reply.copy_bytes_per_s / 1e9,
    }


def boundary(asked: argparse.Namespace) -> Tensor:
    """Return numbers of a boundary (B T, C) on the device."""
    rows, width = (256, 64) if asked.small else (16 * 1024, 768)
    return torch.randn(rows, width, device=asked.device)


def codec(asked: argparse.Namespace) -> Found:
    """Time encoding and decoding against copies."""
    numbers = boundary(asked)
    low = numbers.bfloat16()
    host = torch.empty(low.shape, dtype=low.dtype, pin_memory=asked.device != "cpu")
    copied, fetched = torch.empty_like(numbers), {}
    fetched["copy there"] = timed(asked.device, lambda: copied.copy_(numbers))
    pinned = torch.empty(numbers.shape, pin_memory=asked.device != "cpu")
    fetched["fp32 to pinned host"] = timed(asked.device, lambda: pinned.copy_(numbers))
    fetched["bf16 to pinned host"] = timed(asked.device, lambda: host.copy_(low))
    payload = encode(numbers, "s8", direction="forward")
    fetched["encode to host"] = timed(
        asked.device, lambda: encode(numbers, "s8", direction="forward")
    )
    fetched["decode from host"] = timed(
        asked.device, lambda: decode(payload, numbers.shape, out=copied)
    )
    seal(payload)
    fetched["seal"] = timed("cpu", lambda: seal(payload), 5)
    fetched["check the seal"] = timed("cpu", lambda: check_seal(payload), 5)
    if asked.device != "cpu":
        chunk = s8.chunk_of(numbers.device)

        def encode_there() -> None:
            for _ in s8.encode(numbers, None, rotated=False, chunk=chunk):
                pass

        fetched["encode there"] = timed(asked.device, encode_there)
        body = torch.frombuffer(bytearray(payload), dtype=torch.uint8)[-len(numbers) * 6 * 130 :]
        there = body.to(asked.device)
        fetched["decode there"] = timed(
            asked.device, lambda: s8.decode(there, copied, None, rotated=False, chunk=chunk)
        )
    rate = {name: numbers.nbytes / seconds / 1e9 for name, seconds in fetched.items()}
    return {
        "mib_fp32": numbers.nbytes / 2**20,
        "mib_s8": len(payload) / 2**20,
        "ms": {name: 1e3 * seconds for name, seconds in fetched.items()},
        "gb_fp32_s": rate,
    }


def repeats(asked: argparse.Namespace) -> Found:
    """Compare bits."""
    one = replace(work("gpt2", small=asked.small), layers_per_stage=(), stage=0)
    layers = one.spec.layers
    one = replace(one, layers_per_stage=(layers // 2, layers - layers // 2), sequences=4)
    hidden = torch.randn(4, one.spec.context, one.spec.width, generator=_drawn(5))
    told: Found = {}
    hashes = []
    for keep in (True, True, False):
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(one.opening(asked.device))
        scaled = hidden.to(asked.device) / 50
        gradient = bytes(worker.replica.wire.boundary_out(scaled, "backward"))
        outputs = []
        for number in range(2):
            _, (sent, *_) = worker.call(ForwardTask(step=0, microbatch=number), one.sample(number))
            if not keep:
                worker.replica.drop_graphs()
            worker.call(BackwardTask(step=0, microbatch=number), gradient, one.sample(number))
            outputs.append(bytes(sent))
        total = worker.replica.gradient_sum.double().cpu()
        reply, _ = worker.call(ApplyTask(step=0))
        hashes.append((outputs, total, reply.hash or worker.replica.state_hash()))
    kept, again, rerun = hashes
    told["two replicas: outputs equal"] = kept[0] == again[0]
    told["two replicas: version equal"] = kept[2] == again[2]
    told["two replicas: gradients apart"] = _apart(kept[1], again[1])
    told["recomputed: outputs equal"] = kept[0] == rerun[0]
    told["recomputed: version equal"] = kept[2] == rerun[2]
    told["recomputed: gradients apart"] = _apart(kept[1], rerun[1])
    numbers = torch.randn(512, 768, generator=_drawn(6))
    for name in ("s8", "bf16", "fp32"):
        here = bytes(encode(numbers, name, direction="forward"))
        there = bytes(encode(numbers.to(asked.device), name, direction="forward"))
        told[f"{name} bytes equal the processor's"] = here == there
        back = decode(here, numbers.shape, device=torch.device(asked.device)).cpu()
        told[f"{name} numbers equal the processor's"] = bool(
            torch.equal(back, decode(here, numbers.shape))
        )
    return told


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / ours.norm())


def alone(asked: argparse.Namespace) -> Found:
    """Time a worker and a process in turns, first as they are and then compiled."""
    one = work(asked.model, small=asked.small)
    named = {
        "model": asked.model,
        "microbatch": f"{one.sequences} x {one.spec.context}, {one.microbatches} a step",
    }
    with tempfile.TemporaryDirectory() as folder:
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(one.opening(asked.device))
        plain = compared(worker, one, "eager", asked)
        tell({"part": "alone", **named, **plain, "ms": breakdown(worker, one, asked)})
        if asked.compile == "off":
            return named
        began = time.perf_counter()
        compiling = one.opening(asked.device, compile=asked.compile, compile_folder=folder)
        reply, _ = worker.call(compiling)
        seconds = time.perf_counter() - began
        tell({"part": "alone", **named, "compile": f"{reply.compiled} after {seconds:.1f} s"})
        return {**named, **compared(worker, one, asked.reference, asked)}


def compared(worker: LocalWorker, one: Work, reference: str, asked: argparse.Namespace) -> Found:
    """Time steps of a worker, and of one PyTorch process that is compiled as named."""
    ways = {"worker": worker_step(worker, one), "process": process_step(one, reference, asked)}
    first, taken = dict[str, float](), dict[str, list[float]]()
    for way, step in ways.items():
        began = time.perf_counter()
        step()
        sync(asked.device)
        first[way], taken[way] = time.perf_counter() - began, []
    for _ in range(asked.turns):
        for way, step in ways.items():
            taken[way].append(timed(asked.device, step, 1))
    tokens = one.microbatches * one.tokens
    flop = flops_per_token(one.spec, one.part) * tokens
    middle = {way: statistics.median(seconds) for way, seconds in taken.items()}
    return {
        "parameters": worker.replica.size,
        "process is": reference,
        "first_s": first,
        "all_ms": {way: [1e3 * each for each in seconds] for way, seconds in taken.items()},
        "ratio": middle["process"] / middle["worker"],
        "tokens_s": {way: tokens / seconds for way, seconds in middle.items()},
        "mfu_of_989": {way: flop / seconds / H100_FLOPS for way, seconds in middle.items()},
        "allocated_gb": peak_gb(asked.device),
    }


def tell(found: Found) -> None:
    """Print what is known already: a part may take too long."""
    print(json.dumps(found), flush=True)


def peak_gb(device: str) -> float:
    """Return the most that the device's allocator has given out."""
    return torch.cuda.max_memory_allocated() / 1e9 if device.startswith("cuda") else 0.0


def allocated(*, anew: bool = False) -> int:
    """Return what the device's allocator has given out; ``anew``: the most counts from here."""
    if not torch.cuda.is_available():
        return 0
    if anew:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def worker_step(worker: LocalWorker, one: Work) -> Callable[[], None]:
    """Return a step of the stage's only replica."""
    samples = [one.sample(number) for number in range(one.microbatches)]
    part = one.part
    gradient = hidden = b""
    if not part.has_head or not part.embeds:
        drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=_drawn(3))
        there = drawn.to(worker.replica.wire.device)
        gradient = bytes(worker.replica.wire.boundary_out(there / 1000, "backward"))
        hidden = bytes(worker.replica.wire.boundary_out(there, "forward"))

    def step() -> None:
        version = worker.replica.version
        for number, tokens in enumerate(samples):
            named: Any = {"step": version, "microbatch": version * len(samples) + number}
            if part.has_head and part.embeds:
                worker.call(LossTask(**named), tokens)
            elif part.has_head:
                worker.call(LossTask(**named), hidden, tokens)
            else:
                given = tokens if part.embeds else hidden
                worker.call(ForwardTask(**named), given)
                worker.call(BackwardTask(**named), gradient, given)
        worker.call(ApplyTask(step=version))

    return step


def process_step(one: Work, reference: str, asked: argparse.Namespace) -> Callable[[], None]:
    """Return a step of one PyTorch process, compiled as named, in the same precision, with fused
    AdamW."""
    stage = build_stage(one.spec, one.part, 1).to(asked.device)
    low = asked.device != "cpu"
    spec = PRESETS["gpt2-124m"].optimizer
    optimizer = torch.optim.AdamW(
        stage.parameters(), lr=1e-4, betas=(spec.beta1, spec.beta2), fused=True
    )
    drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=_drawn(3))
    x, out = drawn.to(asked.device), (drawn / 1000).to(asked.device)
    samples = [_tokens(one, number, asked.device) for number in range(one.microbatches)]

    def passes(stage: Stage, given: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=low):
            hidden = stage.hidden(given)
            if stage.head is None:
                return hidden
            logits = stage.project(hidden)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    run = passes
    if reference == "blocks":
        runner = torch.compile(lambda block, x: block(x, None), dynamic=False)
        stage.runner = lambda block, x, documents: runner(block, x)
    elif reference == "whole":
        run = torch.compile(passes, dynamic=False)
    total = one.microbatches * one.tokens

    def step() -> None:
        for inputs, targets in samples:
            if stage.head is not None:
                loss = run(stage, inputs, targets)
                (loss / total).backward()
                loss.item()  # as somebody who logs it, and as the worker answers
            else:
                given = x.detach().requires_grad_()
                run(stage, given, targets).backward(out)
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tokens(one: Work, number: int, device: str) -> tuple[Tensor, Tensor]:
    kind = np.dtype("<u2" if one.spec.vocab <= 1 << 16 else "<u4")
    sent = np.frombuffer(one.sample(number), kind).astype(np.int64)
    shaped = torch.from_numpy(sent.reshape(one.sequences, -1)).to(device)
    return shaped[:, :-1].contiguous(), shaped[:, 1:].contiguous()


def breakdown(worker: LocalWorker, one: Work, asked: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of the parts of a microbatch, each waited for."""
    from client.compute.passes import run_forward, stage_input

    replica, part = worker.replica, one.part
    slot = replica.at(replica.version)
    tokens = one.sample(0)
    told: dict[str, float] = {}
    if part.embeds:
        told["tokens in"] = timed(asked.device, lambda: replica.wire.tokens_in(tokens))
    sent: list[Buffer] = [tokens]
    if not (part.embeds and part.has_head):
        there = torch.randn(replica.wire.boundary_shape, device=asked.device)
        payload = replica.wire.boundary_out(there, "forward")
        told["boundary in"] = timed(
            asked.device, lambda: replica.wire.boundary_in(payload, "forward", 0)
        )
        told["boundary out"] = timed(
            asked.device, lambda: replica.wire.boundary_out(there, "forward")
        )
        sent = [tokens] if part.embeds else [payload, tokens][: 1 + part.has_head]
    given, _ = stage_input(replica, 0, sent)

    def forth() -> Any:
        with replica.module.computing(given.x.device):
            leaf = given.x.detach()
            if leaf.is_floating_point():
                leaf.requires_grad_()
            return replica.module.hidden(leaf, None)

    ones = torch.ones_like(forth())
    told["blocks forward, graph"] = timed(asked.device, forth, 10)
    told["blocks forward and back"] = timed(
        asked.device, lambda: torch.autograd.backward(forth(), ones), 10
    )
    if not part.has_head:
        told["run_forward"] = timed(
            asked.device, lambda: run_forward(slot, given, with_graph=True), 10
        )
    told["zero gradients"] = timed(asked.device, slot.zero_gradients, 10)
    told["gradients within"] = timed(asked.device, lambda: slot.gradients_within(1e30), 10)
    told["count"] = timed(asked.device, lambda: slot.count(-1), 10)
    slot.clear()
    return {name: 1e3 * seconds for name, seconds in told.items()}


def exposed(asked: argparse.Namespace) -> Found:
    """Time microbatches of a middle stage: nothing sent, sent at once, and beside the next task."""
    spec = work("gpt2", small=asked.small)
    third = max(1, spec.spec.layers // 3)
    deep = msgspec.structs.replace(spec.spec, layers=3 * third)
    one = Work(deep, (third, third, third), 1, spec.sequences, 16)
    seconds: dict[str, list[float]] = {"nothing sent": [], "at once": [], "beside": []}
    workers = {}
    for way in seconds:
        worker = workers[way] = LocalWorker(departs=way == "beside", limit_s=CALL_S)
        worker.call(one.opening(asked.device))
    given, gradient = _payloads(workers["at once"], one)
    made = {"forward": memoryview(given), "backward": memoryview(gradient)}
    for _ in range(asked.turns + 1):
        for way, worker in workers.items():
            sent = made if way == "nothing sent" else {}
            seconds[way].append(_pipelined(worker, one, asked, (given, gradient), sent))
    middle = {way: statistics.median(turns[1:]) for way, turns in seconds.items()}
    sending = middle["at once"] - middle["nothing sent"]
    return {
        "ms": {way: 1e3 * each for way, each in middle.items()},
        "all_ms": {way: [1e3 * each for each in turns] for way, turns in seconds.items()},
        "hidden": 1 - (middle["beside"] - middle["nothing sent"]) / sending,
        "parts_ms": breakdown(workers["at once"], one, asked),
    }


def _pipelined(
    worker: LocalWorker,
    one: Work,
    asked: argparse.Namespace,
    payloads: tuple[bytes, bytes],
    made: dict[str, memoryview],
) -> float:
    """Return seconds of a microbatch where requests do not wait for answers; ``made``: what is
    answered in place of what would be encoded, by direction."""
    answers: list[int] = []
    ring = memoryview(bytearray(64 << 20))
    given, gradient = payloads
    wire = worker.replica.wire

    def answer(reply: Any, sent: Any) -> None:
        if isinstance(reply, Failed):
            raise SystemExit(reply.message)
        for payload in sent:  # as to the memory that is shared with the node
            copy_beside(ring[: len(payload)], payload)
        answers.append(len(sent))

    def nothing(tensor: Tensor, direction: Any, *_: Any) -> memoryview:
        return made[direction]

    class Silent(type(wire)):  # type: ignore[misc]
        boundary_out = staticmethod(nothing)

    if made:
        worker.replica.wire = Silent(**{name: getattr(wire, name) for name in wire.__slots__})
    sync(asked.device)
    began = time.perf_counter()
    for number in range(one.microbatches):
        named: Any = {"step": worker.replica.version, "microbatch": number}
        worker.executor.execute(ForwardTask(**named), [given], answer)
        worker.executor.execute(BackwardTask(**named), [gradient, given], answer)
    worker.executor.execute(
        Probe(sizes=[], device=asked.device), [], answer
    )  # answered after all others
    sync(asked.device)
    taken = time.perf_counter() - began
    if len(answers) != 2 * one.microbatches + 1:
        raise SystemExit(f"{len(answers)} answers")
    worker.replica.wire = wire
    worker.replica.at(worker.replica.version).clear()
    return taken / one.microbatches


def memory(asked: argparse.Namespace) -> Found:
    """Count the allocator's bytes a parameter, and time rounds."""
    base = work("llama", small=asked.small)
    spec = msgspec.structs.replace(base.spec, layers=8, context=64)
    one = Work(spec, (1, 6, 1), 1, 1, 2)
    told: Found = {way: held(one, way, asked) for way in ("off", "on")}
    large = replace(work("gpt2", small=asked.small), microbatches=32)
    for way in ("off", "on"):
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(large.opening(asked.device, offload=way == "on"))
        step = worker_step(worker, large)
        step()
        told[f"gpt2 step {way} ms"] = 1e3 * timed(asked.device, step, 3)
        del worker, step
    told["step by step without"] = told["gpt2 step on ms"] / told["gpt2 step off ms"]
    return told


def apply_round(worker: LocalWorker, number: int, bounds: list[int]) -> None:
    """Average with nobody, over the wire's codec, and make the next version."""
    worker.call(ContributeTask(step=number, attempt=0, bounds=bounds))
    sums: list[Buffer] = []
    norms: list[float] = []
    for segment in range(len(bounds) - 1):
        identity: dict[str, Any] = {"step": number, "attempt": 0, "segment": segment}
        reply, sent = worker.call(reduce_task(**identity, microbatches=[1], own=0))
        sums += sent
        norms.append(reply.sq_norm)
        worker.call(decode_task(**identity, squared_norm=norms[-1]), *sent)
    request = ApplyTask(step=number, attempt=0, bounds=bounds, sq_norms=norms)
    worker.call(request, *sums)


def held(one: Work, way: str, asked: argparse.Namespace) -> Found:
    """Open a stage with its vectors ``way``, and run steps with rounds."""
    before = allocated(anew=True)
    worker = LocalWorker(limit_s=CALL_S)
    worker.call(one.opening(asked.device, offload=way == "on"))
    worker_step(worker, one)()
    kept, size = allocated() - before, worker.replica.size
    bounds = [*(128 * (size // 128 * part // 16) for part in range(16)), size]
    given, gradient = _payloads(worker, one)

    def averaged() -> None:
        version = worker.replica.version
        named: Any = {"step": version, "microbatch": 2 * version}
        worker.call(ForwardTask(**named), given)
        worker.call(BackwardTask(**named), gradient, given)
        apply_round(worker, version, bounds)

    seconds = timed(asked.device, averaged, 3)
    peak = 1e9 * peak_gb(asked.device) - before
    return {
        "parameters": size,
        "held_bytes": kept / size,
        "peak_bytes": peak / size,
        "round_s": seconds,
    }


def _payloads(worker: LocalWorker, one: Work) -> tuple[bytes, bytes]:
    drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=_drawn(3))
    there = drawn.to(worker.replica.wire.device)
    out = worker.replica.wire.boundary_out
    return bytes(out(there, "forward")), bytes(out(there / 1000, "backward"))


def made_up(folder: Path) -> str:
    """Build tokens of words that mean nothing, as many as the model knows; return the folder."""
    rng, words = random.Random(1), set[str]()
    while len(words) < 60_000:
        words.add("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))))
    text, vocab = folder / "words.txt", PRESETS["gpt2-124m"].model.vocab
    text.write_text(3 * (" ".join(sorted(words)) + "\n"))
    made = build([text], folder / "tokens", tokenizer=vocab, workers=1)
    if made.index.tokenizer is None or made.index.tokenizer.vocab != vocab:
        raise SystemExit(f"the words make fewer than {vocab} tokens")
    return str(made.path)


def swarm(asked: argparse.Namespace) -> Found:
    """Train in a swarm of two volunteers on the device, then let them pause."""
    from client.cli.founding.options import RunChoices

    end = time.monotonic() + asked.limit - 25
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as name:
        folder = Path(name)
        data = asked.data or ("stdlib" if asked.small else made_up(folder))
        run = RunChoices(
            preset="tiny" if asked.small else "gpt2-124m",
            name="gpu",
            data=data,
            optimizer="adamw",
            stages=2,
            steps=10_000,
            sequences=16,
            microbatches=asked.microbatches,
            redundancy=1,
            dual_homing=False,
            compute_dtype="fp32" if asked.device == "cpu" else "bf16",
            measure=False,
            evaluate_every=0,
        )
        manifest = write_lab(folder / "x.swarm", folder / "volunteer-1", run).manifest
        with LocalSwarm(folder / "x.swarm", folder, folder / "logs") as processes:
            moments, views = trained(processes, asked, end)
            told = paused(processes.members)
            told["logs"] = {member.name: member.log_tail(12) for member in processes.members}
    told |= {"steps": len(moments), "views": views}
    told["intervals"] = intervals = [b - a for a, b in itertools.pairwise(moments)]
    if len(moments) > 3:
        spec, seconds = manifest.model, statistics.median(intervals[1:])  # the first warms up
        tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
        whole = StageSlice(0, 1, 0, spec.layers, embeds=True, has_head=True)
        told["tokens_s"] = tokens / seconds
        told["mfu_of_989"] = flops_per_token(spec, whole) * tokens / seconds / H100_FLOPS
    return told


def trained(
    processes: LocalSwarm, asked: argparse.Namespace, end: float
) -> tuple[list[float], Found]:
    """Let two volunteers train until ``end`` (monotonic seconds), or so many steps; return when
    each was committed, and what the volunteers say of their workers."""
    threads = max(1, (os.cpu_count() or 1) // 4)
    flags = ("--listen-host", "127.0.0.1", "--device", asked.device, "--threads", str(threads))
    flags = (*flags, "--compile", str(asked.compile))
    first = processes.start("volunteer-1", flags)
    first.wait_until_it_answers(90)
    processes.start("volunteer-2", flags)
    committed: dict[int, float] = {}
    views: Found = {}
    while len(committed) < asked.steps and time.monotonic() < end:
        if not all(member.alive for member in processes.members):
            break
        for event in first.new_events():
            step = event.data.get("step")
            if event.kind == "StepCommitted" and isinstance(step, int):
                committed.setdefault(step, event.time)
        for member in processes.members:
            now = member.snapshot()
            if now is not None and len(committed) > 3:
                views[member.name] = [
                    {"stage": each.stage, "mfu": each.mfu, "mfu_computing": each.mfu_computing}
                    for each in now.workers
                ]
        time.sleep(0.2)
    return [committed[step] for step in sorted(committed)], views


def paused(members: Sequence[Member]) -> Found:
    """Pause volunteers; return what they say, and the device's memory before and after."""
    told: Found = {}
    before = after = driver_mib()
    for member in members:
        done = subprocess.run(
            [sys.executable, "-m", "client.cli.main", "pause"],
            env=environment(member.home),
            capture_output=True,
            text=True,
        )
        told[f"pause {member.name}"] = (done.stdout + done.stderr)[-200:]
    end = time.monotonic() + 15
    while before and time.monotonic() < end:
        after = driver_mib()
        if after is not None and after < before / 10:
            break
        time.sleep(0.5)
    told["driver MiB before and after pausing"] = [before, after]
    return told


def driver_mib() -> float | None:
    """Return the device's memory in use as its driver counts it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return float(done.stdout.split()[0])


def faults(asked: argparse.Namespace) -> Found:
    """Provoke errors and keep what is said."""
    told: Found = {}
    one = work("gpt2", small=True)
    for device in (f"{asked.device}:7", "mps"):
        told[device] = LocalWorker(limit_s=CALL_S).ask(one.opening(device))[0].message
    if asked.device.startswith("cuda"):
        large = replace(work("gpt2", small=asked.small), sequences=512)
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(large.opening(asked.device))
        before = worker.replica.state_hash()
        hold = torch.empty(
            int(torch.cuda.mem_get_info()[0] * 0.95), dtype=torch.uint8, device=asked.device
        )
        reply, _ = worker.ask(LossTask(step=0, microbatch=0), large.sample(0))
        told["out of memory"] = str(reply)[:400]
        del hold
        told["state is unchanged"] = worker.replica.state_hash() == before
        small = replace(large, sequences=512)
        reply, _ = worker.ask(LossTask(step=0, microbatch=1), small.sample(1))
        told["afterwards"] = str(reply)[:300]
    return told


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "rates": rates,
    "repeats": repeats,
    "codec": codec,
    "alone": alone,
    "exposed": exposed,
    "memory": memory,
    "swarm": swarm,
    "faults": faults,
}


def main() -> int:
    """Run the parts, each in a process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", help="of: " + ", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="on")
    parser.add_argument("--reference", choices=("whole", "blocks", "eager"), default="whole")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--data", help="of `swarm`: a folder of volunteer data build")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of a part")
    parser.add_argument("--json", type=Path, help="to which results are appended")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        tell({"part": asked.parts[0], **PARTS[asked.parts[0]](asked)})
        return 0
    failed = 0
    for part in asked.parts:
        flags = [flag for flag in sys.argv[1:] if flag not in asked.parts]
        command = [sys.executable, "-m", "tests.bench.gpu", part, *flags, "--child"]
        began, lines = time.monotonic(), b""
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, timeout=asked.limit, check=False)
            lines, problem = done.stdout, f"status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            lines, problem = late.stdout or b"", f"not done within {asked.limit:.0f} s"
        taken = time.monotonic() - began
        text = lines.decode()
        if problem:
            failed += 1
            text += json.dumps({"part": part, "failed": problem}) + "\n"
        print(f"{text}# {part}: {taken:.0f} s", flush=True)
        if asked.json:
            with asked.json.open("a") as file:
                file.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
