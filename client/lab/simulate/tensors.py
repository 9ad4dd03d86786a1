"""The simulated world with real arithmetic: every peer computes with a real executor.

Beside the tensors runs the exact arithmetic of ``multisets``: each payload carries the multiset of
ids that its tensor stands for, and each task is done on both. So I1 is checked on every applied
segment here as well, and the executor's own account of what it contributed has to agree with it.
Hashes are the executor's: the world compares real parameters (I2, I5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from client.compute.averaging import Averager
from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.requests import Answer, Failed, Load, OpenStage, Save
from client.lab.simulate.invariants import expect
from client.lab.simulate.multisets import MultisetWorker
from client.lab.simulate.training import TrainingWorld, WorldConfig
from client.lab.simulate.worker import Payloads, payload_digest
from client.train.workers.tasks import results, sources
from protocol.manifest import Manifest
from protocol.pipeline.effects import ContributeTask, Outcome, PayloadKey, Task
from protocol.pipeline.place import Place

SWARM = "00" * 32


class _Labelled(msgspec.Struct, frozen=True, array_like=True):
    """A payload of this world: a tensor and the multiset of ids it stands for."""

    label: bytes
    tensor: bytes


_decoder = msgspec.msgpack.Decoder(_Labelled)


def tensor_world(
    run: Manifest, corpus: Path, folder: Path, *, replicas: int, seed: int
) -> TrainingWorld:
    """Return a world of executors in which ``replicas`` peers hold each stage.

    Args:
        run: what they train.
        corpus: a data folder.
        folder: where versions are saved for newcomers.
        replicas: peers of each stage.
        seed: of what happens by chance.
    """
    config = WorldConfig(
        stages=run.stage_count,
        replicas=replicas,
        per_step=run.microbatches_per_step,
        steps=run.steps,
        tokens_per_step=run.tokens_per_step,
        seed=seed,
    )

    def opened(place: Place) -> TensorWorker:
        text = str(corpus) if place.first else ""
        request = OpenStage(
            swarm=SWARM, peer=place.me, manifest=run, stage=place.stage, corpus=text
        )
        return TensorWorker(place, request, folder)

    return TrainingWorld(config, opened)


class _Decoded(dict[PayloadKey, _Labelled]):
    """Payloads by key, decoded when they are asked for."""

    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self._payloads = payloads

    def __missing__(self, key: PayloadKey) -> _Labelled:
        self[key] = _decoder.decode(self._payloads[key])
        return self[key]


class _Labels(dict[PayloadKey, bytes]):
    """The exact arithmetic's payloads: those sent with the tensors, and its own results."""

    def __init__(self, held: _Decoded) -> None:
        super().__init__()
        self._held = held

    def __missing__(self, key: PayloadKey) -> bytes:
        return self._held[key].label


class TensorWorker:
    """A ``SimWorker`` around one executor."""

    def __init__(self, place: Place, request: OpenStage, folder: Path) -> None:
        self._exact = MultisetWorker(place)
        self._place = replace(place, tokens_everywhere=request.manifest.tokens_everywhere)
        self._executor = Executor()
        self._folder = folder
        self._execute(request)

    @property
    def size(self) -> int:
        """Parameters of the stage."""
        return self.averager.replica.size

    @property
    def averager(self) -> Averager:
        """The executor's part that contributes and sums; labs make a liar of it."""
        stage = self._executor._stage
        assert stage is not None
        return stage.averager

    def run(self, task: Task, payloads: Payloads) -> Outcome:
        """See ``SimWorker.run``."""
        held, keys = _Decoded(payloads), results(task, self._place)
        given = [held[key].tensor if key else b"" for key in sources(task, self._place)]
        outcome, tensors = self._execute(task, given)
        if isinstance(task, ContributeTask):
            counted = tuple(sorted(self._exact.accumulated.elements()))
            expect(outcome.counted == counted, f"I1: {outcome.counted} are not {counted}")
        labels = _Labels(held)
        self._exact.run(task, labels)
        yielded = [
            msgspec.msgpack.encode(_Labelled(labels.get(key, b""), tensor))
            for key, tensor in zip(keys, tensors, strict=True)
        ]
        payloads.update(zip(keys, yielded, strict=True))
        digests = tuple(map(payload_digest, yielded))
        made: Outcome = msgspec.structs.replace(outcome, digests=digests)
        return made

    def save(self, version: int) -> str:
        """See ``SimWorker.save``: the name is a checkpoint's path and the exact arithmetic's."""
        path = self._folder / f"{self._place.me}-{version}.safetensors"
        self._execute(Save(version=version, path=str(path), durable=False))
        return f"{path}\n{self._exact.save(version)}"

    def load(self, version: int, saved: str) -> str:
        """See ``SimWorker.load``."""
        path, exact = saved.split("\n")
        self._exact.load(version, exact)
        self._execute(Load(path=path, version=version))
        return self.averager.replica.state_hash()

    def _execute(self, request: Any, payloads: Sequence[Buffer] = ()) -> tuple[Any, list[bytes]]:
        """Execute one request; no request of a correct swarm fails."""
        answers: list[tuple[Answer, list[bytes]]] = []

        def answer(reply: Answer, sent: Sequence[Buffer]) -> None:
            answers.append((reply, [bytes(payload) for payload in sent]))

        self._executor.execute(request, payloads, answer)
        self._executor.close()  # a save answers from its own thread
        reply, sent = answers[0]
        if isinstance(reply, Failed):
            expect(False, f"{type(request).__name__} failed: {reply.kind}, {reply.message}")
        return reply, sent
