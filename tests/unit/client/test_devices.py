"""The devices that a setting names, and what is told of those that cannot be meant."""

import pytest

from client.compute.requests import Probed
from client.config import Settings, check_setting
from client.devices import devices_of
from client.errors import ConfigError, UserError
from client.train.training import check_threads
from client.train.workers.opening import usable_memory_bytes

SPELLED = {
    "auto": ("auto",),
    "cuda:1": ("cuda:1",),
    "1": ("cuda:1",),
    "cuda:2, 0": ("cuda:2", "cuda:0"),
    "cpu:0,cpu:1": ("cpu:0", "cpu:1"),
    "cpu:0": ("cpu",),
    "cuda:007": ("cuda:7",),
}
REFUSED = {
    "0,1,0": "cuda:0 is named twice",
    "cpu,cpu": "'cpu' is not a device",
    "0,cpu:0": "mixes processors and cards",
    "gpu": "'gpu' is not a device",
    "": "'' is not a device",
    "0-3": "'0-3' is not a device",
    "cuda:1234": "is not a device",
    ",".join(map(str, range(17))): "17 devices are named; 16 at most",
}


@pytest.mark.parametrize(("text", "names"), SPELLED.items())
def test_a_text_names_devices(text: str, names: tuple[str, ...]) -> None:
    assert devices_of(text) == names
    kept = check_setting("device", text)
    assert Settings(device=str(kept)).devices == names


@pytest.mark.parametrize(("text", "words"), REFUSED.items())
def test_what_cannot_be_meant_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        devices_of(text)
    with pytest.raises(ConfigError, match=words):
        check_setting("device", text)


def test_a_stage_may_take_what_each_device_has() -> None:
    of_one = Probed(memory_total_bytes=1000)
    assert usable_memory_bytes(of_one, Settings(device="cpu:0,cpu:1")) == 850
    limited = Settings(device="cpu:0,cpu:1", memory_limit_bytes=600)
    assert usable_memory_bytes(of_one, limited) == 300
    card = Probed(memory_total_bytes=1000, platform="cuda")
    assert usable_memory_bytes(card, Settings(device="cuda:0,cuda:1", vram_share=50)) == 500


def test_every_device_of_the_processor_needs_a_thread() -> None:
    for fine in (
        Settings(device="cpu:0,cpu:1", threads=2),
        Settings(device="cpu:0,cpu:1"),
        Settings(device="cuda:0,cuda:1", threads=1),
        Settings(device="cpu", threads=1),
    ):
        check_threads(fine)
    with pytest.raises(UserError, match="2 devices, and --threads is 1"):
        check_threads(Settings(device="cpu:0,cpu:1", threads=1))
