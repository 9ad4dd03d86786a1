"""The arithmetic of the simulator notices what it is there to notice."""

from pathlib import Path

import pytest

from client.lab.simulate.invariants import InvariantViolation
from client.lab.simulate.multisets import MultisetWorker, decode_ids
from client.lab.simulate.worker import Payloads
from protocol.ids import peer_id_from_key
from protocol.pipeline.effects import ApplyTask, ContributeTask, LossTask, PayloadKey, ReduceTask
from protocol.pipeline.place import Place
from tests.support.tensor_swarms import Lab, plan_for, write_text

A, B = (peer_id_from_key(bytes([n]) * 32) for n in range(2))


def counted(*ids: int, peer: str = A) -> tuple[MultisetWorker, Payloads]:
    """The only stage's worker with these ids accumulated; steps have four."""
    worker = MultisetWorker(Place(peer, 0, 1, 4))  # type: ignore[arg-type]
    payloads: Payloads = {}
    for m in ids:
        worker.run(LossTask(0, m), payloads)
    return worker, payloads


@pytest.mark.parametrize("ids", [(0, 1, 2), (0, 1, 2, 4), ()])
def test_a_step_that_is_not_whole(ids: tuple[int, ...]) -> None:
    worker, payloads = counted(*ids)
    with pytest.raises(InvariantViolation, match="I1: step 0 applies"):
        worker.run(ApplyTask(0), payloads)


def test_an_id_counted_by_two_replicas() -> None:
    worker, payloads = counted(0, 1, 2)
    other, others = counted(2, 3, peer=B)
    for who, held in ((worker, payloads), (other, others)):
        who.run(ContributeTask(0, 1, (0, 512, 1024)), held)
    keys = tuple(PayloadKey(0, "segment", 0, 1, peer) for peer in (A, B))
    payloads[keys[1]] = others[keys[1]]
    worker.run(ReduceTask(0, 1, 0, keys, (1,) * len(keys)), payloads)
    reduced = PayloadKey(0, "reduced", 0, 1, A)
    assert decode_ids(payloads[reduced]) == {0: 1, 1: 1, 2: 2, 3: 1}
    with pytest.raises(InvariantViolation, match="2: 2"):
        worker.run(ApplyTask(0, 1, (0, 512, 1024), (reduced, None), (0.0, 0.0)), payloads)


def test_one_changed_parameter_ends_the_run(tmp_path: Path) -> None:
    """I2 is checked on the executors' own hashes."""
    world = Lab(tmp_path, write_text(tmp_path)).world(plan_for("gpt", 2, 5), 2)
    worker = next(iter(world.peers.values())).worker

    def change() -> None:
        worker._executor._opened.replica.flat.values[7] += 1e-3  # type: ignore[union-attr]

    world.after(0.2, change)
    with pytest.raises(InvariantViolation, match="I2, I5: two lineages for stage 0 version"):
        world.run()
