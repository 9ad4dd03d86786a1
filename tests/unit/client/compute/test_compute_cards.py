"""Several devices are one worker: one ledger, one version."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from client.compute import cards as module
from client.compute import device, passes
from client.compute.cards import Card, Cards
from client.compute.device import probe
from client.compute.payload import Buffer
from client.compute.requests import Answer, Load, LoadStart, Ping, Probe, Save
from client.compute.starting import write_start
from client.compute.wire import Wire
from model_zoo.huggingface.imports import Imported
from model_zoo.specs.slices import slices
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ContributeTask,
    ForwardTask,
    KeepVersionTask,
    LossTask,
    PassTask,
)
from tests.support.compute_stages import (
    MICROBATCHES,
    Chain,
    LocalWorker,
    of_step,
    open_request,
    opened,
    small_run,
    tokens_of,
)

PATIENCE_S = 60.0


def devices(count: int) -> str:
    return ",".join(f"cpu:{number}" for number in range(count))


def cards_of(worker: LocalWorker) -> list[Card]:
    return worker.executor._cards.all


def at_once(worker: LocalWorker, requests: Sequence[Any], payloads: Sequence[Buffer]) -> list[Any]:
    """The outcomes of requests that are all made before one is answered."""
    found: dict[int, Answer] = {}
    for place, (request, payload) in enumerate(zip(requests, payloads, strict=True)):

        def answer(reply: Answer, _sent: Sequence[Buffer], place: int = place) -> None:
            found[place] = reply

        worker.executor.execute(request, [payload], answer)
    worker.executor.close()
    return [found[place] for place in range(len(requests))]


def losses(worker: LocalWorker, step: int) -> list[float]:
    """The losses of a step's microbatches."""
    requests = [LossTask(step=step, microbatch=m) for m in of_step(step)]
    return [each.loss_sum for each in at_once(worker, requests, [*map(tokens_of, of_step(step))])]


def numbers(shard: bytes, size: int) -> torch.Tensor:
    """The numbers of a contribution in fp32."""
    wire = Wire(small_run([4]), "", 0, torch.device("cpu"))
    out = torch.empty(size)
    wire.segment_in(shard, out, 0)
    return out


@pytest.mark.parametrize("count", [2, 4])
def test_several_make_the_versions_of_one(count: int, tmp_path: Path) -> None:
    alone, worker = opened(0, [4]), opened(0, [4], device=devices(count), threads=count)
    for step in range(4):
        found = losses(worker, step)
        for microbatch, loss in zip(of_step(step), found, strict=True):
            right, _ = alone.call(LossTask(step, microbatch), tokens_of(microbatch))
            assert loss == pytest.approx(right.loss_sum, rel=1e-5)
        assert all(card.replica.counted for card in cards_of(worker))
        applied, _ = worker.call(ApplyTask(step=step))
        expected, _ = alone.call(ApplyTask(step=step))
        assert applied.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        first, *others = (card.replica for card in cards_of(worker))
        assert all(torch.equal(first.parameters, other.flat.values) for other in others)
    worker.call(Save(version=4, path=str(tmp_path / "several")))
    alone.call(Save(version=4, path=str(tmp_path / "alone")))
    kept, right = load_file(tmp_path / "several"), load_file(tmp_path / "alone")
    assert kept.keys() == right.keys()
    for name in kept:
        np.testing.assert_allclose(kept[name], right[name], rtol=1e-3, atol=1e-5)


def test_sums_are_added_in_the_order_of_cards_to_the_bit() -> None:
    worker = opened(0, [4], device=devices(3))
    losses(worker, 0)
    sums = [card.replica.gradient_sum.clone() for card in cards_of(worker)]
    size = worker.replica.size
    reply, (sent,) = worker.call(ContributeTask(step=0, attempt=0, bounds=(0, size)))
    assert reply.counted == tuple(of_step(0))
    assert torch.equal(numbers(sent, size), sums[0] + sums[1] + sums[2])
    again, (same,) = worker.call(ContributeTask(step=0, attempt=1, bounds=(0, size)))
    assert (again.counted, same) == (reply.counted, sent)
    assert not any(card.replica.gradient_sum.any() for card in cards_of(worker)[1:])


def test_a_microbatch_stays_where_its_graph_is_and_counts_once() -> None:
    alone, ids = Chain([2, 2]), range(4)
    passed = [alone.run(m) for m in ids]
    worker = opened(0, [2, 2], device=devices(2))
    for m in ids:
        _, (boundary,) = worker.call(ForwardTask(step=0, microbatch=m), tokens_of(m))
        assert boundary == passed[m].inputs[1][0]
    assert [len(card.replica.graphs) for card in cards_of(worker)] == [2, 2]
    for m in ids:  # without the input: only the card with the graph can do it
        request = BackwardTask(step=0, microbatch=m)
        worker.call(request, passed[m].gradients[0])
        assert "counted already" in worker.fails(request, passed[m].gradients[0]).message
    size = worker.replica.size
    reply, (sent,) = worker.call(ContributeTask(step=0, attempt=0, bounds=(0, size)))
    assert reply.counted == tuple(ids)
    assert torch.allclose(numbers(sent, size), alone.sums[0], rtol=1e-4, atol=1e-5)


def test_microbatches_are_taken_out_before_and_after_sums_are_moved() -> None:
    worker, alone = opened(0, [4], device=devices(2)), opened(0, [4])
    losses(worker, 0)
    bounds, taken_out = (0, worker.replica.size), []
    for attempt, m in enumerate((1, 2, 3)):  # of both cards; then all are at the first
        worker.call(PassTask(into="less", step=0, microbatch=m), tokens_of(m))
        taken_out.append(m)
        again = worker.fails(PassTask(into="less", step=0, microbatch=m), tokens_of(m))
        assert "not counted" in again.message
        reply, (sent,) = worker.call(ContributeTask(step=0, attempt=attempt, bounds=bounds))
        assert reply.counted == tuple(i for i in of_step(0) if i not in taken_out)
    for m in taken_out:  # counted again, by any card
        worker.call(LossTask(step=0, microbatch=m), tokens_of(m))
    reply, (sent,) = worker.call(ContributeTask(step=0, attempt=9, bounds=bounds))
    assert reply.counted == tuple(of_step(0))
    losses(alone, 0)
    own = alone.replica.gradient_sum
    assert torch.allclose(numbers(sent, bounds[1]), own, rtol=1e-3, atol=1e-4)


def test_a_loaded_version_is_that_of_all_cards(tmp_path: Path) -> None:
    alone, path = opened(0, [4]), str(tmp_path / "version")
    losses(alone, 0)
    digest = alone.call(ApplyTask(step=0))[0].hash
    alone.call(Save(version=1, path=path))
    worker = opened(0, [4], device=devices(2))
    losses(worker, 0)  # given up
    worker.call(Load(path=path, version=1, expected_hash=digest))
    assert worker.replica.state_hash() == digest
    assert losses(worker, 1) == losses(alone, 1), "to the bit, on either card"
    failed = worker.fails(Load(path=str(tmp_path / "none"), version=1))
    assert failed.kind == "checkpoint"


def test_every_card_has_what_is_frozen_beside_adapters(imported: Imported, tmp_path: Path) -> None:
    start = write_start(imported, slices([4])[0], lambda digest: tmp_path / digest)
    load = LoadStart(path=str(start.path), digest=start.digest)
    alone = opened(0, [4], model="lora", imported=True)
    worker = opened(0, [4], model="lora", imported=True, device=devices(2))
    alone.call(load)
    worker.call(load)
    assert worker.replica.state_hash() == alone.replica.state_hash()
    assert losses(worker, 0) == losses(alone, 0)
    assert all(card.replica.counted for card in cards_of(worker))


def test_the_first_card_alone_keeps_what_rounds_need() -> None:
    worker = opened(0, [4], averaging="s8", device=devices(2))
    first, other = (card.replica for card in cards_of(worker))
    assert other.optimizer is first.optimizer
    assert other.flat.values.data_ptr() != first.flat.values.data_ptr()


def test_an_audit_is_the_first_card_s_and_what_moves_a_sum_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, there, at = opened(0, [4], device=devices(2)), threading.Event(), list[str]()
    real = passes.backward

    def held_up(*asked: Any) -> Any:
        assert there.wait(PATIENCE_S)
        return real(*asked)

    monkeypatch.setattr(passes, "backward", held_up)
    worker.call(KeepVersionTask(step=0))
    cards, audit = worker.executor._cards, PassTask(into="audit", step=0, microbatch=0)
    for m in range(2):
        worker.executor.execute(LossTask(0, m), [tokens_of(m)], lambda *_: at.append("pass"))
    assert [card.asked for card in cards.all] == [1, 1]
    assert cards._card_of(audit) is cards.leader
    assert cards._card_of(LossTask(0, 1)) is cards.all[1]
    contribute = ContributeTask(step=0, attempt=0, bounds=(0, worker.replica.size))
    moving = threading.Thread(
        target=worker.executor.execute, args=(contribute, (), lambda *_: at.append("sum"))
    )
    moving.start()
    assert not at
    there.set()
    moving.join(PATIENCE_S)
    worker.executor.close()
    assert at == ["pass", "pass", "sum"]


def test_a_card_takes_so_many_requests_at_a_time() -> None:
    cards = Cards()
    cards.emptied([torch.device("cpu")] * 2)
    for m in range(2 * module.MOST_ASKED):
        cards.begin(LossTask(0, m))
    assert [card.asked for card in cards.all] == [module.MOST_ASKED] * 2
    begun = list[tuple[Card, bool]]()
    waiting = threading.Thread(target=lambda: begun.append(cards.begin(LossTask(0, 99))))
    waiting.start()
    assert not begun
    cards.answered(cards.all[1])
    waiting.join(PATIENCE_S)
    assert begun == [(cards.all[1], True)], "the least busy one"


def test_a_failed_pass_names_its_card_and_the_worker_goes_on() -> None:
    worker = opened(0, [4], device=devices(2))
    failed = worker.fails(LossTask(step=3, microbatch=0), tokens_of(0))
    assert failed.message.startswith("cpu: request is for step 3")
    assert len(losses(worker, 0)) == MICROBATCHES


def _unlike() -> Callable[[Any], int]:
    sums = iter((1, 2))
    return lambda _values: next(sums)


def _broken(_values: Any) -> int:
    raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize(
    ("checksum", "words"),
    [(_unlike(), "its parameters are not the first card's"), (_broken, "illegal memory access")],
)
def test_a_card_that_cannot_follow_ends_the_process(
    checksum: Callable[[Any], int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opened(0, [4], device=devices(2))
    losses(worker, 0)
    monkeypatch.setattr(module, "_checksum", checksum)
    with pytest.raises(SystemExit, match=f"cpu: it failed beside other cards: .*{words}"):
        worker.call(ApplyTask(step=0))


def test_another_stage_is_opened_in_the_memory_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = opened(0, [4], device=devices(2))
    losses(worker, 0)
    held = [weakref.ref(card.replica.module) for card in cards_of(worker)]
    kept = list[object]()

    def warm_up(_replica: object) -> None:
        gc.collect()
        kept.extend(module() for module in held)
        raise RuntimeError("too warm")

    monkeypatch.setattr(device, "warm_up", warm_up)
    assert "too warm" in worker.fails(open_request(0, [4], device=devices(2))).message
    assert kept == [None, None]
    assert "no stage is open" in worker.fails(LossTask(0, 0), tokens_of(0)).message


def test_a_thread_that_cannot_be_prepared_fails_the_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nobody would ever answer what is dealt to it."""

    def broken(*_: object) -> None:
        raise RuntimeError("no context")

    worker = LocalWorker()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_prepare", broken)
        assert "no context" in worker.fails(open_request(0, [4], device=devices(2))).message
    assert "no stage is open" in worker.fails(LossTask(0, 0), tokens_of(0)).message
    worker.call(open_request(0, [4], device=devices(2)))
    assert len(losses(worker, 0)) == MICROBATCHES


def test_a_card_that_is_not_there_is_named() -> None:
    worker = LocalWorker()
    failed = worker.fails(Probe(sizes=[64], device="cuda:0,cuda:77"))
    assert failed.kind == "shape"
    assert "no device 'cuda:" in failed.message
    assert "is named twice" in worker.fails(open_request(0, [4], device="0,0")).message
    worker.call(Ping())


def test_what_devices_have_measured_is_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory_bytes", lambda _device: (800, 600))
    monkeypatch.setattr(device, "_flop_per_s", lambda *_: 3.0)
    found = probe(Probe(sizes=[64], device=devices(2), threads=2))
    assert (found.peaks, found.threads) == ({"fp32": 6.0, "bf16": 6.0}, 2)
    assert (found.memory_total_bytes, found.memory_available_bytes) == (400, 300)
    assert found.identity.count("800 bytes") == 2
    monkeypatch.setattr(device, "select_device", lambda _name: torch.device("meta"))
    monkeypatch.setattr(device, "_name", str)
    cards = probe(Probe(sizes=[], device="0,1"))
    assert cards.memory_total_bytes == 800, "each card has its own"
