"""What the ranks of a cut stage hold is counted exactly, and a rank has few of its units whole."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed import fsdp

from client.compute.memory import MemoryNeed, held_parameters, required_bytes
from client.compute.team import Ring
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.slices import slices, stage_tensors
from model_zoo.specs.state import StateSpec
from tests.support.compute_stages import MODELS

CUT = [1, 2, 1]
BLOCKS = 6
WIDE = replace(MODELS["llama"], layers=BLOCKS + 2, vocab=64)


NARROW = replace(MODELS["llama"], narrow=Narrow(8, (1, 3)))
SHAPES = {name: MODELS[name] for name in ("gpt", "llama", "mixtral")} | {"narrow": NARROW}


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_first_rank_holds_the_rows_that_chunks_give_it(
    model: str, stage: int, ranks: int
) -> None:
    tensors = stage_tensors(SHAPES[model], slices(CUT)[stage])
    chunks = [torch.empty(shape, device="meta").chunk(ranks)[0] for shape in tensors.values()]
    found = held_parameters(SHAPES[model], CUT, stage, ranks)
    assert found == sum(chunk.numel() for chunk in chunks)


def needed(ranks: int, *, host: bool) -> MemoryNeed:
    return required_bytes(
        MODELS["gpt"],
        layers_per_stage=CUT,
        stage=1,
        sequences=4,
        tokens=16,
        graphs_kept=2,
        averaging_codec="s8",
        state=StateSpec(),
        ranks=ranks,
        host=host,
    )


def test_the_first_ranks_sum_is_counted_once_where_it_shares_memory() -> None:
    beside, shared = needed(2, host=True), needed(2, host=False)
    part = 4 * held_parameters(MODELS["gpt"], CUT, 1, 2)
    assert 2 * shared.shared_bytes - (beside.offloaded_bytes - part) in (0, 1)
    assert shared.total_bytes - beside.total_bytes == shared.shared_bytes
    alone = needed(1, host=False)
    assert beside.offloaded_bytes == alone.state_bytes


@pytest.fixture
def group_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def whole_buffers(at_least: int) -> int:
    """Count the buffers of at least so many bytes that are alive, each once."""
    storages = (each.untyped_storage() for each in gc.get_objects() if type(each) is torch.Tensor)
    return len({each.data_ptr() for each in storages if each.nbytes() >= at_least})


@pytest.mark.skipif(not hasattr(fsdp, "share_comm_ctx"), reason="newer versions of torch have it")
@pytest.mark.usefixtures("group_of_one")
def test_a_rank_frees_the_gradients_of_a_unit_when_the_next_ones_are_there() -> None:
    """With buffers of their own, units keep all that they sent until the pass ends."""
    from client.compute.full_shards import FullShards

    part = slices([1, BLOCKS, 1])[1]
    stage = FullShards(Ring(0, 1, 1, torch.device("cpu"))).cut(WIDE, part)
    unit = 4 * WIDE.layer_parameter_count
    before, alive = whole_buffers(unit), []
    x = torch.randn(1, 16, WIDE.width, requires_grad=True)
    x.register_hook(lambda _: alive.append(whole_buffers(unit)))
    stage(x).sum().backward()
    assert alive
    gradients = BLOCKS  # the only rank's part of each unit's is all of it
    assert alive[0] - before <= gradients + 3


@pytest.mark.usefixtures("group_of_one")
def test_the_ends_of_narrow_boundaries_are_cut_as_well() -> None:
    from client.compute.full_shards import FullShards

    part = slices(CUT)[1]
    stage = FullShards(Ring(0, 1, 1, torch.device("cpu"))).cut(NARROW, part)
    units = [type(unit).__name__ for unit in stage.units]
    assert units == ["FSDPReceiver", "FSDPBlock", "FSDPBlock", "FSDPSender"]
    x = torch.randn(1, 16, 8, requires_grad=True)
    output = stage(x, tokens=torch.zeros((1, 16), dtype=torch.int64))
    output.sum().backward()
    assert output.shape == (1, 16, 8)
    assert x.grad is not None
    assert all(each.grad is not None for each in stage.parameters())
