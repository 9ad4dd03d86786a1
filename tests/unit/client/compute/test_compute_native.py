"""The S8 kernel in C says exactly what torch says, on every instruction set of this machine."""

import struct
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.compute import native
from client.compute.codec import decode, encode
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import BLOCK_BYTES, HEADER, Direction, read_header
from model_zoo.specs.codec import CODECS

pytestmark = pytest.mark.skipif(
    not native.VARIANTS, reason="the kernel in C was not built: no compiler at installation"
)

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "average")
SHAPES = [
    *[(1,), (5,), (127,), (128,), (129,), (2047,), (65_535,), (65_536,), (65_537,), (140_001,)],
    *[(1, 1), (3, 64), (7, 65), (2, 3, 127), (9, 128), (600, 129), (33, 5, 100), (513, 128)],
    *[(17, 1000), (100, 1024), (1, 70_001), (2, 2, 2, 300), (1025, 128)],
]
ODD_SCALE = 3e-41  # denormal


@pytest.fixture(params=range(len(native.VARIANTS)), ids=native.VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set in turn is the one in use."""
    monkeypatch.setattr(native, "_BEST", request.param)
    return native.VARIANTS[request.param]


def without_kernel(work):
    """The result of torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "VARIANTS", [])
        return outcome(work)


def outcome(work):
    try:
        return work()
    except (CodecError, PoisonedTensor) as error:
        return type(error), str(error)


def agree(tensor: torch.Tensor, direction: Direction) -> memoryview:
    """The payload that both make of a tensor, after both have decoded it to the same numbers."""
    expected = without_kernel(lambda: bytes(encode(tensor, "s8", direction=direction)))
    payload = encode(tensor, "s8", direction=direction)
    assert bytes(payload) == expected
    there = without_kernel(lambda: decode(expected, tensor.shape))
    assert bits(decode(expected, tensor.shape)) == bits(there)
    assert bits(decode(expected, tensor.shape, out=torch.full_like(tensor, 9))) == bits(there)
    return payload


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def kinds(shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Tensors of every temper: usual, with outliers, tiny, huge, zero, denormal, on ties."""
    generator = torch.Generator().manual_seed(sum(shape))
    plain = torch.randn(shape, generator=generator)
    yield plain
    outlier = plain.clone()
    outlier[..., shape[-1] // 3] *= 60
    yield outlier
    spiky = plain.clone()
    spiky.view(-1)[:: max(1, plain.numel() // 5)] *= 1000
    yield spiky
    yield from (plain * magnitude for magnitude in (1e-9, 1e-20, 1e-30, ODD_SCALE, 1e12))
    yield torch.zeros(shape)
    yield -torch.zeros(shape)
    ties = torch.randint(-254, 255, shape, generator=generator).float() / 2
    ties.view(-1)[::64] = 127.0
    yield ties
    yield plain * torch.exp2(torch.randint(-120, 40, shape, generator=generator).float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bytes_and_numbers_are_the_same(shape, direction, variant) -> None:
    for tensor in kinds(shape):
        agree(tensor, direction)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=700),
    st.integers(1, 7),
    st.sampled_from(DIRECTIONS),
    st.integers(0, len(native.VARIANTS) - 1 if native.VARIANTS else 0),
)
def test_arbitrary_bit_patterns_end_alike(patterns, rows, direction, chosen) -> None:
    """NaN, infinities and absurd magnitudes included: the same bytes or the same refusal."""
    words = np.resize(np.array(patterns, np.uint32), (rows, len(patterns)))
    tensor = torch.from_numpy(words.view(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_BEST", chosen)
        found = outcome(lambda: bytes(encode(tensor, "s8", direction=direction)))
    assert found == without_kernel(lambda: bytes(encode(tensor, "s8", direction=direction)))


def test_the_largest_number_is_the_same_to_the_last_bit(variant) -> None:
    refused = []
    around = np.array([127 * 2.0**40], np.float32).view(np.int32)[0]
    for bits_of_peak in range(around - 8, around + 8):
        tensor = torch.zeros(300)
        tensor[200] = float(np.array([bits_of_peak], np.int32).view(np.float32)[0])
        found = outcome(lambda peak=tensor: bytes(encode(peak, "s8", direction="average")))
        expected = without_kernel(
            lambda peak=tensor: bytes(encode(peak, "s8", direction="average"))
        )
        assert found == expected
        refused.append(isinstance(found, tuple))
    assert refused == sorted(refused)
    assert {False, True} == set(refused)


@pytest.mark.parametrize(
    "scale", [0, 0x0D7F, 0x0D80, 0x5380, 0x5381, 0x7F80, 0x7FC0, 0x8000, 0xBF80]
)
@pytest.mark.parametrize("place", [0, 511, 512, 1000, 1023])
def test_the_bounds_of_a_scale_hold_wherever_it_stands(scale, place, variant) -> None:
    payload = bytearray(encode(torch.randn(1024, 128), "s8", direction="average"))
    tile, index = divmod(place, 512)
    struct.pack_into("<H", payload, HEADER.size + tile * 512 * BLOCK_BYTES + 2 * index, scale)
    found = outcome(lambda: decode(payload, (1024, 128)))
    assert isinstance(found, torch.Tensor) == (0x0D80 <= scale <= 0x5380)


@pytest.mark.parametrize("place", [0, 127, 128, 511 * 128, 512 * 128, 599 * 128 + 127])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_values_are_refused_in_the_same_words(place, direction, variant) -> None:
    """-128 is no value: its magnitude could be above the largest."""
    _, outlier, *_ = kinds((600, 128))
    payload = bytearray(encode(outlier, "s8", direction=direction))
    tile, index = divmod(place, 512 * 128)
    scales = 2 * min(512, 600 - 512 * tile)
    start = read_header(payload, outlier.shape).body_start + tile * 512 * BLOCK_BYTES + scales
    payload[start + index] = 0x80
    found = outcome(lambda: decode(payload, outlier.shape))
    assert found == without_kernel(lambda: decode(payload, outlier.shape))
    assert found[0] is CodecError


def test_payloads_may_lie_anywhere(variant) -> None:
    tensor = torch.randn(30, 200)
    payload = bytes(encode(tensor, "s8", direction="average"))
    for shift in range(1, 5):
        odd = memoryview(b"\0" * shift + payload)[shift:]
        assert bits(decode(odd, tensor.shape)) == bits(decode(payload, tensor.shape))


SIZE = 300
BODY = 3 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("count", "width", "body", "factors"),
    [
        *[(0, SIZE, BODY, None), (SIZE, 0, BODY, None), (SIZE, -1, BODY, None)],
        *[(SIZE - 1, SIZE, BODY, None), (SIZE + 1, SIZE, BODY, None), (SIZE, 1 << 62, BODY, None)],
        *[(SIZE, SIZE, BODY - 1, None), (SIZE, SIZE, BODY + 1, None), (SIZE, SIZE, 0, None)],
        *[(SIZE, SIZE, BODY - BLOCK_BYTES, None), (SIZE, SIZE, BODY + BLOCK_BYTES, None)],
        *[(SIZE, SIZE, BODY, SIZE), (SIZE, SIZE, BODY, 383), (SIZE, SIZE, BODY, 385)],
    ],
)
def test_sizes_that_do_not_fit_are_refused(count, width, body, factors, variant) -> None:
    from client.compute import _s8

    numbers = np.zeros(count, np.float32)
    memory = bytearray(body)
    conditions = None if factors is None else np.ones(factors, np.float32)
    for work in (_s8.encode, _s8.decode):
        with pytest.raises(ValueError):
            work(numbers, width, memory, conditions, False, native._BEST)
    assert not any(memory)


def test_memory_that_does_not_fit_is_refused() -> None:
    from client.compute import _s8

    numbers, memory = np.zeros((3, 128), np.float32), bytearray(BODY)
    good = (numbers, 128, memory, None, False, 0)
    assert _s8.encode(*good)
    odd = memoryview(bytearray(3 * 512 + 4)).cast("B")[1 : 3 * 512 + 1]
    for changed, work, error in [
        ({0: odd}, _s8.encode, ValueError),
        ({0: np.zeros((6, 128), np.float32)[::2]}, _s8.encode, (BufferError, ValueError)),
        ({0: bytes(3 * 512)}, _s8.decode, BufferError),
        ({2: bytes(BODY)}, _s8.encode, BufferError),
        ({0: "numbers"}, _s8.encode, TypeError),
        ({5: 9}, _s8.encode, ValueError),
        ({5: -1}, _s8.encode, ValueError),
    ]:
        with pytest.raises(error):
            work(*[changed.get(place, value) for place, value in enumerate(good)])
    for wrong in (np.zeros(127, np.float32), np.zeros(129, np.float32)):
        with pytest.raises(ValueError):
            _s8.channel_sums(numbers, 128, wrong, 0)
    for step in (0, -1):
        with pytest.raises(ValueError):
            _s8.probe(numbers, 128, step, 0)


def test_nothing_is_written_outside_the_buffers(variant) -> None:
    """Guard zones on either side stay as they are."""
    for shape in [(3, 65), (5, 128), (129,), (600, 130)]:
        guard, tensor = 4096, torch.randn(shape)
        size = CODECS["s8"].body_bytes(shape)
        arena = np.full(size + 2 * guard, 0xA5, np.uint8)
        rows = tensor.view(-1, shape[-1])
        assert native.encode(rows, arena[guard : guard + size].data, None, False)
        numbers = torch.full((tensor.numel() + 2 * guard,), 7.0)
        inner = numbers[guard : guard + tensor.numel()].view(rows.shape)
        for rotated in (False, True):
            assert native.decode(arena[guard : guard + size].data, inner, None, rotated)
        assert (arena[:guard] == 0xA5).all()
        assert (arena[guard + size :] == 0xA5).all()
        assert (numbers[:guard] == 7).all()
        assert (numbers[guard + tensor.numel() :] == 7).all()


def test_the_interpreter_is_free_meanwhile() -> None:
    """Another thread gets its turn during a call; nothing else would give it one."""
    tensor = torch.randn(8192, 1024)
    body = memoryview(bytearray(tensor.numel() // 128 * BLOCK_BYTES))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        tries = (runs_during(lambda: native.encode(tensor, body, None, False)) for _ in range(500))
        assert any(tries)
        assert not runs_during(lambda: sum(range(1000)))
    finally:
        sys.setswitchinterval(before)


def runs_during(work) -> bool:
    """Whether a thread that waits for a lock goes on before the work ends."""
    lock, order = threading.Lock(), []

    def wait() -> None:
        with lock:
            order.append("other")

    lock.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    lock.release()
    work()
    order.append("work")
    thread.join()
    return order[0] == "other"
