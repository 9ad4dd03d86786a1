"""A volunteer's advert: its stay, its line, the stages it cannot serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.config import Settings
from client.train.machine import capacity
from client.train.machine.capacity import (
    Line,
    kept_line,
    save_line,
)
from client.train.swarm.measuring import Measuring
from client.train.swarm.own_advert import OwnAdvert
from client.train.swarm.views import matching_members
from protocol.effects import Publish
from protocol.membership.advert import parse_advert
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect
from tests.support.membership_world import World
from tests.support.protocol_examples import SWARM, advert, manifest, peer, seat

RUN = manifest(stages=2)


def test_a_line_is_kept_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    save_line(tmp_path, Line(5e7, 3.0, 1e8, 4.0))
    assert kept_line(tmp_path) == Line(5e7, 3.0, 1e8, 4.0)
    (tmp_path / "bandwidth.json").write_bytes(b"{")
    assert kept_line(tmp_path) == Line()


def here() -> tuple[str, ...]:
    return advert().addresses


class Node:
    """Enough of an engine."""

    def __init__(self) -> None:
        self.time = 0.0
        self.membership = Membership(peer(0), SWARM, 2)
        self.measuring = Measuring(peer(0), RUN, self.membership)
        self.told: list[MembershipEffect] = []
        self.own_advert = OwnAdvert(self.membership, self.measuring, self, self.told.extend)
        self.own_advert.addresses = here

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1.8e9 + self.time

    def downloads(self) -> None:
        """Two megabytes come, twenty times a second, for five seconds."""
        for n in range(100):
            self.measuring.incoming.begin(peer(1), n / 20)
            self.measuring.incoming.arrived(peer(1), 2_000_000, (n + 1) / 20)


def test_an_update_tells_what_our_line_has_shown(tmp_path: Path) -> None:
    node = Node()
    node.time = 50.0
    node.own_advert.enter(advert(), {})
    node.downloads()
    node.time = 650.0
    node.own_advert.update(Settings(), tmp_path)
    node.time = 710.0
    node.own_advert.set_unable({})  # a renewal
    (publish,) = [effect for effect in node.told if isinstance(effect, Publish)][-1:]
    said = parse_advert(publish.body, peer(0), peer(0), 2)
    assert said.download_bytes_per_s == pytest.approx(4e7)
    assert kept_line(tmp_path).download_bytes_per_s == pytest.approx(4e7, rel=0.02)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(0, 4e7), (100_000_000, 4e7), (40_000_000, 9e6), (20_000_000, 9e6)],
)
def test_what_only_reached_the_owners_limit_says_nothing_of_the_line(
    tmp_path: Path, limit: int, kept: float
) -> None:
    save_line(tmp_path, Line(download_bytes_per_s=9e6, download_s=60.0))
    node = Node()
    node.own_advert.enter(advert(), {})
    node.downloads()
    node.own_advert.update(Settings(download_limit_bytes_per_s=limit), tmp_path)
    assert kept_line(tmp_path).download_bytes_per_s == pytest.approx(kept, rel=0.02)


def test_a_full_disk_does_not_stop_the_telling(tmp_path: Path) -> None:
    node = Node()
    node.own_advert.enter(advert(), {})
    node.own_advert.update(Settings(), tmp_path / "gone")


def test_seats_become_home_second_and_fetching() -> None:
    world = World(2, stages=3)
    world.advertise()
    world.link_all()
    places = [seat(1, seat=0), seat(2, seat=1, state="fetching")]
    world.perform(peer(1), world.members[peer(1)].set_seats(places, world.now, world.wall))
    world.run(2)
    view = matching_members(world.members[peer(0)].roster, peer(0), Node().measuring)
    member = next(m for m in view if m.peer == peer(1))
    assert (member.home, member.second, member.fetching) == (1, 2, {2})
    assert member.seats == 2


def test_the_advert_claims_the_share_of_the_speed_that_is_offered() -> None:
    measured = capacity.Capacity("cpu", 1, 4e9, 8e9, 2**30)
    said = capacity.advert(measured, Settings(compute_share=25), (), 2, 1)
    assert (said.flops, said.seats) == (2e9, 2)


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
def test_the_advert_claims_the_memory_that_is_lent(
    on_gpu: bool, settings: Settings, memory_bytes: int
) -> None:
    measured = capacity.Capacity("auto", 1, 4e9, 8e9, 1000, on_gpu)
    assert capacity.advert(measured, settings, (), 2, 1).memory_bytes == memory_bytes


def test_what_other_programs_hold_of_a_card_is_not_advertised() -> None:
    card = capacity.Capacity("auto", 1, 4e9, 8e9, 1000, on_gpu=True, free_bytes=200)
    for settings in (Settings(), Settings(vram_share=50), Settings(memory_limit_bytes=400)):
        assert capacity.usable_memory_bytes(card, settings) == 170
    processor = capacity.Capacity("cpu", 1, 4e9, 0.0, 1000, free_bytes=200)
    assert capacity.usable_memory_bytes(processor, Settings()) == 850


def test_the_advert_claims_no_more_of_the_line_than_is_lent() -> None:
    measured = capacity.Capacity("cpu", 1, 4e9, 8e9, 2**30)
    settings = Settings(upload_limit_bytes_per_s=1_000_000, download_limit_bytes_per_s=90_000_000)
    said = capacity.advert(measured, settings, (), 2, 1, Line(5e7, 3.0, 5e7, 3.0))
    assert (said.upload_bytes_per_s, said.upload_limit_bytes_per_s) == (1e6, 1e6)
    assert (said.download_bytes_per_s, said.download_limit_bytes_per_s) == (5e7, 9e7)


def test_who_moves_to_another_network_says_so_at_once(tmp_path: Path) -> None:
    """Others would dial the old address until the node is started again."""
    node, now = Node(), list(here())
    node.own_advert.enter(advert(), {})
    node.own_advert.addresses = lambda: now
    said = len(node.told)
    node.own_advert.update(Settings(), tmp_path)
    assert len(node.told) == said
    now[:] = [f"/ip4/10.0.0.{n}/tcp/4001" for n in range(20)]
    node.own_advert.update(Settings(), tmp_path)
    (publish,) = [e for e in node.told[said:] if isinstance(e, Publish)]
    assert parse_advert(publish.body, peer(0), peer(0), 2).addresses == tuple(now[:8])
    said = len(node.told)
    node.own_advert.update(Settings(), tmp_path)
    assert len(node.told) == said
