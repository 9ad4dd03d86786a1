"""What a GPU is given to do, on a processor: as few small kernels and waits as possible.

Nothing here tells how fast a GPU is. It counts what `torch` is asked to do outside of the model's
blocks, and that what a GPU computes in its own way is what the processor computes exactly.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from client.compute import conditioning
from client.compute.codecs import blocks
from client.compute.errors import PoisonedTensor
from client.compute.payload import Direction
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import Stage
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask
from tests.support.codecs import decode, encode
from tests.support.compute_stages import (
    LocalWorker,
    open_request,
    relative_error,
    tokens_of,
)

ROWS, WIDTH = 600, 256
NO_KERNELS = frozenset(
    {"alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand"}
    | {"new_empty", "new_empty_strided", "permute", "reshape", "select", "slice", "split", "t"}
    | {"squeeze", "transpose", "unbind", "_unsafe_view", "unsqueeze", "view", "lift_fresh"}
)


@pytest.fixture
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "is_exact", lambda _: False)
    monkeypatch.setattr(blocks, "chunk_of", lambda _: 1 << 25)


def _numbers(kind: str) -> Tensor:
    numbers = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    if kind == "channel":
        numbers[:, 7] *= 60
    if kind == "element":
        numbers[::50, 9] *= 1000
    return numbers


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["plain", "channel", "element"])
def test_what_a_card_sends_is_what_a_processor_sends_but_for_rounding(
    kind: str, direction: Direction, request: pytest.FixtureRequest
) -> None:
    numbers = _numbers(kind)
    exact = bytes(encode(numbers, "s8", direction=direction))
    request.getfixturevalue("as_on_a_card")
    sent = bytes(encode(numbers, "s8", direction=direction))
    assert len(sent) == len(exact)
    ours, theirs = (decode(payload, numbers.shape, "s8", direction) for payload in (sent, exact))
    assert relative_error(ours, theirs) < 1e-3, "a last bit may round a number the other way"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("direction", ["forward", "backward", "average"])
@pytest.mark.usefixtures("as_on_a_card")
def test_a_card_sends_no_poison(bad: float, direction: Direction) -> None:
    numbers = _numbers("plain")
    numbers[3, 4] = bad
    with pytest.raises(PoisonedTensor):
        encode(numbers, "s8", direction=direction)


class Counted(TorchDispatchMode):
    """Counts what would be kernels, and numbers that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.kernels, self.waits = Counter[str](), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.waits += 1
        elif name not in NO_KERNELS:
            self.kernels[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def counted(as_on_a_card: None, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Count, with blocks that do nothing; `tolist` asks a device once, whatever its length."""
    counted = Counted()
    tolist = Tensor.tolist

    def listed(numbers: Tensor) -> Any:
        counted.waits += 1
        with torch.utils._python_dispatch._disable_current_modes():
            return tolist(numbers)

    monkeypatch.setattr(Tensor, "tolist", listed)
    monkeypatch.setattr(Stage, "_run", lambda self, block, x, documents: x.view_as(x))
    return counted


@pytest.mark.usefixtures("as_on_a_card")
@pytest.mark.parametrize(
    ("stage", "tasks", "waits", "kernels"),
    [(1, (ForwardTask, BackwardTask), 2, 110), (2, (LossTask,), 1, 110)],
)
def test_a_microbatch_waits_once_a_pass_and_starts_few_kernels(
    stage: int, tasks: Sequence[Any], waits: int, kernels: int, counted: Counted
) -> None:
    worker = LocalWorker()
    model = ModelSpec("gpt", 4, WIDTH, 4, 4, WIDTH, 16, 61)
    worker.call(open_request(stage, (1, 2, 1), model=model, boundary="s8"))
    numbers = torch.randn(worker.replica.wire.boundary_shape)
    given = {
        direction: bytes(worker.replica.wire.boundary_out(numbers / size, direction).now().ready())
        for direction, size in (("forward", 1), ("backward", 100))
    }
    sent = {
        ForwardTask: (given["forward"],),
        BackwardTask: (given["backward"],),
        LossTask: (given["forward"], tokens_of(0)),
    }
    for microbatch in range(2):  # the first one makes what is kept
        counted.forget()
        with counted:
            for task in tasks:
                worker.call(task(step=0, microbatch=microbatch), *sent[task])
    assert counted.waits == waits
    assert counted.kernels.total() <= kernels, counted.kernels
