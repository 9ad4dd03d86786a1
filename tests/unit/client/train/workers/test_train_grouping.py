"""Several devices hold a stage each, and bad wishes are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.workers.devices import ONE, Devices, devices_now
from client.train.workers.opening import check_fits, fit_stage
from model_zoo.specs.local_rounds import LocalRounds
from protocol.manifest import Manifest
from tests.support.protocol_examples import manifest

SWARM = manifest(stages=2)


def test_devices_do_not_share_a_local_round() -> None:
    local = replace(SWARM, local_rounds=LocalRounds(4))
    assert all(check_fits(local, 1 << 40, devices=ONE))
    with pytest.raises(UserError, match="2 devices cannot share one") as caught:
        check_fits(local, 1 << 40, devices=Devices(2))
    assert "a volunteer for each device" in caught.value.next_step


def test_what_would_help_is_said() -> None:
    def said(devices: Devices, swarm: Manifest = SWARM) -> str:
        with pytest.raises(UserError) as caught:
            fit_stage(swarm, 0, 1000, devices=devices)
        assert caught.value.exit_code is ExitCode.CONFIG
        return f"{caught.value}; {caught.value.next_step}"

    assert "join a swarm with more stages" in said(ONE)
    assert "MiB of memory of each device" in said(Devices(2, 10**12))


def test_the_settings_name_the_devices() -> None:
    assert devices_now(Settings(device="cpu:0,cpu:1"), has_host=False) == Devices(2, 0, "auto")
    assert devices_now(Settings(device="0,1"), has_host=True).host_bytes > 0
