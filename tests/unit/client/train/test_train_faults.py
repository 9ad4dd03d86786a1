"""Workers that die or run out of memory, tensors that are malformed or out of range; none ends."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import trio

from client.compute.payload import seal
from client.errors import ExitCode, UserError
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.pipeline.effects import Fault
from protocol.wire.messages import Backward, Forward, Message
from tests.support.codecs import decode, encode
from tests.support.train_swarm import Volunteer, open_swarm


def replica_of(volunteer: Volunteer, stage: int) -> Any:
    """The state in the worker that computes a stage."""
    worker: Any = volunteer.held(stage).worker
    return worker._executor._opened.replica


async def test_a_worker_that_dies_is_replaced_and_a_sibling_gives_the_state(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=16) as swarm:
        first, second, _ = await swarm.staffed(0, 0, 1, steps=2)
        worker, served = second.held(0).worker, first.engine.shelf.served_bytes
        next(w for w in second.workers if w is worker).die()
        await swarm.until(lambda: second.held(0).worker_restarts == 1)
        await swarm.until(lambda: second.serves(0))
        assert second.held(0).worker is not worker
        assert first.engine.shelf.served_bytes - served >= 8 * replica_of(first, 0).size  # muon
        assert second.lineage.version == 0, "nothing was rolled back"
        at = second.step(0)
        assert at >= 2
        await swarm.until_done()
        swarm.assert_exact()
        assert {c.version for c in second.engine.commits} >= set(range(at + 1, 17))
        assert torch.equal(replica_of(first, 0).flat.values, replica_of(second, 0).flat.values)


@pytest.mark.slow
async def test_a_worker_that_hangs_counts_as_dead_and_the_others_go_on(tmp_path: Path) -> None:
    """They do not wait for it, and its seat may be lost before the node has noticed."""
    async with open_swarm(tmp_path, steps=60) as swarm:
        _, second, last = await swarm.staffed(0, 0, 1, steps=2)
        at, worker = last.step(1), second.held(0).worker
        next(w for w in second.workers if w is worker).hang()
        await swarm.until(lambda: last.step(1) > at + 5)
        await swarm.until(lambda: second.held(0).worker_restarts == 1)
        await swarm.until(lambda: second.serves(0))
        assert second.held(0).worker is not worker
        await swarm.until_done()
        swarm.assert_exact()


async def test_a_worker_short_of_memory_goes_on_in_slices(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=8) as swarm:
        _, second, last = await swarm.staffed(0, 0, 1, steps=2)
        for volunteer, stage in ((second, 0), (last, 1)):
            module = replica_of(volunteer, stage).module  # both passes run it
            hidden = module.hidden

            def run(x: torch.Tensor, *beside: object, hidden: Any = hidden) -> Any:
                if len(x) > 1:
                    raise MemoryError
                return hidden(x, *beside)

            module.hidden = run
        await swarm.until_done()
        swarm.assert_exact()
        assert replica_of(last, 1).sequences_at_once == 1
        assert last.held(1).worker_restarts == 0


async def test_a_seat_that_never_fits_is_given_up_in_words(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=50) as swarm:
        first, second, _ = await swarm.staffed(0, 0, 1, steps=2)

        def run(x: torch.Tensor, *beside: object) -> NoReturn:
            raise MemoryError("out of it")

        replica_of(second, 0).module.hidden = run
        with trio.fail_after(300):
            while second.held_stages.failure is None:
                await trio.sleep(0.05)
        failure, second.held_stages.failure = second.held_stages.failure, None
        assert "not even one sequence" in failure.message
        assert "--device cpu" in failure.next_step
        assert failure.exit_code == ExitCode.CONFIG
        assert not second.held_stages.held
        at = first.step(0)
        await swarm.until(lambda: first.step(0) > at + 1)


# --- tensors that are malformed, far too large or too small, and training that diverges -------

BAD_STEP = 3
"""By then enough is counted to know what is usual."""


def scaled(payload: bytes, factor: float, manifest: Manifest, message: Message) -> bytes:
    """The same tensor times a factor, as sound on the wire as any."""
    direction = "forward" if isinstance(message, Forward) else "backward"
    batch, context = manifest.sequences_per_microbatch, manifest.model.context
    tokens = 2 * batch * (context + 1) if isinstance(message, Forward) else 0
    shape = (batch, context, manifest.model.width)
    numbers = decode(payload[tokens:], shape, manifest.boundary_codec, direction)
    damaged = encode(numbers * factor, manifest.boundary_codec, direction=direction)
    seal(damaged)
    return payload[:tokens] + bytes(damaged)


def lies(bad: Volunteer, kind: type, factor: float, manifest: Manifest) -> list[int]:
    """One boundary tensor of every microbatch of a step is scaled; return which, as it goes on."""
    sent = list[int]()

    def damage(_: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
        if isinstance(message, kind) and getattr(message, "step", 0) == BAD_STEP:
            sent.append(getattr(message, "microbatch", -1))
            payload = scaled(payload, factor, manifest, message)
        return message, payload

    bad.distort(damage)
    return sent


@pytest.mark.parametrize("factor", [2.0**14, 2.0**-40])
async def test_gradients_out_of_range_cost_their_giver_only(tmp_path: Path, factor: float) -> None:
    async with open_swarm(tmp_path, steps=8, microbatches=8) as swarm:
        first, bad, _ = [await swarm.add(stage) for stage in (0, 1, 1)]
        sent = lies(bad, Backward, factor, first.engine.manifest)
        await swarm.until_done()
        swarm.assert_exact()
        assert sent
        assert set(first.refused) == {"tensor-out-of-range"}
        assert all(volunteer.held_stages.failure is None for volunteer in swarm.volunteers)


async def test_own_samples_that_diverge_twice_pause_with_a_reason(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=40, microbatches=8) as swarm:
        first, _ = [await swarm.add(stage) for stage in (0, 0)]
        await swarm.add(1)
        reasons = list[UserError]()
        first.held_stages.pause = reasons.append
        await swarm.until(lambda: first.step(0) >= 2)
        held = first.held(0)
        held.fault(Fault("diverged", "a test says so"))
        await swarm.until(lambda: first.serves(0) and held.driver is not None)
        assert not reasons, "with another state it may go on"
        held.fault(Fault("diverged", "a test says so"))
        await swarm.until(lambda: reasons)
        assert "diverged on our own samples" in str(reasons[0])
        assert "resume" in reasons[0].next_step
        assert first.held_stages.failure is None, "it does not end"


async def test_a_gradient_that_is_always_sent_malformed_holds_nobody_up(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=8) as swarm:
        first, bad, _ = [await swarm.add(stage) for stage in (0, 1, 1)]
        sent = list[int]()

        def damage(_: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
            chosen = isinstance(message, Backward) and message.step == BAD_STEP
            if chosen and message.microbatch in (sent or [message.microbatch]):
                sent.append(message.microbatch)
                payload = payload[:-1] + bytes([payload[-1] ^ 1])
            return message, payload

        bad.distort(damage)
        await swarm.until_done()
        swarm.assert_exact()
        assert len(sent) == 1, "it is not asked for that one again"
        assert first.refused == {"malformed-tensor": 1}
        assert first.lineage.number == 0, "nothing was rolled back"
