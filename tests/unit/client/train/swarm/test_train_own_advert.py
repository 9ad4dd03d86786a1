"""What we say of ourselves: each change once."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from client.compute.requests import Probed
from client.config import Settings
from client.train.machine import capacity
from client.train.machine.capacity import (
    HOUSEHOLD_BYTES_PER_S,
    SLOW_AFTER_S,
    Line,
    kept_line,
    line_rates,
    save_line,
)
from client.train.machine.line_meter import LineMeter
from client.train.swarm.own_advert import OwnAdvert
from client.train.workers.opening import usable_memory_bytes
from protocol.ids import Stage
from protocol.limits import MAX_ADDRESSES
from tests.support.recording_ports import RecordingPorts
from tests.support.train_swarm import ADVERT


class Said:
    """An advert's holder, and what it says through the membership."""

    def __init__(self, *, entered: bool = True) -> None:
        self.membership, ports = Mock(), RecordingPorts()
        self.performed = ports.done
        self.membership.describe.side_effect = lambda advert, *_: [advert]
        self.measuring = Mock(incoming=LineMeter(), outgoing=LineMeter())
        self.of = OwnAdvert(self.membership, self.measuring, ports)
        if entered:
            self.of.enter(ADVERT, {})
            self.forget()

    def forget(self) -> None:
        self.performed.clear()
        self.membership.reset_mock()

    def at_once(self) -> list[Any]:
        return self.performed


def test_before_we_are_a_member_nothing_is_said(tmp_path: Path) -> None:
    said = Said(entered=False)
    said.of.change(unable=(0,))
    said.of.change(seats=0, unable=())
    said.of.update(Settings(), tmp_path)
    said.of.change(relay_bytes_per_s=5.0)
    said.of.addresses = lambda: ["/ip4/1.2.3.4/tcp/1"]
    said.of.change()
    assert not said.of.entered
    assert said.at_once() == []
    assert said.of.upload_bytes_per_s == 0.0
    said.of.enter(ADVERT, {Stage(1): "too small", Stage(0): "no text"})
    assert said.of.entered
    assert said.at_once() == [replace(ADVERT, unable=(0, 1))]
    assert said.membership.describe.call_args.args[1:] == (100.0,)


def test_stages_that_we_cannot_serve_and_seats_are_told_at_once() -> None:
    said = Said()
    said.of.change(unable=(0,))
    assert said.at_once() == [replace(ADVERT, unable=(0,))]
    said.forget()
    said.of.change(seats=0, unable=())
    assert said.at_once() == [replace(ADVERT, seats=0, unable=())]


def test_bandwidth_is_told_once_and_when_it_has_changed(tmp_path: Path) -> None:
    said = Said()
    save_line(tmp_path, Line(2e6, 100.0, 3e6, 100.0))
    said.of.update(Settings(), tmp_path)
    changed = replace(ADVERT, upload_bytes_per_s=2e6, download_bytes_per_s=3e6)
    said.of.update(Settings(), tmp_path)
    assert said.at_once() == [changed]
    assert said.of.upload_bytes_per_s == 2e6
    said.of.update(Settings(), tmp_path / "gone")
    assert len(said.at_once()) == 2, "a full disk does not stop the telling"


@pytest.mark.parametrize("reached", [0.0, 4e5, 4e7])
def test_no_rate_exceeds_the_limit_that_the_owner_has_just_now(
    tmp_path: Path, reached: float
) -> None:
    """Whatever is saved, and whatever was measured while another limit held."""
    said = Said()
    save_line(tmp_path, Line(2e6, 100.0, 3e6, 100.0))
    said.measuring.outgoing = LineMeter(reached, 100.0)
    for limit in (1_000_000, 300_001, 5_000_000):
        changed = Settings(upload_limit_bytes_per_s=limit, download_limit_bytes_per_s=2 * limit)
        said.of.update(changed, tmp_path)
        assert 0 < said.at_once()[-1].upload_bytes_per_s <= limit
        assert said.at_once()[-1].download_bytes_per_s == min(3e6, 2 * limit)
    said.of.update(Settings(), tmp_path)
    assert said.of.upload_bytes_per_s == (reached or 2e6), "without a limit the line counts"


def test_a_line_is_kept_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    save_line(tmp_path, Line(5e7, 3.0, 1e8, 4.0))
    assert kept_line(tmp_path) == Line(5e7, 3.0, 1e8, 4.0)
    (tmp_path / "bandwidth.json").write_bytes(b"{")
    assert kept_line(tmp_path) == Line()


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(0, 4e7), (100_000_000, 4e7), (40_000_000, 9e6), (20_000_000, 9e6)],
)
def test_what_only_reached_the_owners_limit_says_nothing_of_the_line(
    tmp_path: Path, limit: int, kept: float
) -> None:
    save_line(tmp_path, Line(download_bytes_per_s=9e6, download_s=60.0))
    said = Said()
    said.measuring.incoming = LineMeter(4e7, 20.0)
    said.of.update(Settings(download_limit_bytes_per_s=limit), tmp_path)
    assert kept_line(tmp_path).download_bytes_per_s == kept


def test_that_we_relay_is_told_at_once() -> None:
    said = Said()
    for rate in (0.0, 1e6, 1e6, 2e6, 0.0):
        said.of.change(relay_bytes_per_s=rate)
    assert [advert.relay_bytes_per_s for advert in said.at_once()] == [1e6, 2e6, 0.0]


def test_addresses_are_told_when_they_are_others(tmp_path: Path) -> None:
    """Else others would dial the old one until the node is started again."""
    said = Said()
    many = [f"/ip4/1.2.3.4/tcp/{port}" for port in range(1, MAX_ADDRESSES + 3)]
    for here in (many, list(reversed(many[:MAX_ADDRESSES]))):
        said.of.addresses = lambda: here  # noqa: B023
        said.of.update(Settings(), tmp_path)
        said.of.change()
    assert [advert.addresses for advert in said.at_once()] == [tuple(many[:MAX_ADDRESSES])]


def test_whose_addresses_change_as_it_leaves_does_not_come_back() -> None:
    """Who leaves gives up its places at relays, so it has fewer addresses."""
    said = Said()
    said.of.change(leaving=True)
    said.of.addresses = lambda: ["/ip4/1.2.3.4/tcp/1"]
    said.of.change()
    said.of.change(relay_bytes_per_s=0.0)
    assert len(said.at_once()) == 2
    assert all(advert.leaving for advert in said.at_once())


def test_a_line_is_a_households_until_it_was_measured() -> None:
    usual, fast, slow = HOUSEHOLD_BYTES_PER_S, 2 * HOUSEHOLD_BYTES_PER_S, HOUSEHOLD_BYTES_PER_S / 2
    settings = Mock(upload_limit_bytes_per_s=0.0, download_limit_bytes_per_s=0.0)
    for rate, seconds, found in (
        (0.0, 100.0, usual),
        (fast, 0.1, fast),
        (slow, SLOW_AFTER_S - 1, usual),
        (slow, SLOW_AFTER_S, 6.2e6),
        (1e16, 100.0, usual),
        (float("nan"), 100.0, usual),
    ):
        assert line_rates(Line(rate, seconds, rate, seconds), settings) == (found, found), rate
    settings.upload_limit_bytes_per_s = 1e6
    assert line_rates(Line(fast, 1.0, fast, 1.0), settings) == (1e6, fast)
    settings.download_limit_bytes_per_s = 4 * fast
    assert line_rates(Line(fast, 1.0, fast, 1.0), settings) == (1e6, fast), "a limit adds nothing"


def test_no_more_is_claimed_than_is_lent(tmp_path: Path) -> None:
    settings = Settings(
        compute_share=25, upload_limit_bytes_per_s=1_000_000, download_limit_bytes_per_s=90_000_000
    )
    save_line(tmp_path, Line(5e7, 3.0, 5e7, 3.0))
    said = capacity.advert(settings, (), 1, tmp_path, flops=4e9)
    assert said.flops == 1e9
    assert (said.upload_bytes_per_s, said.download_bytes_per_s) == (1e6, 5e7)


@pytest.mark.parametrize(
    ("on_gpu", "settings", "memory_bytes"),
    [
        (False, Settings(), 850),
        (False, Settings(memory_limit_bytes=400, vram_share=10), 400),
        (True, Settings(), 850),
        (True, Settings(vram_share=50), 500),
        (True, Settings(vram_share=50, memory_limit_bytes=400), 400),
        (True, Settings(vram_share=50, memory_limit_bytes=600), 500),
    ],
)
def test_stages_may_take_the_memory_that_is_lent(
    on_gpu: bool, settings: Settings, memory_bytes: int
) -> None:
    measured = Probed(memory_total_bytes=1000, platform="cuda" if on_gpu else "cpu")
    assert usable_memory_bytes(measured, settings) == memory_bytes


def test_what_other_programs_hold_of_a_card_is_not_advertised() -> None:
    size = {"memory_total_bytes": 1000, "memory_available_bytes": 200}
    card = Probed(platform="rocm", **size)
    for settings in (Settings(), Settings(vram_share=50), Settings(memory_limit_bytes=400)):
        assert usable_memory_bytes(card, settings) == 170
    assert usable_memory_bytes(Probed(**size), Settings()) == 850
