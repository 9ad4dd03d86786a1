"""The setting ``relay``: a share, a rate or off, each with one spelling."""

from __future__ import annotations

import pytest

from client.config import lent_bytes_per_s, resolve
from client.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "spelled", "lent"),
    [
        ("25%", "25%", 2.5e6),
        ("off", "off", 0.0),
        ("0", "off", 0.0),
        ("2MB/s", "16Mbit/s", 2e6),
        ("20 Mbit/s", "20Mbit/s", 2.5e6),
    ],
)
def test_what_is_lent_of_ten_megabytes(text: str, spelled: str, lent: float) -> None:
    relay = resolve({"relay": text}, {}).settings.relay
    assert relay == spelled
    assert lent_bytes_per_s(relay, 1e7) == lent


@pytest.mark.parametrize("text", ["", "0%", "101%", "-5%", "yes", "20Mb/s", "1kB/s", "%"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="relay"):
        resolve({"relay": text}, {})
