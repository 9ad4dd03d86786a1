"""Where vectors are offloaded to, and when, and what several devices may share."""

from dataclasses import replace as replaced
from typing import Any

import pytest
from msgspec.structs import replace

from client.compute.memory import Fit, memory_need
from client.compute.requests import Probed
from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.workers.opening import (
    ONE,
    PINNED,
    Devices,
    bytes_to_advertise,
    devices_now,
    fit_stage,
)
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.model import LOGITS_AT_ONCE
from protocol.manifest import Manifest
from tests.support.protocol_examples import manifest

TWO = manifest(stages=2)
LARGE = replace(
    TWO,
    model=replace(TWO.model, layers=16, width=256, heads=4, kv_heads=4, ffn_width=1024),
    stages=tuple(replace(cost, layers=8) for cost in TWO.stages),
)
PROCESSOR, A_CARD = (Probed(memory_total_bytes=1000, platform=of) for of in ("cpu", "cuda"))
CARD = Devices(0, 1, 1 << 40, "auto")


def bytes_for(how: Manifest, **options: Any) -> int:
    """Memory in which a stage just fits."""
    return int(memory_need(how, 0, 0, **options).total_bytes / 0.85) + 1


def test_blocks_are_run_again_where_no_whole_graph_fits() -> None:
    whole, rerun = bytes_for(LARGE), bytes_for(LARGE, reruns_blocks=True)
    assert not fit_stage(LARGE, 0, whole).reruns_blocks
    tight = fit_stage(LARGE, 0, whole - 2)
    assert tight.reruns_blocks
    assert tight.size_bytes < whole
    assert fit_stage(LARGE, 0, rerun) == Fit(0, int(rerun * 0.85), True)


def test_a_stage_is_offloaded_where_it_does_not_fit_otherwise() -> None:
    rerun, away = bytes_for(LARGE, reruns_blocks=True), bytes_for(LARGE, offload=True)
    assert away < rerun
    assert fit_stage(LARGE, 0, rerun, devices=CARD).offloaded_bytes == 0
    fit = fit_stage(LARGE, 0, rerun - 2, devices=CARD)
    assert not fit.reruns_blocks
    assert fit.offloaded_bytes == memory_need(LARGE, 0, offload=True).offloaded_bytes
    least = bytes_for(LARGE, offload=True, reruns_blocks=True)
    tight = fit_stage(LARGE, 0, least, devices=CARD)
    assert tight.offloaded_bytes
    assert tight.reruns_blocks
    with pytest.raises(UserError, match=r"MiB of memory and .* MiB of the host's memory"):
        fit_stage(LARGE, 0, least - 2, devices=CARD)
    with pytest.raises(UserError, match="of memory, "):
        fit_stage(LARGE, 0, rerun - 2)


def test_a_card_makes_as_many_logits_at_once_as_there_is_memory_left_for() -> None:
    """16 x 1,024 tokens of a vocabulary of 50,304 in two pieces, where 3 GiB are left."""
    model = replace(TWO.model, context=1024, vocab=50_304)
    how = replace(TWO, model=model, sequences_per_microbatch=16)
    numbers = 16 * 1024 * 50_304
    assert -(-numbers // fit_stage(how, 1, 80 << 30, devices=CARD).logits_at_once) == 2
    assert fit_stage(how, 1, 80 << 30).logits_at_once == LOGITS_AT_ONCE
    assert fit_stage(how, 0, 80 << 30, devices=CARD).logits_at_once == LOGITS_AT_ONCE
    least = int(memory_need(how, 1, 0).total_bytes / 0.85) + 1
    for more_bytes in (0, 3 << 30):
        fit = fit_stage(how, 1, least + more_bytes, devices=CARD)
        left_bytes = int(0.85 * (least + more_bytes)) - fit.size_bytes
        assert 0 <= left_bytes < max(16, memory_need(how, 1).graph_bytes)
    assert fit_stage(TWO, 1, 80 << 30, devices=CARD).logits_at_once == LOGITS_AT_ONCE


def test_what_a_local_round_touches_once_lies_with_the_host_without_a_wish() -> None:
    local = replace(LARGE, local_rounds=LocalRounds(4))
    need = memory_need(local, 0, 0, host=True)
    least = int(need.total_bytes / 0.85) + 1
    assert need.offloaded_bytes > 0
    assert least < bytes_for(local)
    room = Devices(0, 1, PINNED * need.offloaded_bytes, "off")
    fit = fit_stage(local, 0, least, devices=room)
    assert not fit.offloaded_bytes
    assert memory_need(local, 0, 0).offloaded_bytes == 0
    for other in (replaced(room, host_bytes=room.host_bytes - 1), Devices()):
        with pytest.raises(UserError):
            fit_stage(local, 0, least, devices=other)


def test_always_means_where_it_would_fit_as_well() -> None:
    always = replaced(CARD, offload="on")
    assert fit_stage(LARGE, 0, 1 << 40, devices=always).offloaded_bytes
    with pytest.raises(UserError):
        fit_stage(LARGE, 0, 1 << 40, devices=replaced(always, host_bytes=1))
    on_cpu = Devices(offload="on")
    assert not fit_stage(LARGE, 0, 1 << 40, devices=on_cpu).offloaded_bytes


def test_the_host_needs_room_for_pinned_memory() -> None:
    needed = PINNED * memory_need(LARGE, 0, offload=True).offloaded_bytes
    rerun = bytes_for(LARGE, reruns_blocks=True)
    assert fit_stage(LARGE, 0, rerun - 2, devices=Devices(0, 1, needed, "auto")).offloaded_bytes
    for devices in (Devices(0, 1, needed - 1, "auto"), Devices(0, 1, needed, "off"), Devices()):
        with pytest.raises(UserError):
            fit_stage(LARGE, 0, rerun - 2, devices=devices)


def test_what_is_advertised_lets_the_matching_give_such_a_stage() -> None:
    costs = tuple(
        replace(cost, memory_bytes=float(memory_need(LARGE, stage).total_bytes))
        for stage, cost in enumerate(LARGE.stages)
    )
    swarm = replace(LARGE, stages=costs)
    usable = bytes_for(swarm, offload=True)
    assert usable < costs[0].memory_bytes
    most = max(int(one.memory_bytes) for one in costs)
    assert bytes_to_advertise(swarm, replaced(CARD, memory_bytes=usable)) == most
    with pytest.raises(UserError):
        bytes_to_advertise(swarm, Devices(usable))


def test_a_machine_without_a_card_offloads_nothing() -> None:
    assert devices_now(Settings(), PROCESSOR) == Devices(850, 1, 0, "auto")
    with_card = devices_now(Settings(offload="on"), A_CARD)
    assert with_card.can_offload(1)
    assert not devices_now(Settings(offload="off"), A_CARD).can_offload(1)


# --- several devices -----------------------------------------------------------------------------


def test_devices_do_not_share_a_local_round() -> None:
    local = replace(TWO, local_rounds=LocalRounds(4))
    assert bytes_to_advertise(local, Devices(1 << 40)) == 1 << 40
    with pytest.raises(UserError, match="2 devices cannot share one") as caught:
        bytes_to_advertise(local, Devices(1 << 40, 2))
    assert "a volunteer for each device" in caught.value.next_step


def test_what_would_help_is_said() -> None:
    def said(devices: Devices, swarm: Manifest = TWO) -> str:
        with pytest.raises(UserError) as caught:
            fit_stage(swarm, 0, 1000, devices=devices)
        assert caught.value.exit_code is ExitCode.CONFIG
        return f"{caught.value}; {caught.value.next_step}"

    assert "join a swarm with more stages" in said(ONE)
    assert "MiB of memory of each device" in said(Devices(0, 2, 10**12))


def test_the_settings_name_the_devices() -> None:
    assert devices_now(Settings(device="cpu:0,cpu:1"), PROCESSOR) == Devices(850, 2, 0, "auto")
    assert devices_now(Settings(device="0,1"), A_CARD).host_bytes > 0
