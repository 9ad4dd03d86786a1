"""Limits that the owner changes while a node runs reach all that keep them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import trio
from msgspec.structs import replace
from trio.testing import MockClock

from client.config import Settings
from client.net.pacing import Rates
from client.node.node import RENEW_SETTINGS_S, Node, NodeOptions
from protocol.address import Address
from protocol.effects import Explain

RATE = 200_000


async def test_a_limit_that_changes_is_said_once_and_at_once_held_by_all(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    before = Settings()
    now = replace(before, upload_limit_bytes_per_s=RATE)
    said, owner, held_stages = list[str](), list[Settings](), SimpleNamespace(settings=before)
    network, advertised = list[Rates](), list[tuple[Settings, Path]]()

    def update(settings: Settings, folder: Path) -> None:
        advertised.append((settings, folder))

    def explain(told: Explain) -> None:
        said.append(told.words)

    node = SimpleNamespace(
        _options=NodeOptions(before, Address("ip4", "127.0.0.1", 1), renewed=lambda _: now),
        _event_sink=SimpleNamespace(explain=explain),
        _limiting=SimpleNamespace(change=owner.append),
        _network=SimpleNamespace(limit=network.append),
        _training=SimpleNamespace(held_stages=held_stages),
        _engine=SimpleNamespace(own_advert=SimpleNamespace(update=update)),
        _folders=SimpleNamespace(data=tmp_path),
    )
    with trio.move_on_after(3 * RENEW_SETTINGS_S + 1):
        await Node._follow_settings(cast(Node, node))
    assert said == ["upload_limit_bytes_per_s is 1600kbit/s from now on"]
    assert (owner, network) == ([now], [Rates(upload_bytes_per_s=RATE)])
    assert held_stages.settings == now
    assert advertised == [(now, tmp_path)]
    assert node._options.settings == now, "status shows it"
