"""The interface starts light, without torch, libp2p or trio, and learns what its terminal is."""

import sys

import pytest

from client.cli.screen import speaks_unicode
from client.ui.themes import prefers_light
from tests.support.cli_process import apart

CODE = """
import sys
from pathlib import Path
import client.ui.app, client.ui.source.live
heavy = {"torch", "numpy", "libp2p", "trio", "multiaddr", "nacl", "safetensors", "psutil"}
ours = {"client." + name for name in ("node", "train", "net", "compute", "cli", "lab")}
ours |= {"model_zoo." + name for name in ("datasets", "models", "stages", "tokenizers")}
print(*sorted((heavy | ours) & set(sys.modules)))
"""


def test_neither_torch_nor_libp2p_is_imported() -> None:
    found = apart(sys.executable, "-c", CODE)
    assert (found.returncode, found.stdout) == (0, "\n"), found.stderr


@pytest.mark.parametrize(
    ("environ", "drawn"),
    [
        ({}, True),
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C.utf8"}, True),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, False),
        ({"LC_CTYPE": "de_DE.ISO-8859-1"}, False),
    ],
)
def test_it_is_drawn_where_the_locale_takes_unicode(environ: dict[str, str], drawn: bool) -> None:
    assert speaks_unicode(environ) is drawn


@pytest.mark.parametrize(
    ("environ", "light"),
    [({}, False), ({"COLORFGBG": "15;0"}, False), ({"COLORFGBG": "0;default;15"}, True)],
)
def test_light_terminals_get_light_colours(environ: dict[str, str], light: bool) -> None:
    assert prefers_light(environ) is light
